"""Recordings of the same ranks at several times of one run, a folder each (torchtitan's `iteration_10/` and so on).

They are windows of one run where their steps go on from one to the next; else they may be different runs, and are not
chosen among. Definitions: «Ranks of a file and of a folder».
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gpuscope.errors import InputError, UsageError
from gpuscope.sources import stream

_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)")
_STEP = re.compile(rb"ProfilerStep#(\d+)")
_TEXTS = (".json", ".json.gz")

Rank = Callable[[Path], int | None]


@dataclass(frozen=True)
class Windows:
    """The windows of a run below a folder."""

    folder: Path
    files: dict[int, list[Path]]
    """By the number in their folder's name."""
    names: dict[int, str]

    def chosen(self, asked: int | None, ranks: Rank) -> int:
        """The one asked for; else the latest that has all ranks, or as many as any. Raises `UsageError` for none."""
        if asked is not None:
            if asked not in self.files:
                there = ", ".join(map(str, sorted(self.files)))
                raise UsageError(f"{self.folder}: has no window {asked}", hint=f"its windows: {there}")
            return asked
        return max(self.files, key=lambda number: (len({ranks(path) for path in self.files[number]}), number))


def windows(folder: Path, files: Sequence[Path], ranks: Rank) -> Windows | None:
    """The windows that the traces below a folder are; None where they are none."""
    by_number: dict[int, list[Path]] = defaultdict(list)
    names: dict[int, str] = {}
    for path in files:
        inner = path.relative_to(folder).parts
        found = _NUMBERED.fullmatch(inner[0]) if len(inner) > 1 else None
        if found is None:
            return None
        by_number[int(found["number"])].append(path)
        names[int(found["number"])] = inner[0]
    if len(by_number) < 2 or len({re.sub(r"\d+", "#", name) for name in names.values()}) > 1:
        return None
    common = set.intersection(*({ranks(path) for path in own} for own in by_number.values())) - {None}
    if not common:  # folders of nodes, say, each with ranks of its own
        return None
    rank = min(one for one in common if one is not None)
    steps = [_steps(next(path for path in by_number[number] if ranks(path) == rank)) for number in sorted(by_number)]
    goes_on = all(one and other and max(one) < min(other) for one, other in pairwise(steps))
    return Windows(folder, dict(by_number), names) if goes_on else None


def _steps(path: Path) -> set[int]:
    """Numbers of the profiler's steps in a trace of torch.profiler; none of another."""
    found: set[int] = set()
    if not path.name.endswith(_TEXTS):
        return found
    try:
        left = b""
        for block in stream.blocks(path):
            text = left + block
            found.update(int(number[:18]) for number in _STEP.findall(text))
            left = text[-64:]
    except (InputError, stream.TruncatedError):
        pass  # reading it says what is wrong
    return found
