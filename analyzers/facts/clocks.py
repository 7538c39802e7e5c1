"""Clocks of the ranks, from the ends of matched collectives: these end together everywhere.

Each clock runs as t + offset + drift · (t − at) against that of the lowest rank. Ranks of one host share a clock.
Every two clocks whose ranks meet in collectives are compared by the median difference of the ends (waiting at the
start does not matter, a rank that leaves late is an outlier); all comparisons together are solved by least squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from gpuscope.analyzers.facts.call_order import clock_of
from gpuscope.analyzers.facts.matching import Instances, Matched
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.table import Array, Times
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
