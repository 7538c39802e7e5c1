"""Wait and transfer of every matched collective, and who came last (definitions: «Waiting and transferring»)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.host_messages import by_host, message_times
from gpuscope.analyzers.facts.matching import Matched
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


def _certain(
    clock: Clocks, rank: Times, start: Times, last: Times, latest: Times, owner: Times, count: int
) -> Mask:  # fmt: skip
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
