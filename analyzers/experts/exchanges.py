"""Passes through a layer of experts: tokens sent to the ranks of their experts, computed there, and sent back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.analyzers.collectives.stragglers import judged_rows
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Table, Times
from gpuscope.when_used import dataclass

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
    overlaps: bool
    """Whether another pass of the group begins before this one's combine, or this one before another's."""

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

    In a group's step, the combine is the first all-to-all after a dispatch that brings as many bytes back as were sent;
    with micro-batches that overlap (DualPipe, two-batch overlap) another dispatch lies between.
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
        kept = _paired(table, steps, np.stack(list(rows.values()))) if count else []
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


def _paired(table: Table, steps: Times, rows: Times) -> list[Exchange]:
    """The passes of one group's step; `rows` of its all-to-alls have shape (ranks, calls)."""
    sent: list[int] = []
    pairs: list[tuple[int, int]] = []
    size = table["received"][rows].sum(axis=0)
    for at in np.flatnonzero(size > BESIDE_TOKENS * size.max(initial=0)).tolist():
        back = next((one for one in sent if _returns(table, rows[:, one], rows[:, at])), None)
        if back is None:
            sent.append(at)
        else:
            sent.remove(back)
            pairs.append((back, at))
    pairs.sort()
    return [
        _exchange(
            table,
            steps,
            rows[:, out],
            rows[:, back],
            number,
            overlaps=any(out < other < back or other < out < end for other, end in pairs),
        )
        for number, (out, back) in enumerate(pairs)
    ]


def _returns(table: Table, dispatch: Times, combine: Times) -> bool:
    """Whether one brings back what the other sent: what a rank sends and receives changes places."""
    back = table["received"][dispatch].sum() == table["received"][combine].sum()
    same = (table["bytes"][dispatch] == table["bytes"][combine]).all()
    after = (table["start"][combine] >= table["end"][dispatch]).all()
    return bool(back and same and after and table["received"][dispatch].sum())


def _exchange(table: Table, steps: Times, dispatch: Times, combine: Times, number: int, *, overlaps: bool) -> Exchange:
    there, back = (int((table["end"][own] - table["start"][own]).min()) for own in (dispatch, combine))
    first = int(dispatch[0])
    return Exchange(
        int(table["group"][first]),
        int(steps[first]),
        number,
        table["rank"][dispatch],
        table["received"][dispatch],
        dispatch,
        combine,
        table["start"][combine] - table["end"][dispatch],
        there,
        back,
        overlaps,
    )


BESIDE_TOKENS = 0.1
"""All-to-alls of at most this part of a step's largest carry what belongs to tokens: routing weights (4 bytes for each
choice of an expert beside a hidden state of thousands), scales of FP8 (4 bytes for 128)."""


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
    return {
        key: _line(np.stack([one.load for one in own]), np.stack([one.experts for one in own]))
        for key, own in points.items()
        if len({len(one.load) for one in own}) == 1
    }


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
