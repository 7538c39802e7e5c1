"""Collectives that are under way at once on one link each get a part of its bandwidth.

Two of a rank share a link unless the trace shows otherwise: a group inside a host and one between hosts take different
links. Whether a link carries what a rank sends as fast while it receives is a question of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.replay.graph import NONE, Call, Edge, Graph, Node
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.intervals import EMPTY, Spans, join, measure_within, union


class Reach(IntEnum):
    """What links a group's ranks."""

    UNKNOWN = 0
    INSIDE = 1
    """NVLink or PCIe of one host."""
    BETWEEN = 2
    """A network."""


Reaches = Mapping[tuple[int, str], Reach]
"""By rank and name of the group."""
_WAYS = {"send": 1, "recv": 2}


def reaches(facts: RunFacts) -> dict[tuple[int, str], Reach]:
    """What links the ranks of each group, as far as the run shows on which hosts they are."""
    table, names, groups = facts.trace["collectives"], facts.trace.names, facts.matched.groups
    of_group: list[Reach] = []
    for ranks in groups.ranks:
        hosts = None if ranks is None else facts.placement.of_ranks(ranks.tolist(), len(ranks)).hosts
        of_group.append(Reach.UNKNOWN if hosts is None else Reach.INSIDE if hosts == 1 else Reach.BETWEEN)
    keys = set(zip(*(column.tolist() for column in (table["rank"], table["group"], groups.of_row)), strict=True))
    return {(rank, names[code] if code != NO_NAME else ""): of_group[group] for rank, code, group in keys}


def can_crowd(graph: Graph) -> bool:
    """Whether a rank has more than one stream of collectives, so that two can be under way at once."""
    own = np.flatnonzero(graph.of(Node.TRANSFER))
    both = np.stack((graph.nodes["rank"][own], graph.nodes["lane"][own]), axis=1)
    return len(np.unique(both, axis=0)) > len(np.unique(both[:, 0]))


class Crowds:
    """Who shares a link with whom in one graph: those of one direction, or (`opposite`) a send and a receive."""

    def __init__(self, graph: Graph, reach: Reaches, *, opposite: bool = False) -> None:
        self._opposite = opposite
        self._nodes = np.flatnonzero(graph.of(Node.TRANSFER) & (graph.nodes["call"] >= 0))
        calls = graph.nodes["call"][self._nodes]
        found = {call: _link(graph.calls[call], reach) for call in np.unique(calls).tolist()}
        link = np.array([found[call] for call in calls.tolist()], np.int64).reshape(-1, 2)
        rows = np.column_stack((graph.nodes["lane"][self._nodes], link))
        self._kinds, self._kind = np.unique(rows, axis=0, return_inverse=True)
        self._kind = self._kind.reshape(-1)
        self._together = together(graph, self._nodes)

    def beside(self, start: Times, end: Times) -> tuple[Array, Array]:
        """Per node the share of a transfer's time beside others on its link, and how many these are then on average
        (1 where there are none). Times are those of `rank_by_rank`. A collective is as slow as its slowest rank."""
        share, others = np.zeros(len(start)), np.ones(len(start))
        spans = [
            union(start[self._nodes[self._kind == kind]], end[self._nodes[self._kind == kind]])
            for kind in range(len(self._kinds))
        ]
        for kind in range(len(self._kinds)):
            sharing = [spans[other] for other in range(len(self._kinds)) if self._share(kind, other)]
            own = self._nodes[self._kind == kind]
            if not sharing:
                continue
            any_of: Spans = EMPTY
            total = np.zeros(len(own), np.int64)
            for one in sharing:
                any_of = join(any_of, one)
                total += measure_within(one, start[own], end[own])
            with_any = measure_within(any_of, start[own], end[own])
            share[own] = with_any / np.maximum(end[own] - start[own], 1)
            others[own] = np.maximum(total / np.maximum(with_any, 1), 1.0)
        return slowest(share, self._nodes, self._together), slowest(others, self._nodes, self._together)

    def _share(self, one: int, other: int) -> bool:
        (lane, reach, way), (their_lane, their_reach, their_way) = self._kinds[one], self._kinds[other]
        apart = {int(reach), int(their_reach)} == {Reach.INSIDE, Reach.BETWEEN}
        opposite = {int(way), int(their_way)} == set(_WAYS.values())
        return bool(lane != their_lane and not apart and opposite == self._opposite)


def _link(call: Call, reach: Reaches) -> tuple[int, int]:
    return int(reach.get((call.rank, call.group), Reach.UNKNOWN)), _WAYS.get(call.op, 0)


def slowest(values: Array, nodes: Times, of: Times) -> Array:
    """The values of these nodes as those of all `together` with them are at most: what slows one rank slows all."""
    most = np.zeros(int(of.max(initial=0)) + 1)
    np.maximum.at(most, of, values[nodes])
    values[nodes] = most[of]
    return values


def together(graph: Graph, nodes: Times) -> Times:
    """Per transfer, a number that all ranks' transfers of one collective have."""
    kind = graph.nodes["kind"]
    src, dst = graph.edges["src"], graph.edges["dst"]
    joins = (graph.edges["why"] == Edge.JOIN) & (kind[src] == Node.JOIN) & (kind[dst] == Node.TRANSFER)
    found = np.full(len(graph), NONE, np.int64)
    found[nodes] = nodes
    found[dst[joins]] = src[joins]
    return np.asarray(np.unique(found[nodes], return_inverse=True)[1]).reshape(-1)
