"""Attempts of a job, and windows of an attempt, of which an analysis takes one: the last that left a trace.

After a failure torchrun starts all ranks again, into the same run folder: the first attempt records into the folder
itself, the n-th restart into `restartN/`. Ranks of two attempts never ran together. Windows recorded on demand
(`windowN/`) are recordings of the same ranks at other times.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuscope import when_used
from gpuscope.problems import job
from gpuscope.problems.problem import Problem
from gpuscope.sources.run_manifest import MANIFEST, recorded_traces

_RESTART = when_used.pattern(r"restart(\d+)")
_WINDOW = when_used.pattern(r"window(\d+)")

Attempt = tuple[int, int]
"""(0 for the first attempt, n for the n-th restart; 0 for a recording without windows, n for the n-th window)."""


def last_attempt(folder: Path, files: list[Path]) -> list[Path]:
    """Of the traces below a run folder, those of the last attempt that left any; of another folder, all."""
    if not (folder / MANIFEST).is_file():
        return files
    last = max((_attempt(folder, file) for file in files), default=(0, 0))
    return [file for file in files if _attempt(folder, file) == last]


def attempts(folder: Path) -> list[str]:
    """Where the attempts of a run are within its folder, the last one first; the first one's is empty."""
    found = (_RESTART.fullmatch(path.name) for path in folder.iterdir())
    return [f"restart{number}/" for number in sorted((int(one[1]) for one in found if one), reverse=True)] + [""]


def left_out(folder: Path, read: Iterable[Path]) -> Problem | None:
    """The attempts of a run that recorded traces too and were not read; None if there are none."""
    taken = {_attempt(folder, path.absolute()) for path in read if path.absolute().is_relative_to(folder)}
    others = sorted({_attempt(folder, folder / name) for name in recorded_traces(folder)} - taken)
    if not taken or not others:
        return None
    restarted = len({restart for restart, _ in {*taken, *others}}) > 1
    kind = job.RESTARTS_LEFT_OUT if restarted else job.WINDOWS_LEFT_OUT
    return kind.of(
        1,
        run=folder.name,
        read=" and ".join(map(_name, sorted(taken))),
        others=", ".join(map(_name, others)),
        where=f"{folder.name}/{_path(others[0])}",
    )


def _attempt(folder: Path, file: Path) -> Attempt:
    restart = window = 0
    for part in file.absolute().relative_to(folder.absolute()).parts[:2]:
        if found := _RESTART.match(part):  # restart1/rank0.json.gz, nsys/restart1.rep.0.nsys-rep
            restart = int(found[1])
        elif found := _WINDOW.fullmatch(part):  # window2/rank0.json.gz, restart1/window1/rank0.json.gz
            window = int(found[1])
    return restart, window


def _name(attempt: Attempt) -> str:
    restart, window = attempt
    if not window:
        return f"restart {restart}" if restart else "the first attempt"
    return f"window {window}" + (f" of restart {restart}" if restart else "")


def _path(attempt: Attempt) -> str:
    restart, window = attempt
    parts = [f"restart{restart}"] * bool(restart) + [f"window{window}"] * bool(window)
    return "/".join(parts) or "rank*"
