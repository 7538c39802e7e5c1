"""What each rank computes per step, beside the median of the others: by operation and shape, all ranks at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.table import Array, Mask, Table, Times
from gpuscope.trace.naming.kernel_categories import ELEMENTWISE, NORMALISATION, OPTIMIZER, SOFTMAX, kernel_category
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

SAME_WORK = 0.05
"""Counts and shapes that differ by less in all are the same work."""
ON_BATCHES = (NORMALISATION, SOFTMAX, ELEMENTWISE)
"""Kernels that the device's memory limits, as it does those of an optimizer, and that take longer on a longer batch."""
MOST = 0.5
"""Share of its lateness that a reason must explain, and of a difference in work that shapes or counts must."""


def medians_of_others(values: Array) -> Array:
    """For each of at least two values the median of all the others, shape (n,): one sort instead of one per value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.empty(len(values), np.int64)
    place[order] = np.arange(len(values))
    # Without the value at a place, those behind it move up by one.
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    return np.asarray((ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2)


@dataclass(frozen=True)
class Longer:
    """Per rank, ns per step that it computes longer than its median peer."""

    slower: Array
    """On the same shapes."""
    more: Array
    """For more or larger work."""
    known: Array
    """Of both, in absolute terms: where shapes or counts are known well enough to tell one from the other."""
    differs: Array
    """By how much its operations take longer or shorter than its median peer's, added up."""
    worst: Times
    """Code of the operation of which the rank has most beyond its median peer."""
    count: Array
    """How often it does that, per step."""
    usual: Array
    """How often its median peer does."""
    alone: Mask
    """Whether no other rank does it at all."""

    def told_apart(self, place: int) -> bool:
        """Whether shapes or counts are known well enough, for a rank, to tell slower work from more of it."""
        return bool(self.known[place] >= MOST * max(self.differs[place], 1.0))


@dataclass(frozen=True)
class _Shapes:
    """One operation: the ranks that do it on each shape, by place, and what they do per step."""

    operation: int
    place: Times
    count: Array
    spent: Array
    bounds: list[int]
    """Where each shape begins in the columns, and their end."""
    sized: bool
    """Whether the shapes are all recorded."""


class WorkOfRanks:
    """The table `work` of a run, by operation; of at most one row per rank, operation and shape."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.ranks: Times = distinct_values(self._table["rank"])
        """Those whose work is recorded, ascending; the place of a rank is that among these."""
        self._largest: dict[int, tuple[Times, Times]] = {}

    def place(self, rank: int) -> int | None:
        """The place of a rank; None where its work is not recorded."""
        found = int(np.searchsorted(self.ranks, rank))
        return found if found < len(self.ranks) and self.ranks[found] == rank else None

    def _operations(self) -> Iterator[_Shapes]:
        table = self._table
        place = np.searchsorted(self.ranks, table["rank"])
        operation, dims = table["operation"], table["dims"]
        order = np.lexsort((place, dims, operation))
        place, operation, dims = place[order], operation[order], dims[order]
        count, spent = (table[name][order] / table["steps"][order] for name in ("count", "dur"))
        new = np.flatnonzero(np.diff(operation, prepend=operation[:1] - 1))
        shape = np.flatnonzero((np.diff(operation, prepend=NO_NAME) != 0) | (np.diff(dims, prepend=NO_NAME - 1) != 0))
        for low, high in zip(new.tolist(), [*new[1:].tolist(), len(order)], strict=True):
            own = shape[np.searchsorted(shape, low) : np.searchsorted(shape, high)] - low
            yield _Shapes(
                int(operation[low]),
                place[low:high],
                count[low:high],
                spent[low:high],
                [*own.tolist(), high - low],
                bool((dims[low:high] != NO_NAME).all()),
            )

    @cached_property
    def longer(self) -> Longer:
        """Of each rank beside the others; of at least two ranks."""
        size = len(self.ranks)
        slower, more, known, differs, count_of_worst, usual_of_worst = (np.zeros(size) for _ in range(6))
        most, worst = np.full(size, -np.inf), np.full(size, NO_NAME, np.int64)
        alone = np.zeros(size, np.bool_)
        for one in self._operations():
            count, spent = (np.bincount(one.place, weights=of, minlength=size) for of in (one.count, one.spent))
            usual = medians_of_others(count)
            excess = spent - medians_of_others(spent)
            same = _on_same_shapes(one, size)
            slower += same
            more += excess - same
            differs += np.abs(excess)
            if one.sized:
                known += np.abs(excess)
            else:  # counts tell what more calls take; calls that take longer may be of larger shapes
                counted = np.abs(count - usual) > SAME_WORK * np.maximum(count, usual)
                known += np.where(counted, np.abs(excess - same), 0.0)
            does = np.zeros(size, np.bool_)
            does[one.place] = True
            larger = does & (excess > most)
            most[larger], worst[larger] = excess[larger], one.operation
            count_of_worst[larger], usual_of_worst[larger] = count[larger], usual[larger]
            alone[larger] = does.sum() == 1
        return Longer(slower, more, known, differs, worst, count_of_worst, usual_of_worst, alone)

    def beside_optimizer(self, names: NamePool, place: int) -> tuple[float, float] | None:
        """By what share the kernels on its batches and those of its optimizer take a rank longer than its median peer;
        None where there are none of either."""
        table = self._table
        own = np.searchsorted(self.ranks, table["rank"])
        kinds, kind = np.unique(table["operation"], return_inverse=True)
        category = np.array([kernel_category(names[code]) for code in kinds.tolist()])[kind]
        longer = []
        for wanted in (ON_BATCHES, (OPTIMIZER,)):
            spent = np.where(np.isin(category, wanted), table["dur"] / table["steps"], 0.0)
            of_rank = np.bincount(own, spent, len(self.ranks))
            usual = float(medians_of_others(of_rank)[place])
            if usual <= 0:
                return None
            longer.append(float(of_rank[place]) / usual - 1)
        return longer[0], longer[1]

    def elements(self, operation: int, rank: int) -> tuple[int, int]:
        """Elements of the largest inputs of an operation on a rank, and the median of those of the others; 0 where
        they are not recorded."""
        if operation not in self._largest:
            table = self._table
            rows = np.flatnonzero((table["operation"] == operation) & (table["dims"] != NO_NAME))
            largest = np.full(len(self.ranks), NA, np.int64)
            np.maximum.at(largest, np.searchsorted(self.ranks, table["rank"][rows]), table["elements"][rows])
            self._largest[operation] = np.flatnonzero(largest != NA), largest[largest != NA]
        places, largest = self._largest[operation]
        others = self.ranks[places] != rank
        mine = largest[~others]
        return (
            int(mine[0]) if len(mine) else 0,
            int(np.median(largest[others])) if bool(others.any()) else 0,
        )


def _on_same_shapes(one: _Shapes, size: int) -> Array:
    """ns per step that each rank spends longer on what it does than the median of the others that do the same."""
    same = np.zeros(size)
    for low, high in zip(one.bounds[:-1], one.bounds[1:], strict=True):
        if high - low > 1:
            count, spent = one.count[low:high], one.spent[low:high]
            np.add.at(same, one.place[low:high], spent - count * medians_of_others(spent / count))
    return same
