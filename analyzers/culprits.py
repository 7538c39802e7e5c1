"""Whose lateness a wait goes back to, and what that rank was doing when it fell behind.

A rank that comes last was late against the mean of its peers by D = start − mean start. D is exactly what it was
behind already at the end (or beginning) of what it communicated before, plus what it took longer since then. The
first part is passed on to whoever came last there, or to its own earlier lateness; the second is its own, and goes
to the phases and operations that took it longer than its peers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.clocks import Clocks
from analyzers.lead import lead
from analyzers.matching import Matched
from analyzers.waits import Waits
from gpuscope.trace.distinct import distinct
from gpuscope.trace.names import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Table, Times
from gpuscope.trace.trace import Trace

MOST = 0.5
"""A phase or an operation is named where it holds at least this share of a rank's lateness."""
_ROUNDS = 1_000
"""Waits are passed on so often at most; what is left then stays where it is."""


@dataclass(frozen=True)
class Blame:
    """Per row of `collectives`, ns of exposed waiting of others."""

    direct: Times
    """Waiting for this row, where it came last."""
    own: Array
    """Waiting traced back to what its rank did before it."""


@dataclass(frozen=True)
class _Lateness:
    """Per row: lateness against the peers, the share of it inherited from the row `source`, as fractions of 1."""

    inherited: Array
    source: Times


def blame(trace: Trace, matched: Matched, measured: Waits, clock: Clocks, counted: Mask) -> Blame:
    """Trace the waits of the instances that are `counted` (a mask) to the rows behind them."""
    table, found = trace["collectives"], matched.instances
    direct = np.zeros(len(table), np.int64)
    suffered = found.reduce(np.add, measured.exposed[found.rows])
    direct[measured.last[counted]] = suffered[counted]
    late = _lateness(table, matched, measured, clock)
    own, passing = np.zeros(len(table)), direct.astype(np.float64)
    for _ in range(_ROUNDS):
        rows = np.flatnonzero(passing)
        if not len(rows):
            break
        share = late.inherited[rows]
        own[rows] += passing[rows] * (1 - share)
        moving = rows[share > 0]
        following = np.zeros(len(table))
        np.add.at(following, late.source[moving], passing[moving] * late.inherited[moving])
        passing = following
    return Blame(direct, own + passing)


def _lateness(table: Table, matched: Matched, measured: Waits, clock: Clocks) -> _Lateness:
    """How much of each matched row's lateness it brought along from the collective before."""
    found = matched.instances
    before = lead(table)
    inherited, source = np.zeros(len(table)), np.full(len(table), NA, np.int64)
    rows, owner = found.rows, found.owner
    if not len(rows):
        return _Lateness(inherited, source)
    rank = table["rank"][rows]
    known = found.reduce(np.minimum, (before.since[rows] != NA).astype(np.int64))[owner] > 0
    start = clock.common(rank, table["start"][rows])
    since = clock.common(rank, np.where(before.since[rows] == NA, table["start"][rows], before.since[rows]))
    late, behind = (_above_peers(values, owner, found.sizes) for values in (start, since))
    target = np.where(before.ended[rows], _last_there(before.row[rows], matched, measured), before.row[rows])
    # No claim finer than the clocks: what is behind by less than their error inherits nothing.
    told = known & (target != NA) & (late > 0) & (behind > (clock.error or 0)) & (target != rows)
    inherited[rows[told]] = np.clip(behind[told] / late[told], 0, 1)
    source[rows[told]] = target[told]
    # Nobody was waited for at the source: the lateness began here all the same.
    lateness = np.zeros(len(table))
    lateness[rows] = late
    idle = told & (lateness[np.maximum(target, 0)] <= (clock.error or 0))
    inherited[rows[idle]] = 0
    return _Lateness(inherited, source)


def _last_there(row: Times, matched: Matched, measured: Waits) -> Times:
    """The row that came last in the instance of each row; NA where it is not matched."""
    instance = np.where(row == NA, NA, matched.of_row[np.maximum(row, 0)])
    return np.where(instance == NA, NA, measured.last[np.maximum(instance, 0)])


def _above_peers(values: Times, owner: Times, sizes: Times) -> Array:
    """Each value less the mean of the others of its instance."""
    base = values.min() if len(values) else 0  # ns since 1970 summed over ranks would overflow
    shifted = (values - base).astype(np.float64)
    total = np.bincount(owner, weights=shifted, minlength=len(sizes))[owner]
    return np.asarray(shifted - (total - shifted) / np.maximum(sizes[owner] - 1, 1))


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


def doing(trace: Trace, matched: Matched, own: Array) -> dict[int, Doing]:
    """Per rank, what it spent longer on than its peers before the collectives it was late for.

    `own` is `Blame.own`; each row's share of it is divided by the excess of the row's phases and operations.
    """
    late = np.flatnonzero((own > 0) & (matched.of_row != NA))
    which, activity = _activity_of(trace, matched, late)
    found: dict[int, Doing] = {}
    for column in ("phase", "operation"):
        rank, code, spent = _excess(trace, matched, own, late, which, activity, column)
        for of_rank, of_code, ns in zip(rank.tolist(), code.tolist(), spent.tolist(), strict=True):
            into = found.setdefault(of_rank, Doing({}, {}))
            (into.phases if column == "phase" else into.operations)[trace.names[of_code]] = ns
    return found


def _activity_of(trace: Trace, matched: Matched, late: Times) -> tuple[Times, Times]:
    """All rows of `activity` of the instance of each late row: (place in `late`, row of `activity`) pairs."""
    of_row = matched.of_row[trace["activity"]["collective"]] if len(trace["activity"]) else np.empty(0, np.int64)
    order = np.argsort(of_row, kind="stable")
    low, high = (np.searchsorted(of_row[order], matched.of_row[late], side) for side in ("left", "right"))
    count = high - low
    which = np.repeat(np.arange(len(late)), count)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, order[np.repeat(low, count) + inside]


def _excess(
    trace: Trace, matched: Matched, own: Array, late: Times, which: Times, activity: Times, column: str
) -> tuple[Times, Times, Array]:
    """(rank, code of the phase or operation, ns of its share of the lateness); what nothing tells has no code."""
    table, told = trace["collectives"], trace["activity"]
    peers = np.maximum(matched.instances.sizes[matched.of_row[late]] - 1, 1)
    width = len(trace.names) + 1
    keys, place = distinct(which * width + told[column][activity] + 1)
    mine = told["collective"][activity] == late[which]
    spent = told["dur"][activity] * np.where(mine, 1.0, -1.0 / peers[which])
    of_late, code = keys // width, keys % width - 1
    longer = np.maximum(np.bincount(place, weights=spent, minlength=len(keys)), 0.0)
    total = np.bincount(of_late, weights=longer, minlength=len(late))
    share = longer * (own[late] / np.where(total > 0, total, 1))[of_late]
    untold = np.flatnonzero(total == 0)
    rank = table["rank"][late[np.concatenate((of_late, untold))]]
    code = np.concatenate((code, np.full(len(untold), NO_NAME)))
    pairs, pair = distinct(rank * width + code + 1)
    summed = np.bincount(pair, weights=np.concatenate((share, own[late[untold]])), minlength=len(pairs))
    return pairs // width, pairs % width - 1, summed
