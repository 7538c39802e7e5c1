"""The course of step times: warm-up, long steps, shifts and growth, told apart from what healthy jobs' steps do.

Healthy steps are not alike: their noise has heavy tails, goes in waves, alternates between two lengths, and single
steps are long. What is called a shift must separate the steps before it from those after it, all at once and for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.roles.role_replay import ends_of_line, rises
from gpuscope.trace.table import Array

LONG = 0.1
"""Above the median by this part, and by three robust spreads, a step is long (definitions: «steady state»)."""
MOST_LONG = 0.2
"""Of the steps: more of them are no exceptions."""
LEAST_SHIFT = 0.05
"""Of the step: smaller changes are within what machines differ by from hour to hour."""
BLOCKS = 64
"""Steps are put together to about so many medians on either side of a shift: noise that goes in waves does not
average out within a few steps."""
FEWEST = 6
"""Steps on either side of a shift."""
APART = 0.95
"""Of all pairs of a block before and a block after it, those in which the later is longer (or shorter)."""
BEYOND = 4.0
"""Times the spread of blocks' medians."""
AT_ONCE = 0.6
"""Of a shift, what the steps right before and right after it show; growth shows a small part there."""
LEAST_GROWTH = 1.1
"""Times as long at the end as at the beginning."""


@dataclass(frozen=True)
class Shift:
    """`at` is the index of the first step of the new pace."""

    at: int
    before: float
    after: float


@dataclass
class Course:
    """What a sequence of step times shows; indices are those of the sequence."""

    warmup: int = 0
    long: Array = field(default_factory=lambda: np.empty(0, np.int64))
    shifts: list[Shift] = field(default_factory=list)
    steady: Array = field(default_factory=lambda: np.empty(0, np.int64))
    """After warm-up and the last shift, without long steps."""
    median: float = 0.0
    growth: tuple[float, float] | None = None
    """Where the line through the steps begins and ends, where they take ever longer."""


def course_of(values: Array) -> Course:
    """The course of step times in order."""
    count = len(values)
    if not count:
        return Course()
    values = values.astype(np.float64)
    warmup = _warmup(values)
    found = Course(warmup)
    body = values[warmup:]
    cuts = shifts_of(body)
    edges = [0, *(cut.at for cut in cuts), len(body)]
    found.shifts = [Shift(cut.at + warmup, cut.before, cut.after) for cut in cuts]
    long = [_long(body[low:high]) + low + warmup for low, high in pairwise(edges)]
    found.long = np.concatenate(long)
    last = np.arange(edges[-2] + warmup, count)
    found.steady = np.setdiff1d(last, found.long)
    if not len(found.steady):
        found.steady = last
    found.median = float(np.median(values[found.steady]))
    found.growth = growth_of(values[found.steady])
    return found


def _warmup(values: Array) -> int:
    """The leading steps that are long, by the later half of all."""
    count = len(values)
    if count < 3:
        return 0
    middle, spread = _middle(values[count // 2 :])
    limit = middle + max(3 * spread, LONG * middle) if count >= 8 else 1.3 * middle
    # A leading run that lasts longer than a fifth of all steps is another pace, no warm-up.
    run = int(np.argmin(values > limit)) if (values > limit).any() and not (values > limit).all() else 0
    return run if run <= max(count // 5, 1) else 0


def _middle(values: Array) -> tuple[float, float]:
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))


def _long(values: Array) -> Array:
    """Indices of steps that are long beside the others, where they are exceptions."""
    if len(values) < 4:
        return np.empty(0, np.int64)
    middle, spread = _middle(values)
    long = np.flatnonzero(values > middle + max(3 * spread, LONG * middle))
    if len(long) <= MOST_LONG * len(values):
        return long
    # Steps of several lengths: only what is twice the longest usual one stands out.
    return np.flatnonzero(values > 2 * np.percentile(values, 90))


def shifts_of(values: Array, least: int = FEWEST, offset: int = 0, depth: int = 0) -> list[Shift]:
    """Where the pace changes for good, in order."""
    count = len(values)
    if count < 2 * least or depth > 6:
        return []
    at = _split(values, least)
    if at is None:
        return []
    shift = _judged(values, at, least)
    if shift is None:
        return []
    before = shifts_of(values[:at], least, offset, depth + 1)
    after = shifts_of(values[at:], least, offset + at, depth + 1)
    return [*before, Shift(offset + at, shift[0], shift[1]), *after]


def _split(values: Array, least: int) -> int | None:
    """The place that parts the ranks of the steps best."""
    count = len(values)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(count, np.float64)
    ranks[order] = np.arange(count)
    sums = np.cumsum(ranks - (count - 1) / 2)[:-1]
    places = np.arange(1, count)
    # In the middle of a sequence chance moves the sum most: the weight makes all places alike.
    weight = np.sqrt(places * (count - places))
    score = np.abs(sums) / weight
    score[: least - 1] = 0
    score[count - least :] = 0
    best = int(np.argmax(score))
    return best + 1 if score[best] > 0 else None


def _judged(values: Array, at: int, least: int) -> tuple[float, float] | None:
    """The medians before and after a place, if all that makes it a shift is there."""
    one, other = values[:at], values[at:]
    before, after = float(np.median(one)), float(np.median(other))
    change = abs(after - before)
    if change < LEAST_SHIFT * min(before, after):
        return None
    left, right = _blocks(one), _blocks(other)
    higher = float(np.mean(right[:, None] > left[None, :]))
    if max(higher, 1 - higher) < APART:
        return None
    spread = max(_middle(left)[1], _middle(right)[1], _wave(one), _wave(other))
    if change < BEYOND * spread:
        return None
    near = max(min(len(one), len(other), max(least, len(values) // 20)), 1)
    close_before, close_after = float(np.median(one[-near:])), float(np.median(other[:near]))
    if abs(close_after - close_before) < AT_ONCE * change or (close_after > close_before) != (after > before):
        return None
    return before, after


def _blocks(values: Array) -> Array:
    size = max(min(5, len(values) // 3), -(-len(values) // BLOCKS), 1)
    whole = len(values) // size * size
    return np.median(values[:whole].reshape(-1, size), axis=1) if whole else np.median(values, keepdims=True)


def _wave(values: Array) -> float:
    """The spread of long stretches' medians: noise that is alike from step to step moves these too."""
    if len(values) < 4 * FEWEST:
        return 0.0
    parts = [float(np.median(part)) for part in np.array_split(values, 8 if len(values) >= 16 * FEWEST else 4)]
    return float(np.std(parts))


def growth_of(values: Array) -> tuple[float, float] | None:
    """Where the line through the steps begins and ends; None where they do not take ever longer."""
    if len(values) < 12:
        return None
    blocks = _blocks(values)
    if len(blocks) < 8 or not rises(blocks):
        return None
    first, last = ends_of_line(blocks)
    return (first, last) if last >= LEAST_GROWTH * first else None


def period_of(numbers: Array) -> int | None:
    """Steps from one long step to the next, where they return regularly: at least three times."""
    if len(numbers) < 3:
        return None
    gaps = np.diff(np.sort(numbers))
    gaps = gaps[gaps > 0]
    if len(gaps) < 2:
        return None
    period = int(np.median(gaps))
    if period < 2:
        return None
    off = np.abs(gaps - np.rint(gaps / period) * period)
    regular = (off <= max(1, 0.02 * period)) & (gaps >= 0.9 * period)
    return period if regular.mean() >= 0.7 else None
