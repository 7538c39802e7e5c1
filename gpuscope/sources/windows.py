"""Recordings of the same ranks at several times of one run: a folder each (torchtitan's `iteration_10/` and so on), or
several files of a rank side by side (a schedule of torch.profiler that repeats).

They are windows of one run where their steps go on from one to the next, or where they are of one process; else they
may be different runs, and are not chosen among. Definitions: «Ranks of a file and of a folder».
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from pathlib import Path

from gpuscope import when_used
from gpuscope.errors import InputError, UsageError
from gpuscope.sources import stream
from gpuscope.when_used import dataclass

_NUMBERED = when_used.pattern(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)")
_STEP = when_used.pattern(rb"ProfilerStep#(\d+)")
_TEXTS = (".json", ".json.gz")
_HANDLER = when_used.pattern(r"(?P<process>.+_\d+)\.\d{10,}\.pt\.trace\.json(\.gz)?")
"""Files of torch's `tensorboard_trace_handler`: host, process id, time of writing."""
_PROCESS = when_used.pattern(
    rb'(?:"cat"\s*:\s*"(?:cpu_op|user_annotation|cuda_runtime)"|"gpuscope_digest":)[^{}]*?"pid"\s*:\s*(\d+)'
)

Rank = Callable[[Path], int | None]


@dataclass(frozen=True)
class Windows:
    """The windows of a run below a folder."""

    folder: Path
    files: dict[int, list[Path]]
    """By the number in their folder's name, else 1, 2 … as they were recorded."""
    names: dict[int, str]

    def chosen(self, asked: int | None, ranks: Rank) -> int:
        """The one asked for; else the latest that has all ranks, or as many as any. Raises `UsageError` for none."""
        if asked is not None:
            if asked not in self.files:
                there = ", ".join(map(str, sorted(self.files)))
                raise UsageError(f"{self.folder}: has no window {asked}", hint=f"its windows: {there}")
            return asked
        return max(self.files, key=lambda number: (len({ranks(path) for path in self.files[number]}), number))


_LOOP = when_used.pattern(r"\b(train(ing)?|val(idation)?|eval(uation)?|test|predict(ion)?)(_step|_loop|_epoch)?\b")
"""What frameworks call their loops in files' names, as whole words between points (Lightning: `….training_step.…`)."""
_TRAINS = when_used.pattern(
    rb"Optimizer\.(?:step|zero_grad)#|autograd::engine::evaluate_function|aten::_fused_(?:adam|sgd)|optimizer_step"
)
"""What only a loop that trains records."""


@dataclass(frozen=True)
class Loops:
    """Recordings of several loops of the same processes, each of which counts its own steps."""

    read: str
    """What the recordings that hold the optimizer are of."""
    others: tuple[str, ...]
    gone: frozenset[Path]
    """The files of the other loops."""
    example: str


def training_loop(files: Sequence[Path], ranks: Rank) -> Loops | None:
    """Recordings that train beside others of the same processes that do not (training beside validation); None where
    they are not so."""
    by_rank: dict[object, list[Path]] = defaultdict(list)
    for path in files:
        if not path.name.endswith(_TEXTS):
            return None
        rank = ranks(path)
        by_rank[rank if rank is not None else _process(path)].append(path)
    if not by_rank or None in by_rank or any(len(own) < 2 for own in by_rank.values()):
        return None
    for own in by_rank.values():
        processes = {_process(path) for path in own}
        if len(processes) > 1 or None in processes:
            return None  # runs of their own
    training = {path for path in files if _trains(path)}
    gone = frozenset(set(files) - training)
    if not gone or any(len(training.intersection(own)) in (0, len(own)) for own in by_rank.values()):
        return None
    named = {path: _loop_of(path) for path in sorted(files)}
    read = sorted({named[path] for path in training})
    others = sorted({named[path] for path in gone})
    return Loops(" and ".join(read), tuple(others), gone, min(path.name for path in gone))


def _loop_of(path: Path) -> str:
    """What a file's name calls its loop, else the name."""
    found = next((part for part in path.name.split(".") if _LOOP.fullmatch(part.lower())), None)
    return found or path.name


def _trains(path: Path) -> bool:
    left = b""
    try:
        for block in stream.blocks(path):
            text = left + block
            if _TRAINS.search(text):
                return True
            left = text[-64:]
    except (InputError, stream.TruncatedError):
        pass  # reading it says what is wrong
    return False


def windows(files: Sequence[Path], ranks: Rank) -> Windows | None:
    """The windows that the traces of a folder are; None where they are none."""
    folder = Path(os.path.commonpath([path.parent for path in files]))
    if all(path.parent == folder for path in files):
        return _side_by_side(folder, files, ranks)
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


def _side_by_side(folder: Path, files: Sequence[Path], ranks: Rank) -> Windows | None:
    """Files of one folder, as many of each rank."""
    own: dict[object, list[Path]] = defaultdict(list)
    for path in sorted(files, key=lambda path: (len(path.name), path.name)):
        rank = ranks(path)
        own[rank if rank is not None else _process(path)].append(path)
    counts = {len(of_one) for of_one in own.values()}
    if len(counts) != 1 or counts == {1} or None in own:
        return None
    for of_one in own.values():
        steps = {path: _steps(path) for path in of_one}
        if any(one & other for one, other in combinations(steps.values(), 2)):
            return None  # runs of their own
        processes = {_process(path) for path in of_one}
        if not all(steps.values()) and (len(processes) > 1 or None in processes):
            return None  # nothing says that they are of one run
        of_one.sort(key=lambda path, first=steps: min(first[path], default=0))  # type: ignore[misc]
    by_number = {number: list(at_once) for number, at_once in enumerate(zip(*own.values(), strict=True), 1)}
    return Windows(folder, by_number, {number: at_once[0].name for number, at_once in by_number.items()})


def _process(path: Path) -> str | None:
    """The process that a trace of torch.profiler or a digest is of, by its name, else by its beginning."""
    if named := _HANDLER.fullmatch(path.name):
        return named["process"]
    try:
        found = _PROCESS.search(stream.head(path))
    except InputError:
        return None
    return found[1].decode() if found else None


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
