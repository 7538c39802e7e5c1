"""Where the times themselves show that another choice is faster: no model is asked.

Two things need no more than the times of one run. A message can't need longer than a larger one of the same operation
does: where it did, what carried the larger one would have carried it too, in at most that time. And no message needs
longer than its parts sent one after the other: where bus bandwidth drops at a size, what carried a smaller one would
have taken that many times its time. Runs beside one another (files of nccl-tests, communicators of the Inspector) are
compared size by size.

Times spread. A difference counts if it exceeds three standard errors of what was timed often enough to have them, and
otherwise what times of one and the same choice are out of order by in this run, at least `UNSURE`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import sqrt

from gpuscope.analyzers.nccl.measured.timed_series import TRACE, Series
from gpuscope.averages import median
from gpuscope.collective_costs.nccl_model import Choice
from gpuscope.schema.nccl_sections import CrossoverEntry
from gpuscope.when_used import dataclass

UNSURE = 0.1
"""Relative difference of two times that a few iterations of nccl-tests spread by."""
LEAST_GAIN = 0.02
"""Relative difference that is worth a setting, however well it is known."""
ENOUGH = 8
"""Timings of one size that have a standard error."""
ERRORS = 3.0
"""A difference is real from so many standard errors on: 1 % chance per pair, with dozens of pairs in a run."""


@dataclass(frozen=True)
class Point:
    """The typical time of one size, ns, with its relative standard error (None: timed too seldom) and NCCL's choice."""

    nbytes: int
    ns: float
    error: float | None
    choice: Choice | None


def points(series: Series) -> list[Point]:
    """By size; those whose times include waiting, or NCCL's logging, left out."""
    of: dict[int, list[int]] = defaultdict(list)
    for index, nbytes in enumerate(series.bytes):
        if (
            nbytes
            and series.dur[index] > 0
            and nbytes not in series.waiting
            and not (series.lower_bound or series.logged)
        ):
            of[nbytes].append(index)
    return [_point(series, nbytes, own) for nbytes, own in sorted(of.items())]


def _point(series: Series, nbytes: int, own: Sequence[int]) -> Point:
    times = sorted(series.dur[index] for index in own)
    typical = float(median(times))
    if len(times) < ENOUGH:
        return Point(nbytes, typical, None, series.chosen(own))
    spread = 1.4826 * median(abs(time - typical) for time in times)
    # The median of a normal sample has 1.25 times the mean's standard error.
    return Point(nbytes, typical, 1.25 * spread / sqrt(len(times)) / typical, series.chosen(own))


def crossovers(found: Sequence[Series]) -> list[CrossoverEntry]:
    """Within each series, then between series of different runs."""
    entries = [entry for series in found for entry in _within(series)]
    same: dict[tuple[str, str, int], list[Series]] = defaultdict(list)
    for series in found:
        if series.run is not None:
            same[series.tool, series.op, series.group_size].append(series)
    for runs in same.values():
        entries += _between(runs)
    return entries


def _within(series: Series) -> Iterator[CrossoverEntry]:
    own = points(series)
    if series.tool == TRACE:
        # Of a job's own transfers, compute beside them may be why: only a known choice on both sides speaks.
        own = [point for point in own if point.choice is not None and point.error is not None]
    noise = _noise(own)
    for place, small in enumerate(own):
        later = [one for one in own[place + 1 :] if _may_differ(small, one)]
        fastest = min(later, key=lambda one: one.ns, default=None)
        if fastest is not None and small.ns * (1 - _margin(small, fastest, noise)) > fastest.ns:
            yield _entry(series, "larger_is_faster", small, fastest, fastest.ns)
    for small, large in pairwise(own):
        parts = -(-large.nbytes // small.nbytes)
        bound = parts * small.ns
        if _may_differ(small, large) and large.ns * (1 - _margin(small, large, noise)) > bound:
            yield _entry(series, "bandwidth_drops", large, small, bound)


def _may_differ(one: Point, other: Point) -> bool:
    """Times of one and the same choice that are out of order are noise: no setting changes them."""
    return one.choice is None or other.choice is None or _name(one.choice) != _name(other.choice)


def _name(choice: Choice) -> tuple[str, str]:
    return choice.algorithm, choice.protocol


def _noise(own: Sequence[Point]) -> float:
    """By how much times are out of order where nothing but chance can be why: sizes of the same choice."""
    disorder = [1 - large.ns / small.ns for small, large in combinations(own, 2) if not _may_differ(small, large)]
    return max([UNSURE, *disorder])


def _margin(one: Point, other: Point, noise: float) -> float:
    if one.error is None or other.error is None:
        return noise
    return max(LEAST_GAIN, ERRORS * sqrt(one.error**2 + other.error**2))


def _between(runs: Sequence[Series]) -> Iterator[CrossoverEntry]:
    """For each run and size, the run that is fastest there."""
    by_run = [(series, {point.nbytes: point for point in points(series)}) for series in runs]
    noise = max((_noise(list(own.values())) for _, own in by_run), default=UNSURE)
    for series, own in by_run:
        for nbytes, point in own.items():
            others = [(other, at[nbytes]) for other, at in by_run if other is not series and nbytes in at]
            best = min(others, key=lambda pair: pair[1].ns, default=None)
            if best is not None and point.ns * (1 - _margin(point, best[1], noise)) > best[1].ns:
                yield {**_entry(series, "other_run", point, best[1], best[1].ns), "faster_run": best[0].run}


def _entry(series: Series, kind: str, slow: Point, fast: Point, bound: float) -> CrossoverEntry:
    now, then = slow.choice, fast.choice
    return {
        "kind": kind,
        "tool": series.tool,
        "run": series.run,
        "faster_run": None,
        "op": series.op,
        "group": series.group,
        "group_size": series.group_size,
        "bytes": slow.nbytes,
        "dur_ns": round(slow.ns),
        "at_most_ns": round(bound),
        "like_bytes": fast.nbytes,
        "algorithm": now.algorithm if now else None,
        "protocol": (now.protocol or None) if now else None,
        "faster_algorithm": then.algorithm if then else None,
        "faster_protocol": (then.protocol or None) if then else None,
    }
