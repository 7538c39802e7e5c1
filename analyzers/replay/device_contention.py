"""On a GPU kernels are slower beside a collective (it takes SMs and memory bandwidth), and collectives beside kernels.

By how much, the recording tells: the same kernel ran alone and beside a collective, a collective of one size alone and
beside kernels. What took d ns with a share x of them disturbed, and goes `slow` times slower there, would have taken
d · (1 - x + x / slow) alone: 1/d falls linearly with x.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.analyzers.replay.engine import Replayed, replay
from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.analyzers.replay.rewrite import nodes_by_call
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.intervals import Spans, measure_within, union
from gpuscope.trace.schema import Kind

ROUNDS = 4
"""Replays of a change: what takes longer moves what it runs beside. The fourth moves little."""
SPREAD = 0.5
"""By which the disturbed shares of a kernel's runs must differ for a line through them."""
SCATTER = 0.03
"""Relative scatter about the line up to which runs of a name are taken to be of one shape."""
FEWEST = 6
"""Runs that a line needs."""
LEAST, MOST = 1.02, 3.0
"""Slowdowns below are noise; above, something else than sharing goes on."""


Factors = tuple[float, float, float]
"""Slowdown where things turn out well, as expected, and badly."""
NONE: Factors = (1.0, 1.0, 1.0)
UNKNOWN: Factors = (1.0, 1.1, 1.4)
"""Where nothing ran both alone and disturbed: kernels beside communication were 19 % slower on average over GPUs and
models, up to 40 % (Lee et al., «Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep
Learning», arXiv 2507.03114). Half of that average is expected, as an assumption; so are transfers like kernels."""
MOVED = 0.001
"""Share of a step by which overlap has to move before slowdowns matter."""


@dataclass(frozen=True)
class Disturbance:
    """How many times slower kernels are beside a collective of their rank, and transfers beside kernels."""

    kernels: Factors
    transfers: Factors

    @property
    def any(self) -> bool:
        """Whether either can be slower at all."""
        return max(*self.kernels, *self.transfers) > 1.0

    def text(self) -> str:
        """What a prediction rests on."""
        if UNKNOWN in (self.kernels, self.transfers):
            return "how much kernels and collectives slow each other is not in the trace: taken as 10 % (0 to 40 %)"
        return (
            f"kernels {self.kernels[1] - 1:.0%} slower beside collectives and these {self.transfers[1] - 1:.0%} slower "
            "beside kernels, as alone and together in the recording"
        )


def disturbance(graph: Graph, done: Replayed) -> Disturbance:
    """From a graph's own unchanged replay."""
    kernels, transfers = _kernels(graph), np.flatnonzero(graph.of(Node.TRANSFER) & (graph.nodes["call"] >= 0))
    by_kernel, by_transfer = _shares(graph, done)
    columns = (graph.nodes[name][kernels].tolist() for name in ("rank", "kernel"))
    names = list(zip(*columns, strict=True))
    calls = [graph.calls[call] for call in graph.nodes["call"][transfers].tolist()]
    sizes = [(call.op, call.group, call.bytes) for call in calls]
    dur = graph.nodes["dur"]
    return Disturbance(
        _slower(names, dur[kernels], by_kernel[kernels]), _slower(sizes, dur[transfers], by_transfer[transfers])
    )


