"""Wait and transfer of every matched collective, and who came last (definitions: «Waiting and transferring»)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.matching import Instances, Matched
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.table import Mask, Table, Times
from gpuscope.trace.intervals import measure_within
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Waits:
    """Per row of `collectives`, NA where it is not matched: when the last rank of its instance arrived, on the
    row's own clock, and the instance's shortest duration over the ranks, ns. Per instance, who came last."""

    arrived: Times
    transfer: Times
    """Of a message that the host carried out, what its link takes for that size, where seen (`message_times`)."""
    over: Times
    """Per row, when its transfer is over, on its own clock: its end, but of such a message its arrival and transfer."""
    last: Times
    """Row of `collectives` of the rank that came last, by instance."""
    certain: Mask
    """Whether it came later than every other by more than the clocks' error, by instance."""
    wait: Times
    """Per row, ns from its start to the arrival of the last rank, overlapped or not; 0 where it is not matched."""
    exposed: Times
    """Per row, ns during which its rank waited for the last one with nothing computing meanwhile; a stretch that
    several of its collectives wait through counts for the one that began to wait first."""


def waits(trace: Trace, matched: Matched, clock: Clocks, lanes: Sequence[LaneSummary]) -> Waits:
    """Measure the waiting of all matched instances."""
    table, found = trace["collectives"], matched.instances
    rows, owner = found.rows, found.owner
    rank = table["rank"][rows]
    start = clock.common(rank, table["start"][rows])
    latest = found.reduce(np.maximum, start)
    arrived, transfer = (np.full(len(table), NA, np.int64) for _ in range(2))
    arrived[rows] = clock.local(rank, latest[owner]) if len(rows) else latest
    shortest = found.reduce(np.minimum, table["end"][rows] - table["start"][rows])
    known = message_times(trace, found, start, clock.common(rank, table["end"][rows]))
    transfer[rows] = np.where(known == NA, shortest, known)[owner]
    over = table["end"].copy()
    message = rows[found.p2p[owner] & by_host(trace)[rows]]
    over[message] = np.minimum(over[message], arrived[message] + transfer[message])
    last = _first_where(start == latest[owner], owner, len(found))
    certain = _certain(clock, rank, start, last, latest, owner, len(found))
    exposed = np.zeros(len(table), np.int64)
    for lane, own in rows_by_lane(trace, lanes):
        exposed[own] = _exposed(table, own[arrived[own] != NA], own, arrived, lane)
    reached = np.where(arrived == NA, table["start"], arrived)
    wait = np.clip(reached - table["start"], 0, table["end"] - table["start"])
    return Waits(arrived, transfer, over, rows[last] if len(found) else last, certain, wait, exposed)


def _first_where(chosen: Mask, owner: Times, count: int) -> Times:
    """Per instance, the position of its first row chosen."""
    found = np.full(count, len(chosen), np.int64)
    places = np.flatnonzero(chosen)
    np.minimum.at(found, owner[places], places)
    return found


def _certain(clock: Clocks, rank: Times, start: Times, last: Times, latest: Times, owner: Times, count: int) -> Mask:
    """Per instance, whether no other rank may have come later: ranks of one clock compare exactly."""
    if not count:
        return np.zeros(0, np.bool_)
    error = clock.error if clock.error is not None else np.iinfo(np.int64).max
    margin = np.where(clock.same(rank, rank[last][owner]), 0, error)
    doubtful = (latest[owner] - start <= margin) & (np.arange(len(rank)) != last[owner])
    return np.asarray(np.bincount(owner, weights=doubtful, minlength=count) == 0)


def rows_by_lane(trace: Trace, lanes: Sequence[LaneSummary]) -> list[tuple[LaneSummary, Times]]:
    """Per lane, the rows of `collectives` that ran on it, in order of start."""
    table, device = trace["collectives"], trace["device_events"]
    event = table["event"]
    on = np.where(event == NA, NA, device["device"][np.maximum(event, 0)]) if len(device) else np.full(len(table), NA)
    found = []
    several = len({lane.rank for lane in lanes}) < len(lanes)
    for lane in lanes:
        low, high = np.searchsorted(table["rank"], [lane.rank, lane.rank + 1])
        own = np.arange(low, high)
        found.append((lane, own[on[low:high] == lane.device] if several else own))
    return found


def _exposed(table: Table, measured: Times, own: Times, arrived: Times, lane: LaneSummary) -> Times:
    """`Waits.exposed` of a lane's rows."""
    found = np.zeros(len(own), np.int64)
    if not len(measured):
        return found
    until = np.minimum(arrived[measured], table["end"][measured])
    before = np.concatenate((until[:1] * 0 + np.iinfo(np.int64).min, np.maximum.accumulate(until)[:-1]))
    begin = np.minimum(np.maximum(table["start"][measured], before), until)
    found[np.searchsorted(own, measured)] = measure_within(lane.exposed_communication, begin, until)
    return np.maximum(found, 0)


SHORTEST = 0.1
"""Quantile that counts as the shortest: a sender that loses its core as it sends is stamped late, so that single
times are too short."""


def by_host(trace: Trace) -> Mask:
    """Per row of `collectives`, whether only the host's call of it is recorded (gloo, MPI)."""
    table = trace["collectives"]
    return np.asarray((table["host_event"] != NA) & (table["event"] == NA))


def message_times(trace: Trace, found: Instances, start: Times, end: Times) -> Times:
    """Per instance, how long it was on its way once both ends were there, ns; NA where that can't be told, and for all
    but such messages.

    The host sees a message from the call until it is waited for, which can be much later than its arrival: schedules
    post receives early and collect sends at the end of a step. Neither end of such a row says when data moved. What a
    link can do is seen where the receiver was there first and took the message up at once: the shortest times from a
    send's start to its receive's end, by link and size. A message of the same link and size takes no longer; the rest
    is waiting.

    `start` and `end` are those of `found.rows`, on the common clock.
    """
    table, names = trace["collectives"], trace.names
    none = np.full(len(found), NA, np.int64)
    op, rank, owner = table["op"][found.rows], table["rank"][found.rows], found.owner
    mine = found.p2p[owner] & by_host(trace)[found.rows]
    send, receive = (np.flatnonzero(mine & (op == names.find(name))) for name in ("send", "recv"))
    begun, source, target, posted, taken = (none.copy() for _ in range(5))
    begun[owner[send]], source[owner[send]] = start[send], rank[send]
    posted[owner[receive]], taken[owner[receive]], target[owner[receive]] = start[receive], end[receive], rank[receive]
    size = table["bytes"][found.rows[found.bounds[:-1]]] if len(found) else none
    whole = np.flatnonzero((source != NA) & (target != NA) & (size != NA))
    if not len(whole):
        return none
    width = int(max(source[whole].max(), target[whole].max())) + 1
    _, link = distinct((source * width + target)[whole])
    _, key = distinct(link * (int(size[whole].max()) + 1) + size[whole])
    seen = (posted[whole] <= begun[whole]) & (taken[whole] > begun[whole])
    none[whole] = _low(key, (taken - begun)[whole], seen)[key]
    return none


def _low(key: Times, values: Times, seen: Mask) -> Times:
    """Per key (0 to its highest), the `SHORTEST` quantile of its values that are `seen`, one of them; or NA."""
    order = np.lexsort((values, key))
    order = order[seen[order]]
    count = np.bincount(key[order], minlength=int(key.max()) + 1)
    place = np.cumsum(count) - count + (SHORTEST * count).astype(np.int64)
    low = np.full(len(count), NA, np.int64)
    low[count > 0] = values[order[place[count > 0]]]
    return low
