"""One recording as tuning sees it: its step time with its spread, its first losses, and what went wrong.

The step time is the median over blocks of steps of their mean: the mean of a block holds whatever comes round every few
steps (a batch of each loader worker), which a median of single steps would leave out, and the median over blocks leaves
out a single hiccup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from gpuscope.instrumented_runtime.record.files.manifest import RankPart
from gpuscope.welch import Sample, sample

WARM_UP = 10
"""Steps that are not judged: caches, allocators and buckets settle, compilers compile."""
LEAST_WARM_UP = 2
BLOCK, LEAST_BLOCKS = 8, 5

Failed = Literal["hung", "failed", "no_steps", "not_applied", "budget"]


@dataclass(frozen=True)
class Run:
    """A recording that has ended, in whichever way."""

    folder: Path
    seconds: float = 0.0
    step: Sample | None = None
    """Of the logarithm of its step time in ns."""
    losses: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """The first ones by rank."""
    failed: Failed | None = None
    detail: str = ""
    """What it said last, or for how long nothing was heard."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By the name of each change that no rank could make, what it was and why not. Its step is that of the others."""
    beside_profiler: bool = False
    """Whether its steps are those behind the profiler's: more hooks stay beside them than in other runs."""


def queued(parts: Sequence[RankPart]) -> int:
    """Batches that loader workers hold ready at most: what is taken from there while it empties is no steady step."""
    seen = [part.facts.get("settings") or {} for part in parts]
    workers = max((_largest(one.get("dataloader.num_workers")) for one in seen), default=0)
    return workers * max((_largest(one.get("dataloader.prefetch_factor")) for one in seen), default=0)


def step_of(parts: Sequence[RankPart], profiled: int = 0) -> Sample | None:
    """The logarithm of the step time of a run, over its blocks; of several ranks the slowest's. None of too few.
    The first `profiled` steps and what the profiler's end held up count in no case."""
    ranks = [[float(ns) for ns in part.facts.get("step_ns") or ()] for part in parts]
    count = min((len(steps) for steps in ranks), default=0)
    warm_up = max(min(max(WARM_UP, profiled) + queued(parts), max(count // 2, LEAST_WARM_UP)), profiled)
    blocks = [_blocks(steps[warm_up:count]) for steps in ranks]
    slowest = [max(of_ranks) for of_ranks in zip(*blocks, strict=True)]
    return sample([math.log(max(ns, 1.0)) for ns in slowest])


def losses_of(parts: Sequence[RankPart]) -> dict[int, list[float]]:
    """The first losses of each rank that told any."""
    return {part.rank: [_number(one) for one in told] for part in parts if (told := part.facts.get("losses"))}


def step_ns(runs: Sequence[Run]) -> int:
    """The step time of runs with the same settings, ns."""
    return round(math.exp(fmean(levels(runs))))


def better_known(runs: Sequence[Run], run: Run) -> list[Run]:
    """Runs with the same settings and one more. Hooks beside steps behind the profiler's only add to them: they count
    where nothing else is known, or where a run of its own took longer, which had to read files first, say."""
    every = [*runs, run]
    shortest = min(levels([one for one in every if not one.beside_profiler]), default=math.inf)
    return [one for one in every if not one.beside_profiler or levels([one])[0] < shortest]


def levels(runs: Sequence[Run]) -> list[float]:
    """Each run's step time, as a logarithm."""
    return [run.step.median for run in runs if run.step is not None]


def _blocks(steps: Sequence[float]) -> list[float]:
    size = min(BLOCK, max(len(steps) // LEAST_BLOCKS, 1))
    return [fmean(steps[at : at + size]) for at in range(0, len(steps) - size + 1, size)]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _largest(rows: Any) -> int:
    """The largest whole number among the values of a setting."""
    return max((int(one["value"]) for one in rows or () if str(one.get("value")).isdigit()), default=0)
