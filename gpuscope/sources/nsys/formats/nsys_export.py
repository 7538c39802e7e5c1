"""Running `nsys export`: finding nsys, following its progress, passing on its words when it refuses."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

from gpuscope import when_used
from gpuscope.errors import InputError, UsageError
from gpuscope.sources.nsys.formats.recognition import REPORT_MAGIC

_VERSION = when_used.pattern(REPORT_MAGIC + rb"(\d+)@(\d+)@(\d+)")
_SAID = when_used.pattern(r"[Vv]ersion[^\d]{0,24}(\d{4})[.@](\d+)[.@](\d+)")
"""«Report was created in Nsight Systems version (2025.6.1.190)», «Version number is invalid: 2024@6@2@225»."""
_PERCENT = when_used.pattern(rb"(\d{1,3})%")
_PROGRESS = when_used.pattern(r"Exporting \d+ events: \[[^\]]*\]|^\s*Processing.*$", re.MULTILINE)
_WANTED = ("--include-blobs", "--include-json")
"""Off by default, and without them NCCL's sizes stay behind; versions before 2026 may lack them."""


def report_version(path: Path) -> str:
    """The nsys that made a report («2024.6.2»), from its first bytes; "" before 2023, which do not."""
    match = _VERSION.match(_head(path))
    return ".".join(part.decode() for part in match.groups()) if match else ""


def find_nsys(path: Path, wanted: str | None) -> str:
    """The nsys program: `wanted`, else GPUSCOPE_NSYS, else the one on PATH.

    Raises `UsageError` where the one named is not there, `InputError` where there is none.
    """
    import shutil

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
            f"{path.with_suffix('.sqlite').name} instead:\n  {command_elsewhere(path, version)}\n"
            "or name an nsys with --nsys or GPUSCOPE_NSYS",
        )
    return found


def command_elsewhere(path: Path, version: str) -> str:
    """The command that exports a report, to be run by hand where an nsys of that version is."""
    switches = "".join(f" {switch}=true" for switch in _WANTED) if version >= "2026" else ""
    names = (path.with_suffix(".sqlite").name, path.name)
    return f"nsys export --type sqlite{switches} --output {shlex.quote(names[0])} {shlex.quote(names[1])}"


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
    needed, here = _writer(report, words), nsys_version(nsys)
    wanted = f"Nsight Systems {needed} or later" if needed else "a newer Nsight Systems"
    package = f"the package nsight-systems-{needed} of NVIDIA's repositories, or " if needed else ""
    install = (
        f"install {wanted} ({package}https://developer.nvidia.com/nsight-systems), name its nsys by --nsys or "
        "GPUSCOPE_NSYS"
    )
    if needed and _number(needed) <= _number(here):
        install = "the report may be damaged: copy it again"
    wrote = f"; the report was written by Nsight Systems {needed}" if needed else ""
    return InputError(
        f"{report}: nsys can't export it: {words}",
        hint=f"this nsys is {here} ({nsys}){wrote}. {install[0].upper()}{install[1:]}, or run this on a machine that "
        f"has one, and pass {report.with_suffix('.sqlite').name} instead:\n  {command_elsewhere(report, needed)}",
    )


def _writer(report: Path, words: str) -> str:
    """The version that wrote a report, by its first bytes, else by what nsys says of it."""
    found = report_version(report)
    if not found and (told := _SAID.search(words)):
        found = ".".join(told.groups())
    return found


def _number(version: str) -> list[int]:
    """A version to be compared: its year, release and update."""
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def _run(command: list[str], percent: Callable[[int], None]) -> tuple[int, str]:
    """Exit status and output. Whatever interrupts it, no process is left behind."""
    import subprocess

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
    import subprocess

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
