"""Which computation of a pipeline each node of a graph runs for: kernels, receives before it, sends behind it, and the
host's time to launch them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.facts.pipeline_facts.flushes import Computation, Flush
from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap
from gpuscope.analyzers.replay.graph import NONE, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import nodes_by_call
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.schema import Kind
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Computed:
    """What a stage computes in a step."""

    stage: int
    stages: int
    first: int
    """The number of its first computation."""
    own: Sequence[Computation]


@dataclass(frozen=True)
class Blocks:
    """Which computation each node runs for."""

    stages: Sequence[Computed]
    of: Times
    """Per node the number of its computation; `NONE` of all others."""


def blocks(graph: Graph, flushes: Sequence[Flush], stages: StageMap, numbers: Sequence[int]) -> Blocks:
    """`numbers` are those of the replayed steps. Raises `UnreplayableError`."""
    rank_of = {place: rank for rank, place in stages.places.items()}
    found: list[Computed] = []
    of, count = np.full(len(graph), NONE, np.int64), 0
    launching = graph.edges["why"] == Edge.LAUNCH
    src, dst = graph.edges["src"][launching], graph.edges["dst"][launching]
    for flush in flushes:
        for stage, own in enumerate(flush.stages):
            rank = rank_of.get((flush.pipeline, stage))
            if flush.step not in numbers or rank not in graph.marks:
                continue
            # A device may still run a step's work when its host is in the next one.
            late = graph.nodes["step"] - numbers.index(flush.step)
            mine = (graph.nodes["rank"] == rank) & ((late == 0) | (late == 1))
            _kernels(graph, mine, own, count, of)
            _hosts(graph, mine, src, dst, of, count)
            found.append(Computed(stage, len(flush.stages), count, own))
            count += len(own)
    of[dst] = np.where(of[dst] == NONE, of[src], of[dst])
    arrival, transfer = (nodes_by_call(graph, kind) for kind in (Node.ARRIVAL, Node.TRANSFER))
    both = (arrival >= 0) & (transfer >= 0)
    of[transfer[both]] = of[arrival[both]]
    return Blocks(found, of)


def _kernels(graph: Graph, mine: Mask, own: Sequence[Computation], first: int, of: Times) -> None:
    """What lies between two computations (a loss) belongs to the one before."""
    start = graph.nodes["start"]
    starts, last = [one.start for one in own], max(one.end for one in own)
    computes = graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)
    kernels = np.flatnonzero(mine & computes & (start >= starts[0]) & (start < last))
    of[kernels] = first + np.searchsorted(starts, start[kernels], "right") - 1


def _hosts(graph: Graph, mine: Mask, src: Times, dst: Times, of: Times, first: int) -> None:
    """Host segments by what they launch of the computations from the `first` on. Between two computations what is
    received is the second one's, with all behind it, and other launches are the first one's. What lies before the first
    computation and behind the last one stays, but for the message that is received right before, or sent right behind.
    """
    hosts = np.flatnonzero(mine & graph.of(Node.HOST, Node.WAIT))  # in the order of the host
    place = {host: at for at, host in enumerate(hosts.tolist())}
    now = np.full(len(hosts), NONE, np.int64)
    launches, receives, sends = (np.zeros(len(hosts), np.bool_) for _ in range(3))
    for host, operation in zip(src.tolist(), dst.tolist(), strict=True):
        at = place.get(host)
        if at is None:
            continue
        number, call = int(of[operation]), int(graph.nodes["call"][operation])
        number = number if number >= first else NONE
        if number != NONE and now[at] not in (NONE, number):
            raise UnreplayableError("one call launches several computations of a stage")
        now[at] = max(now[at], number)
        launches[at] = True
        receives[at] |= call != NONE and graph.calls[call].op == "recv"
        sends[at] |= call != NONE and graph.calls[call].op == "send"
    known = np.flatnonzero(now != NONE)
    for before, behind in zip(known[:-1].tolist(), known[1:].tolist(), strict=True):
        received, launched = (np.flatnonzero(own[before:behind]) + before for own in (receives, launches))
        split = behind if now[before] == now[behind] else int(received[0] if len(received) else launched[-1] + 1)
        now[before:split], now[split:behind] = now[before], now[behind]
    if len(known):
        begin, last = int(known[0]), int(known[-1])
        before, behind = np.flatnonzero(launches[:begin]), np.flatnonzero(launches[last + 1 :]) + last + 1
        if len(before) and receives[before[-1]]:
            now[before[-1] : begin] = now[begin]
        if len(behind) and sends[behind[0]]:
            now[last : behind[0] + 1] = now[last]
    of[hosts] = np.where(now == NONE, of[hosts], now)
