"""Attempts of a job: after a failure torchrun starts all of its ranks again, into the same run folder.

The first attempt records into the run folder itself, the n-th restart into `restartN/`. Ranks of
two attempts never ran together, so that an analysis takes one attempt: the last one that left a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gpuscope.sources.run_manifest import MANIFEST, recorded_traces

_RESTART = re.compile(r"restart(\d+)")


def last_attempt(folder: Path, files: list[Path]) -> list[Path]:
    """Of the traces below a run folder, those of the last attempt that left any; of another folder, all."""
    if not (folder / MANIFEST).is_file():
        return files
    last = max((_attempt(folder, file) for file in files), default=0)
    return [file for file in files if _attempt(folder, file) == last]


def left_out(folder: Path, read: Iterable[Path]) -> str:
    """What to say of the attempts of a run that recorded traces too and were not read; empty if there are none."""
    taken = {_attempt(folder, path.absolute()) for path in read if path.absolute().is_relative_to(folder)}
    others = sorted({_attempt(folder, folder / name) for name in recorded_traces(folder)} - taken)
    if not taken or not others:
        return ""
    named = ", ".join(_name(attempt) for attempt in others)
    where = f"{folder.name}/restart{others[0]}" if others[0] else f"{folder.name}/rank*"
    return (
        f"{folder.name}: torchrun started the job again; this is {' and '.join(map(_name, sorted(taken)))}. Left out: "
        f"{named}; name its traces ({where}) to analyse it"
    )


def _attempt(folder: Path, file: Path) -> int:
    """0 for the first attempt, n for the n-th restart."""
    parts = file.absolute().relative_to(folder.absolute()).parts
    for part in parts[:2]:  # restart1/rank0.json.gz, nsys/restart1.rep.0.nsys-rep
        if found := _RESTART.match(part):
            return int(found[1])
    return 0


def _name(attempt: int) -> str:
    return f"restart {attempt}" if attempt else "the first attempt"
