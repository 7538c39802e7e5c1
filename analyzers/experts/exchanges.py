"""Passes through a layer of experts: tokens sent to the ranks of their experts, computed there, and sent back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.analyzers.collectives.stragglers import judged_rows
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.trace.columns.table import Array, Table, Times
from gpuscope.trace.schema import NA

_COUNTS = ("long", "int", "short", "byte", "bool", "uint")
"""Types of arrays that hold how many tokens come, not the tokens."""


@dataclass(frozen=True)
class Exchange:
    """One pass, forward or backward, of one group in one step. Arrays have one entry per rank."""

    group: int
    step: int
    number: int
    """Within the step, from 0: the same number is the same layer and direction in every step."""
    ranks: Times
    load: Times
    """Bytes that a rank receives for its experts."""
    dispatch: Times
    combine: Times
    """Rows of `collectives`."""
    experts: Times
    """ns from the tokens' arrival until the rank sends them back, on its own clock."""
    dispatch_ns: int
    combine_ns: int
    """Transfers: the shortest over the ranks."""

    @property
    def mean(self) -> float:
        """Bytes that each rank would receive with even routing."""
        return float(self.load.mean())

    @property
    def imbalance(self) -> float:
        """What the busiest rank receives, times the mean."""
        return float(self.load.max()) / self.mean


def exchanges(facts: RunFacts) -> tuple[list[Exchange], int]:
    """(passes of judged steps, how many all-to-alls could not be paired).

    In a group's step, all-to-alls of tokens are dispatch and combine in turn; as many bytes come back as were sent.
    """
    table, names = facts.trace["collectives"], facts.trace.names
    steps, judged = judged_rows(facts)
    op, counts = names.find("all_to_all"), names.matching(lambda name: name.lower().startswith(_COUNTS))
    tokens = (table["op"] == op) & (table["received"] != NA) & judged & (table["end"] != NA)
    tokens &= ~counts[table["dtype"]] | (table["dtype"] < 0)
    found: list[Exchange] = []
    left_out = 0
    for rows in _by_group_and_step(table, steps, np.flatnonzero(tokens)):
        whole = len({len(own) for own in rows.values()}) == 1
        count = min(map(len, rows.values())) if whole and len(rows) > 1 else 0
        paired = [_exchange(table, steps, list(rows.values()), at) for at in range(0, count - 1, 2)]
        kept = [one for one in paired if one is not None]
        found += kept
        left_out += sum(map(len, rows.values())) - 2 * len(kept) * len(rows)
    return found, left_out


def _by_group_and_step(table: Table, steps: Times, rows: Times) -> Iterator[dict[int, Times]]:
    """Per group and step, the rows of each rank in order of start."""
    found: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    columns = (table["group"][rows], steps[rows], table["rank"][rows], rows)
    for group, step, rank, row in zip(*(column.tolist() for column in columns), strict=True):
        found[group, step][rank].append(row)
    for _, own in sorted(found.items()):
        yield {rank: np.array(of_rank, np.int64) for rank, of_rank in sorted(own.items())}


def _exchange(table: Table, steps: Times, rows: Sequence[Times], at: int) -> Exchange | None:
    dispatch, combine = (np.array([own[at + after] for own in rows], np.int64) for after in (0, 1))
    load = table["received"][dispatch]
    experts = table["start"][combine] - table["end"][dispatch]
    # Micro-batches that overlap have two dispatches in a row. What a rank sends and receives changes places.
    back = load.sum() == table["received"][combine].sum()
    same = (table["bytes"][dispatch] == table["bytes"][combine]).all()
    if not (back and same and load.sum()) or (experts < 0).any():
        return None
    first = int(dispatch[0])
    transfers = (int((table["end"][own] - table["start"][own]).min()) for own in (dispatch, combine))
    group, step, ranks = int(table["group"][first]), int(steps[first]), table["rank"][dispatch]
    return Exchange(group, step, at // 2, ranks, load, dispatch, combine, experts, *transfers)


@dataclass(frozen=True)
class Pace:
    """How long a layer's experts take for what they receive: `fixed` ns and `per_byte` ns for each byte."""

    fixed: float
    per_byte: float

    def time(self, load: Array | float) -> Array:
        """ns for so many bytes."""
        return np.asarray(self.fixed + self.per_byte * np.asarray(load, np.float64))


def paces(found: Sequence[Exchange]) -> dict[tuple[int, int], Pace]:
    """By group and number, a line through time over load of all ranks and steps, which neither falls nor begins below
    0."""
    points: dict[tuple[int, int], list[Exchange]] = defaultdict(list)
    for one in found:
        points[one.group, one.number].append(one)
    return {key: _line(np.stack([one.load for one in own]), np.stack([one.experts for one in own]))
            for key, own in points.items() if len({len(one.load) for one in own}) == 1}  # fmt: skip


def _line(load: Times, took: Times) -> Pace:
    """Of loads and times, shape (steps, ranks). Where a rank's load changes, its own changes tell what a token costs,
    and the median rank the rest: a slow rank then counts for neither."""
    if load.std() < LEAST_SPREAD * load.mean():
        return Pace(float(np.median(took)), 0.0)
    about = load - load.mean(axis=0)
    if about.std() >= LEAST_SPREAD * load.mean():
        slope = float((about * took).sum() / (about**2).sum())
        fixed = float(np.median(took.mean(axis=0) - slope * load.mean(axis=0)))
    else:
        slope, fixed = np.polyfit(load.ravel(), took.ravel(), 1).tolist()
    if slope <= 0:
        return Pace(float(np.median(took)), 0.0)
    return Pace(fixed, slope) if fixed >= 0 else Pace(0.0, float(took.sum() / load.sum()))


LEAST_SPREAD = 0.01
"""Loads that scatter by less than this part of their mean say nothing of what a token costs."""
