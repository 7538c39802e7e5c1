"""The wheel and the sdist hold the repository's files, each once. That they work elsewhere: test_installed.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from helpers import needs
from helpers.wheel import ROOT, Installed, build

from gpuscope.version import __version__

pytest.importorskip("hatchling")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

TOP = ("gpuscope", "analyzers", "dashboards", "instrumented_runtime")
BESIDE = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "hatch_build.py"}
"""What the sdist holds besides the packages, and git's list of what to leave out."""
CORE = "gpuscope/native/_core.abi3.so"
"""Compiled from the C files, which the wheel leaves out."""


def sources() -> list[str]:
    """Every file of the four packages as the repository has it, links and what Python writes left out."""
    found = []
    for top in TOP:
        for folder, folders, files in os.walk(ROOT / top):  # which follows no links
            folders[:] = [name for name in folders if name != "__pycache__"]
            found += [Path(folder, name).relative_to(ROOT).as_posix() for name in files]
    return sorted(set(found) - {CORE})


def place_of(path: str) -> str:
    """Where a file of the repository is in the wheel."""
    return path if path.startswith("gpuscope/") else f"gpuscope/{path}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    [archive] = out.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    return out / f"gpuscope-{__version__}"


# ---- what is in them ----


def test_the_wheel_holds_every_file_once_under_gpuscope(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(set(names)) == len(names)
    info = f"gpuscope-{__version__}.dist-info/"
    metadata = {name.removeprefix(info) for name in names if name.startswith(info)}
    assert metadata == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    files = [name for name in names if not name.startswith(info)]
    python = [path for path in map(place_of, sources()) if not path.endswith((".c", ".h"))]
    assert sorted(files) == sorted([*python, CORE] if compiled(wheel) else python)


def compiled(wheel: Path) -> bool:
    """Whether the native core is in it, which its name says."""
    version, abi, platform = wheel.stem.split("-")[2:]
    assert (version, abi) == ("cp311", "abi3") if platform != "any" else (version, abi) == ("py3", "none")
    return platform != "any"


@pytest.mark.skipif(shutil.which("cc") is None, reason=needs.C_COMPILER)
def test_a_wheel_made_with_a_compiler_has_the_native_core(wheel: Path, installed: Installed, tmp_path: Path) -> None:
    assert compiled(wheel)
    code = "from gpuscope.native import core; print(core.__file__)"
    assert installed.run(installed.python, "-c", code, at=tmp_path).stdout.strip() == str(installed.site / CORE)


def test_without_a_compiler_it_is_built_in_python_alone(tmp_path: Path) -> None:
    wheel = build(ROOT, tmp_path, CC="no-such-compiler", PATH=os.path.dirname(sys.executable))
    assert not compiled(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert CORE not in archive.namelist()


def test_the_sdist_holds_every_file_once_where_the_repository_has_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert all(member.isfile() for member in members)  # no links: not everything that unpacks an archive can make them
    names = [member.name.removeprefix(f"gpuscope-{__version__}/") for member in members]
    assert sorted(names) == sorted([*sources(), *BESIDE, "PKG-INFO", ".gitignore"])


@pytest.mark.parametrize(
    "path",
    [
        "gpuscope/py.typed",
        "gpuscope/hardware/links.toml",
        "gpuscope/report/html/templates/report.html.j2",
        "dashboards/assets/gpuscope.css",
        "instrumented_runtime/record/shim/sitecustomize.py",
    ],
)
def test_files_that_are_no_modules_are_among_them(path: str) -> None:
    """The tests above compare lists; this one holds the list of the repository's files to something."""
    assert path in sources()


def test_a_wheel_from_the_sdist_is_the_same(wheel: Path, unpacked: Path, tmp_path: Path) -> None:
    assert build(unpacked, tmp_path).read_bytes() == wheel.read_bytes()


def test_a_clone_without_links_makes_the_same_wheel(wheel: Path, unpacked: Path, tmp_path: Path) -> None:
    """By default Git on Windows checks a link out as a text file with the path."""
    for name in TOP[1:]:
        (unpacked / "gpuscope" / name).write_text(f"../{name}")
    try:
        assert build(unpacked, tmp_path).read_bytes() == wheel.read_bytes()
    finally:
        for name in TOP[1:]:
            (unpacked / "gpuscope" / name).unlink()


def test_the_links_of_a_clone_lead_to_what_the_wheel_takes() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["sources"] == {name: f"gpuscope/{name}" for name in TOP[1:]}
    for name in TOP[1:]:
        assert (ROOT / "gpuscope" / name).resolve() == ROOT / name
