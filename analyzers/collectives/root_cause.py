"""Whose lateness a wait goes back to, and what that rank was doing when it fell behind.

A rank that comes last is compared with a peer, the median arrival of those that waited. Its lateness is what it took
longer than the peer since its own last communication, plus what it was behind already when that ended. The first
part is its own; the second is traced on, to the rank that came last there, compared with the one in the same place
of the peer's own collective (ranks of one program do the same in the same order). Where both had just left one
collective nothing was behind, whatever happened before: it has evened everyone out. Where the programs differ, as those
of the stages of a pipeline that drains, the trail ends, and the rest is traced to no rank.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.collectives.activity import Lead, lead
from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.matching import Matched
from gpuscope.analyzers.facts.waits import Waits
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.table import Array, Mask, Table, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

MOST = 0.5
"""A phase or an operation is named where it holds at least this share of a rank's lateness."""
_HOPS = 10_000
"""A trail longer than this is given up: it would take more time than the answer is worth."""


@dataclass(frozen=True)
class TracedWaits:
    """Per row of `collectives`, ns of waiting of others, overlapped or not."""

    direct: Times
    """Waiting for this row, where it came last."""
    own: Array
    """Waiting traced back to what its rank did before it."""
    peer: Times
    """Row of a peer that did the same in less time, for rows with `own`; else NA."""


@dataclass(frozen=True)
class _Rows:
    """Per row of `collectives`, on the common clock."""

    rank: Times
    op: Times
    start: Times
    end: Times
    lead: Lead
    since: Times
    instance: Times
    arrival: Times
    """Row that came last in the row's instance; the row itself where unmatched."""


@dataclass(frozen=True)
class _Trails:
    """Rows on the trail of waits: `late` against `peer`, and the waiting (ns) that goes back to there."""

    late: Times
    peer: Times
    wait: Array

    def take(self, which: Mask) -> _Trails:
        return _Trails(self.late[which], self.peer[which], self.wait[which])


def trace_waits(trace: Trace, matched: Matched, measured: Waits, clock: Clocks, counted: Mask) -> TracedWaits:
    """Trace the waits of the instances that are `counted` (a mask) to the rows behind them."""
    table, found = trace["collectives"], matched.instances
    direct, peer = np.zeros(len(table), np.int64), np.full(len(table), NA, np.int64)
    own = np.zeros(len(table))
    suffered = found.reduce(np.add, measured.wait[found.rows])
    last = measured.last[counted]
    direct[last] = suffered[counted]
    rows = _rows(table, matched, measured, clock)
    trails = _Trails(last, _median_peer(rows, matched)[counted], suffered[counted].astype(np.float64))
    for _ in range(_HOPS):
        if not len(trails.late):
            break
        trails = _follow(rows, matched, trails, clock.error or 0, own, peer)
    return TracedWaits(direct, own, peer)


def _rows(table: Table, matched: Matched, measured: Waits, clock: Clocks) -> _Rows:
    itself = np.arange(len(table))
    of_row, last = matched.of_row, measured.last
    arrival = np.where(of_row == NA, itself, last[np.maximum(of_row, 0)]) if len(last) else itself
    start, end = (clock.common(table["rank"], table[name]) for name in ("start", "end"))
    before = lead(table)
    since = clock.common(table["rank"], np.where(before.since == NA, table["start"], before.since))
    return _Rows(table["rank"], table["op"], start, end, before, since, of_row, arrival)


