"""What an even split, and what more micro-batches, would give: the recorded computations replayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from gpuscope.analyzers.facts.flushes import Flush
from gpuscope.analyzers.pipelines.ideal_layout import Key, Order, even, order_of, placed

MORE = 2
"""So many times the micro-batches."""


@dataclass(frozen=True)
class Replayed:
    """One flush replayed with messages in no time, in ns."""

    flush: Flush
    as_it_was: float
    evened: float
    even_places: Mapping[Key, tuple[float, float]]
    """Start and end of each computation if the split were even, from when the pipeline begins to fill."""
    busiest: float
    """What the stage with the most to compute computes."""

    @property
    def filling(self) -> float:
        """What filling and draining add to the busiest stage's computing."""
        return self.as_it_was - self.busiest

    @property
    def with_more(self) -> float:
        """With `MORE` times the micro-batches, each that much smaller: filling and draining shrink with them, the
        computing stays (Narayanan et al. 2021, 2.2.1, for stages that need not be equal)."""
        return self.busiest + self.filling / MORE


def replays(flushes: Sequence[Flush]) -> list[Replayed]:
    """Each flush replayed; without those whose order can't be followed."""
    alike: dict[Order, list[Flush]] = defaultdict(list)
    for flush in flushes:
        alike[order_of(flush)].append(flush)
    return [one for order, own in alike.items() for one in _replayed(order, own)]


def _replayed(order: Order, flushes: Sequence[Flush]) -> Iterator[Replayed]:
    """Flushes of one order, all at once."""
    took = np.array([[one.duration for own in flush.stages for one in own] for flush in flushes], np.float64)
    means = [even(flush) for flush in flushes]
    keys = [key for own in order for key in own]
    as_it_was = placed(order, {key: took[:, at] for at, key in enumerate(keys)})
    evened = placed(order, {key: np.array([mean[key[0]] for mean in means]) for key in keys})
    if as_it_was is None or evened is None:
        return
    lengths, even_lengths = as_it_was.length, evened.length
    for at, flush in enumerate(flushes):
        places = {key: (float(evened.start[key][at]), float(evened.end[key][at])) for key in keys}
        busiest = max(sum(one.duration for one in own) for own in flush.stages)
        yield Replayed(flush, float(lengths[at]), float(even_lengths[at]), places, busiest)


@dataclass(frozen=True)
class Means:
    """Means over steps, in ns."""

    as_it_was: float
    evened: float
    filling: float
    with_more: float
    step: float
    """Length of a step."""

    def factor(self, after: float) -> float:
        """Step time after / before, if the pipeline's part of it took `after`; never above 1."""
        return min(1.0, 1 - (self.as_it_was - after) / self.step)


def means(found: Sequence[Replayed], step: float) -> Means:
    """Means over steps of the median over pipelines: a slow rank in one of them is no matter of split or schedule.
    `found` holds all flushes of the steps."""
    values: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0] * 4))
    for one in found:
        own = values[one.flush.step][one.flush.pipeline]
        for place, ns in enumerate((one.as_it_was, one.evened, one.filling, one.with_more)):
            own[place] += ns
    medians = [[median(column) for column in zip(*of_step.values(), strict=True)] for of_step in values.values()]
    as_it_was, evened, filling, with_more = (fmean(column) for column in zip(*medians, strict=True))
    return Means(as_it_was, evened, filling, with_more, step)
