"""The small part of each trace, made where it was recorded: `gpuscope reduce` when the command has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuscope.errors import UsageError


def check_apart(parts: Path, folder: Path) -> None:
    """Raise `UsageError` where the parts would lie inside the run folder: analysed with it, each rank would be there
    twice."""
    if folder.resolve() in (parts.resolve(), *parts.resolve().parents):
        raise UsageError(
            f"--reduce {parts} is inside the run folder", hint="name a folder beside it, such as one all nodes share"
        )


def reduce_run(folder: Path, parts: Path) -> bool:
    """Write the parts of a run folder's traces into `parts`; whether that was done. Says on stderr what it did.

    A process of its own, since the recorder stands on no analysis, and memory that the analysis takes is gone with it.
    """
    command = [sys.executable, "-m", "gpuscope", "reduce", str(folder), "-o", str(parts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print("gpuscope:", done.stdout.strip() or f"not reduced; the traces are in {folder}", file=sys.stderr)
    return done.returncode == 0