def _median_peer(rows: _Rows, matched: Matched) -> Times:
    """Per instance, the row of the median arrival among those before the last."""
    found = matched.instances
    order = np.lexsort((rows.start[found.rows], found.owner))
    return np.asarray(found.rows[order][found.bounds[:-1] + np.maximum(found.sizes - 2, 0) // 2])


def _follow(rows: _Rows, matched: Matched, trails: _Trails, error: int, own: Array, peer: Times) -> _Trails:
    """Charge each late row with its own part, and return the trails that lead on."""
    late, other = trails.late, trails.peer
    source, ended = rows.lead.row[late], rows.lead.ended[late]
    counterpart = other - (late - source)  # as far back in the peer's program
    begun = (source == NA) & (rows.lead.row[other] == NA)
    comparable = (source != NA) & (counterpart >= 0)
    at, against = np.where(comparable, source, late), np.where(comparable, counterpart, other)
    comparable &= (rows.rank[against] == rows.rank[other]) & (rows.op[at] == rows.op[against])
    behind = rows.since[late] - rows.since[other]
    both = ended & rows.lead.ended[other] & (rows.lead.row[other] == against)
    one = (rows.instance[at] != NA) & (rows.instance[at] == rows.instance[against])
    behind = np.where((comparable & both & one) | begun | (behind <= error), 0, behind)
    share = np.clip(behind / np.maximum(rows.start[late] - rows.start[other], 1), 0, 1)
    mine = (comparable | begun) & (share < 1)
    np.add.at(own, late[mine], (trails.wait * (1 - share))[mine])
    peer[late[mine]] = other[mine]
    goes_on = comparable & (share > 0)
    # The transfer that took longer than the peer's is no rank's lateness.
    slower = np.where(both, _transfer(rows, at) - _transfer(rows, against), 0)
    kept = np.clip(1 - slower / np.maximum(behind, 1), 0, 1)
    jumped = np.where(ended, rows.arrival[at], at)
    mirrored = np.where(ended & ~one, _same_place(matched, rows, at, against, jumped), against)
    mirrored = np.where(one & (mirrored == jumped), at, mirrored)
    goes_on &= (mirrored != NA) & (kept > 0) & (rows.start[jumped] < rows.start[late])
    return _Trails(jumped, mirrored, trails.wait * share * kept).take(goes_on)


def _transfer(rows: _Rows, at: Times) -> Times:
    return rows.end[at] - rows.start[rows.arrival[at]]


def _same_place(matched: Matched, rows: _Rows, at: Times, against: Times, jumped: Times) -> Times:
    """The row that stands in the instance of `against` where `jumped` stands in that of `at`; NA if there is none."""
    found = matched.instances
    first, second = rows.instance[at], rows.instance[against]
    alone = (first == NA) & (second == NA)
    if not len(found):
        return np.where(alone, against, NA)
    sizes = found.sizes
    same_size = (first != NA) & (second != NA) & (sizes[np.maximum(first, 0)] == sizes[np.maximum(second, 0)])
    place = np.zeros(len(rows.rank), np.int64)
    place[found.rows] = np.arange(len(found.rows)) - found.bounds[:-1][found.owner]
    position = found.bounds[np.maximum(second, 0)] + np.where(same_size, place[jumped], 0)
    return np.where(alone, against, np.where(same_size, found.rows[position], NA))


@dataclass(frozen=True)
class Doing:
    """What made a rank late: ns by phase and by operation."""

    phases: dict[str, float]
    operations: dict[str, float]

    def phase(self) -> str | None:
        """The phase that holds most of its lateness, or None."""
        return _most(self.phases)

    def operation(self) -> str | None:
        """The operation that holds most of its lateness, or None."""
        return _most(self.operations)


def _most(spent: dict[str, float]) -> str | None:
    best = max(spent, key=lambda name: spent[name], default="")
    return best if best and spent[best] >= MOST * sum(spent.values()) else None


def doing(trace: Trace, traced: TracedWaits) -> dict[int, Doing]:
    """Per rank, what it spent longer on than its peers before the collectives it was late for.

    Each row's `own` is divided by the excess of the row's phases and operations over its peer's.
    """
    late = np.flatnonzero((traced.own > 0) & (traced.peer != NA))
    found: dict[int, Doing] = {}
    for column in ("phase", "operation"):
        rank, code, spent = _excess(trace, traced, late, column)
        for of_rank, of_code, ns in zip(rank.tolist(), code.tolist(), spent.tolist(), strict=True):
            into = found.setdefault(of_rank, Doing({}, {}))
            (into.phases if column == "phase" else into.operations)[trace.names[of_code]] = ns
    return found


def _excess(trace: Trace, traced: TracedWaits, late: Times, column: str) -> tuple[Times, Times, Array]:
    """(rank, code of the phase or operation, ns of its share of the lateness)."""
    table, width = trace["activity"], len(trace.names) + 1
    mine, theirs = (_activity_of(table["collective"], rows) for rows in (late, traced.peer[late]))
    which, activity = np.concatenate((mine[0], theirs[0])), np.concatenate((mine[1], theirs[1]))
    sign = np.repeat([1.0, -1.0], [len(mine[0]), len(theirs[0])])
    keys, place = distinct(which * width + table[column][activity] + 1)
    of_late, code = keys // width, keys % width - 1
    longer = np.maximum(np.bincount(place, weights=table["dur"][activity] * sign, minlength=len(keys)), 0.0)
    total = np.bincount(of_late, weights=longer, minlength=len(late))
    share = longer * (traced.own[late] / np.where(total > 0, total, 1))[of_late]
    pairs, pair = distinct(trace["collectives"]["rank"][late[of_late]] * width + code + 1)
    summed = np.bincount(pair, weights=share, minlength=len(pairs))
    return pairs // width, pairs % width - 1, summed


def _activity_of(collective: Times, wanted: Times) -> tuple[Times, Times]:
    """All rows of `activity` of each row of `collectives` wanted: (place in `wanted`, row of `activity`) pairs."""
    order = np.argsort(collective, kind="stable")
    low, high = (np.searchsorted(collective[order], wanted, side) for side in ("left", "right"))
    count = high - low
    which = np.repeat(np.arange(len(wanted)), count)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, order[np.repeat(low, count) + inside]
