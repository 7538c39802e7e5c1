"""Running `nsys export`: finding nsys, following its progress, passing on its words when it refuses."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from gpuscope.errors import InputError, UsageError

_MAGIC = b"NVIDIA Tegra Profiler Report "
_VERSION = re.compile(_MAGIC + rb"(\d+)@(\d+)@(\d+)")
_PERCENT = re.compile(rb"(\d{1,3})%")
_PROGRESS = re.compile(r"Exporting \d+ events: \[[^\]]*\]|^\s*Processing.*$", re.MULTILINE)
_WANTED = ("--include-blobs", "--include-json")
"""Off by default, and without them NCCL's sizes stay behind; versions before 2026 may lack them."""


def report_version(path: Path) -> str:
    """The nsys that made a report («2024.6.2»), from its first bytes; "" before 2023, which do not."""
    match = _VERSION.match(_head(path))
    return ".".join(part.decode() for part in match.groups()) if match else ""


def is_report(head: bytes) -> bool:
    """Whether a file begins like an nsys report."""
    return head.startswith(_MAGIC)


def find_nsys(path: Path, wanted: str | None) -> str:
    """The nsys program: `wanted`, else GPUSCOPE_NSYS, else the one on PATH.

    Raises `UsageError` where the one named is not there, `InputError` where there is none.
    """
    named = wanted or os.environ.get("GPUSCOPE_NSYS")
    if named:
        found = shutil.which(named)
        if found is None:
            raise UsageError(f"{named}: no such program", hint="--nsys and GPUSCOPE_NSYS name the nsys executable")
        return found
    found = shutil.which("nsys")
    if found is None:
        version = report_version(path)
        raise InputError(
            f"{path}: reading a report needs NVIDIA's nsys, and none is on PATH",
            hint=f"run this where nsys{f' {version} or later' if version else ''} is installed, and pass "
            f"{path.with_suffix('.sqlite').name} instead:\n  {command_elsewhere(path)}\n"
            "or name an nsys with --nsys or GPUSCOPE_NSYS",
        )
    return found


def command_elsewhere(path: Path) -> str:
    """The command that exports a report, to be run by hand where nsys is."""
    version = report_version(path)
    switches = "".join(f" {switch}=true" for switch in _WANTED) if version >= "2026" else ""
    return f"nsys export --type sqlite{switches} --output {path.with_suffix('.sqlite').name} {path.name}"


def export(nsys: str, report: Path, output: Path, status: Callable[[str], None]) -> None:
    """Export `report` to the SQLite file `output`, which must not be there yet.

    Raises `InputError` with nsys's own words where it refuses.
    """
    command = [nsys, "export", "--type", "sqlite"]
    command += [f"{switch}=true" for switch in _WANTED if switch in _help(nsys)]
    command += ["--output", str(output), str(report)]
    status(f"nsys export of {report.name}")
    code, said = _run(command, lambda percent: status(f"nsys export of {report.name}: {percent} %"))
    if code != 0 or not output.exists() or output.stat().st_size == 0:
        raise _refusal(nsys, report, code, said)


def nsys_version(nsys: str) -> str:
    """What `nsys --version` says, e.g. «2022.4.2.1-df9881f»."""
    said = _captured([nsys, "--version"])
    match = re.search(r"\d{4}\.\d+[\w.-]*", said)
    return match[0] if match else said.strip()


def _refusal(nsys: str, report: Path, code: int, said: str) -> InputError:
    words = " ".join(_PROGRESS.sub("", said.replace("\r", "\n")).split()) or f"it ended with status {code}"
    needed = report_version(report)
    need = f"nsys {needed} or later" if needed else "a newer nsys"
    return InputError(
        f"{report}: nsys can't export it: {words}",
        hint=f"this nsys is {nsys_version(nsys)} ({nsys}); install {need} "
        f"(https://developer.nvidia.com/nsight-systems), name it by --nsys or GPUSCOPE_NSYS, or run it elsewhere:\n"
        f"  {command_elsewhere(report)}",
    )


def _run(command: list[str], percent: Callable[[int], None]) -> tuple[int, str]:
    """Exit status and output. Whatever interrupts it, no process is left behind."""
    try:
        # A session of its own: then it and what it starts can be ended together.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise InputError(f"{command[0]}: can't be run: {error.strerror or error}") from error
    assert process.stdout is not None
    said = b""
    try:
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            said = (said + piece)[-(1 << 16) :]
            if found := _PERCENT.findall(piece):
                percent(int(found[-1]))
        return process.wait(), said.decode("utf-8", "replace")
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        process.stdout.close()


def _help(nsys: str) -> str:
    return _captured([nsys, "export", "--help"])


def _captured(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(256)
    except OSError:
        return b""
