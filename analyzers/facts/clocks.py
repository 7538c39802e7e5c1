"""Clocks of the ranks, from the ends of matched collectives: these end together everywhere.

Each clock runs as t + offset + drift · (t − at) against that of the lowest rank. Ranks of one host share a clock.
Every two clocks whose ranks meet in collectives are compared by the median difference of the ends (waiting at the
start does not matter, a rank that leaves late is an outlier); all comparisons together are solved by least squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.facts.call_order import clock_of
from gpuscope.analyzers.facts.matching import Instances, Matched
from gpuscope.trace.intervals import measure_within
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Table, Times, distinct
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

MIN_INSTANCES = 5
"""Fewer matched ends than this say nothing of an offset."""
MAX_DRIFT = 500e-6
"""The fastest that NTP lets a clock run away or catch up (ntpd's limit, 500 ppm); more than this is no clock."""
_READING_NS = 1_000
"""What one clock read by several processes is good for: profilers store µs, or convert a counter to about that."""
_SIGMA = 1.4826
"""Median absolute deviation to one standard deviation of a normal distribution."""
_SIGNIFICANT = 3.0
"""Standard deviations of the ends from which an offset or drift is significant."""


@dataclass(frozen=True)
class Clocks:
    """What each rank's clock shows beyond the lowest rank's, and the error of what is compared across ranks."""

    offset: Mapping[int, int]
    """Per rank, ns at the instant `at`."""
    error: int | None
    """Bound on the error, ns: the spread of the ends (median absolute deviation, scaled to one standard deviation,
    largest over comparisons of two clocks); 1 µs where all ranks read one. None where no matched collectives
    tie the clocks."""
    drift: Mapping[int, float] = field(default_factory=dict)
    """Per rank, ns per ns; 0 where a constant offset explains the ends as well as they agree."""
    at: int = 0
    clock: Mapping[int, int] = field(default_factory=dict)
    """Per rank, the lowest rank that reads the same clock: between these there is no error."""

    def common(self, rank: Array, time: Times) -> Times:
        """Times of the ranks' own clocks on the common clock, shape (n,)."""
        offset, drift = self._of(rank)
        return np.asarray(time - offset - np.rint(drift * (time - self.at)).astype(np.int64))

    def local(self, rank: Array, time: Times) -> Times:
        """Times of the common clock on the ranks' own clocks, shape (n,)."""
        offset, drift = self._of(rank)
        gained = np.rint(drift / (1 - drift) * (time + offset - self.at)).astype(np.int64)
        return np.asarray(time + offset + gained)

    def same(self, first: Array, second: Array) -> Array:
        """Whether two ranks read one clock, by pair; shape (n,)."""
        lead = self._table({rank: self.clock.get(rank, rank) for rank in self.offset}, np.int64, first, second)
        return np.asarray(lead[first] == lead[second])

    def _of(self, rank: Array) -> tuple[Times, Array]:
        return self._table(self.offset, np.int64, rank)[rank], self._table(self.drift, np.float64, rank)[rank]

    @staticmethod
    def _table(values: Mapping[int, float], dtype: type, *ranks: Array) -> Array:
        """`values` as an array by rank; 0 for a rank that is not there."""
        most = max((int(rank.max(initial=0)) for rank in ranks), default=0)
        table: Array = np.zeros(max(most, max(values, default=0)) + 1, dtype)
        for rank, value in values.items():
            table[rank] = value
        return table


@dataclass(frozen=True)
class _Edge:
    """One comparison of two clocks: second less first."""

    first: int
    second: int
    offset: float
    drift: float
    spread: float
    count: int


def estimate(trace: Trace, matched: Matched) -> Clocks:
    """Offsets and drifts relative to the lowest rank; zero where a clock's offset is within the spread of the ends."""
    clock = clock_of(trace)
    untied = Clocks(dict.fromkeys(trace.ranks, 0), None, {}, 0, clock)
    tables = [_differences(trace, found, clock) for found in (matched.instances, matched.partial)]
    first, second, apart, time = (np.concatenate(columns) for columns in zip(*tables, strict=True))
    if not len(first):
        return untied
    at = int(time.min()) + (int(time.max()) - int(time.min())) // 2
    several = first != second
    edges = _edges(first[several], second[several], apart[several], (time[several] - at).astype(np.float64))
    nodes = sorted({node for edge in edges for node in (edge.first, edge.second)})
    offset = _solve(nodes, edges, [edge.offset for edge in edges])
    drift = _solve(nodes, edges, [edge.drift for edge in edges])
    # Ranks of one clock compare as exactly as it is read, however far apart their collectives end.
    doubts = [max(edge.spread, abs(edge.offset) if _unclear(edge) else 0.0) for edge in edges]
    error = max(doubts, default=_READING_NS)
    return Clocks(
        {rank: round(offset.get(lead, 0.0)) for rank, lead in clock.items()},
        round(error),
        {rank: drift.get(lead, 0.0) for rank, lead in clock.items()},
        at,
        clock,
    )


def _differences(trace: Trace, found: Instances, clock: Mapping[int, int]) -> tuple[Times, Times, Times, Times]:
    """Ends of each instance compared with those of its first rank: (clock, clock, difference, when), one row
    per other rank. Messages are left out: the sender may leave before the receiver."""
    found = found.select(~found.p2p)
    table = trace["collectives"]
    lead = np.zeros(max(clock, default=0) + 1, np.int64)
    lead[list(clock)] = list(clock.values())
    head = np.repeat(found.rows[found.bounds[:-1]], found.sizes)  # rows of an instance are ordered by rank
    others = found.rows != head
    rows, head = found.rows[others], head[others]
    return (
        lead[table["rank"][head]],
        lead[table["rank"][rows]],
        table["end"][rows] - table["end"][head],
        table["end"][head],
    )


def _edges(first: Times, second: Times, apart: Times, time: Array) -> list[_Edge]:
    if not len(first):
        return []
    width = int(second.max()) + 1
    _, pair = distinct(first * width + second)
    order = np.argsort(pair, kind="stable")
    bounds = np.searchsorted(pair[order], np.arange(int(pair.max()) + 2))
    found: list[_Edge] = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        own = order[low:high]
        found.append(_compare(int(first[own[0]]), int(second[own[0]]), apart[own].astype(np.float64), time[own]))
    return found


def _compare(first: int, second: int, apart: Array, time: Array) -> _Edge:
    """Offset at time 0 and drift of one clock against another; each only where it exceeds the spread of the ends."""
    middle = float(np.median(apart))
    constant = _Edge(first, second, middle, 0.0, _spread(apart - middle), len(apart))
    line = _line(apart, time)
    run = float(time.max() - time.min())
    # Drift only where it explains more than the ends' own scatter about the line.
    if line is not None and abs(line[1]) * run > _SIGNIFICANT * max(line[2], 1.0) and line[2] < constant.spread:
        return _Edge(first, second, line[0], line[1], line[2], len(apart))
    return constant


def _line(apart: Array, time: Array) -> tuple[float, float, float] | None:
    """Offset, drift and spread of Tukey's resistant line: through the medians of the outer thirds in time."""
    third = len(apart) // 3
    if third < MIN_INSTANCES:
        return None
    order = np.argsort(time, kind="stable")
    left, right = order[:third], order[-third:]
    run = float(np.median(time[right]) - np.median(time[left]))
    slope = float(np.median(apart[right]) - np.median(apart[left])) / run if run > 0 else 0.0
    if not 0 < abs(slope) <= MAX_DRIFT:
        return None
    rest = apart - slope * time
    offset = float(np.median(rest))
    return offset, slope, _spread(rest - offset)


def _spread(residual: Array) -> float:
    return _SIGMA * float(np.median(np.abs(residual)))


def _unclear(edge: _Edge) -> bool:
    """Whether an offset may be zero."""
    if edge.count < MIN_INSTANCES:
        return True
    return abs(edge.offset) <= _SIGNIFICANT * max(edge.spread, 1.0) and not edge.drift


def _solve(nodes: list[int], edges: list[_Edge], values: list[float]) -> dict[int, float]:
    """The offset of each clock from the lowest one it is tied to: least squares over all comparisons, weighted by
    their number and spread; an unclear one says «no difference»."""
    place = {node: index for index, node in enumerate(nodes)}
    if not edges:
        return {}
    normal, right = np.zeros((len(nodes), len(nodes))), np.zeros(len(nodes))
    for edge, value in zip(edges, values, strict=True):
        weight = edge.count / max(edge.spread, 1_000.0) ** 2
        a, b = place[edge.first], place[edge.second]
        normal[[a, b], [a, b]] += weight
        normal[[a, b], [b, a]] -= weight
        step = 0.0 if _unclear(edge) else value
        right[a] -= weight * step
        right[b] += weight * step
    for lowest in {place[node] for node in _lowest_tied(nodes, edges).values()}:
        normal[lowest, :], normal[:, lowest], right[lowest] = 0, 0, 0
        normal[lowest, lowest] = normal.diagonal().max()
    solution = np.linalg.solve(normal, right)
    return {node: float(solution[place[node]]) for node in nodes}


def _lowest_tied(nodes: list[int], edges: list[_Edge]) -> dict[int, int]:
    """Per clock, the lowest one it is tied to, directly or through others."""
    above = {node: node for node in nodes}

    def root(node: int) -> int:
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    for edge in edges:
        low, high = sorted((root(edge.first), root(edge.second)))
        above[high] = low
    return {node: root(node) for node in nodes}


# Wait and transfer of every matched collective, and who came last (definitions: «Waiting and transferring»).


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