def _slower(keys: Sequence[Hashable], dur: Times, share: Array) -> Factors:
    """The mean slowdown over groups of one key, by their time, give or take its scatter."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        if dur[place] > 0:
            groups[key].append(place)
    found: list[tuple[float, float]] = []
    for places in groups.values():
        x, y = share[places], 1.0 / dur[places]
        if len(places) < FEWEST or np.ptp(x) < SPREAD:
            continue
        slope, intercept = np.polyfit(x, y, 1)
        if intercept <= 0 or intercept + slope <= 0:
            continue
        if np.std(y - intercept - slope * x) / np.mean(y) <= SCATTER:
            found.append((float(intercept / (intercept + slope)), float(dur[places].sum())))
    if not found:
        return UNKNOWN
    slow, weight = np.array(found).T
    mean = float(np.average(slow, weights=weight))
    if not LEAST <= mean <= MOST:
        return NONE
    error = float(np.sqrt(np.average((slow - mean) ** 2, weights=weight)))
    return max(1.0, mean - error), mean, mean + error


class Disturbed:
    """Replays changes of a graph with kernels and collectives as much slower as they then run beside each other."""

    def __init__(self, graph: Graph, done: Replayed) -> None:
        self.found = disturbance(graph, done)
        self._before = _shares(graph, done)
        self._least = MOVED * float(np.mean([np.ptp(done.start[marks]) for marks in graph.marks.values()]))

    def replay(self, graph: Graph, bias: int = 0) -> tuple[Graph, Replayed, bool]:
        """A graph made from the one given, and whether what overlaps has moved. New collectives are taken to be as
        disturbed as the old ones were."""
        done = replay(graph)
        kinds, shares, dur = _kinds(graph), _shares(graph, done), graph.nodes["dur"]
        before = [self._grown(graph, *pair) for pair in zip(self._before, kinds, strict=True)]
        changes = zip(shares, before, kinds, strict=True)
        moved = max(float((np.abs(new - old) * dur)[kind].sum()) for new, old, kind in changes)
        if not self.found.any or moved <= self._least:
            return graph, done, False
        factors = [own[1 + bias] for own in (self.found.kernels, self.found.transfers)]
        alone = dur.astype(np.float64)
        for old, factor, kind in zip(before, factors, kinds, strict=True):
            alone = np.where(kind, alone * (1 - old + old / factor), alone)
        changed = graph
        for _ in range(ROUNDS - 1):
            slowed = alone
            for share, factor, kind in zip(_shares(changed, done), factors, kinds, strict=True):
                slowed = np.where(kind, slowed / (1 - share + share / factor), slowed)
            changed = graph.with_nodes(dur=np.rint(slowed).astype(np.int64))
            done = replay(changed)
        return changed, done, True

    @staticmethod
    def _grown(graph: Graph, share: Array, kind: Array) -> Array:
        """The shares before, for the nodes of a graph that may have more."""
        found = np.zeros(len(graph))
        found[: len(share)] = share
        own = np.flatnonzero(kind[: len(share)])
        if len(graph) > len(share) and len(own):
            found[len(share) :] = np.average(share[own], weights=np.maximum(graph.nodes["dur"][own], 1))
        return found


def _kinds(graph: Graph) -> tuple[Array, Array]:
    kernels = graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)
    return kernels, graph.of(Node.TRANSFER)


def _kernels(graph: Graph) -> Times:
    return np.flatnonzero(_kinds(graph)[0] & (graph.nodes["kernel"] >= 0))


def _shares(graph: Graph, done: Replayed) -> tuple[Array, Array]:
    """Per node, the share of a kernel's time beside a collective of its rank, from the rank's arrival on, and of a
    transfer's time beside kernels of its rank."""
    by_kernel, by_transfer = np.zeros(len(graph)), np.zeros(len(graph))
    kernels, transfers = (np.flatnonzero(kind) for kind in _kinds(graph))
    arrived, through = (nodes_by_call(graph, kind) for kind in (Node.ARRIVAL, Node.TRANSFER))
    both = (arrived >= 0) & (through >= 0)
    start, end = _rank_by_rank(graph, done)
    in_flight = union(start[arrived[both]], end[through[both]])
    computing = union(start[kernels], end[kernels])
    by_kernel[kernels] = _within(in_flight, start[kernels], end[kernels])
    by_transfer[transfers] = _within(computing, start[transfers], end[transfers])
    return by_kernel, by_transfer


def _rank_by_rank(graph: Graph, done: Replayed) -> tuple[Times, Times]:
    """Start and end of every node with each rank behind the one before it, so that no two ranks overlap."""
    if not len(graph):
        return done.start, done.end
    origin = int(done.start.min())
    behind = np.searchsorted(graph.ranks, graph.nodes["rank"]) * (int(done.end.max()) - origin + 1) - origin
    return done.start + behind, done.end + behind


def _within(spans: Spans, start: Times, end: Times) -> Array:
    return np.asarray(measure_within(spans, start, end) / np.maximum(end - start, 1))
