"""A collective issued earlier than it was: by what the host had launched by then, and behind what the device had to do
for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from gpuscope.analyzers.replay.graph import Edge, EdgeRow, Graph, Node
from gpuscope.analyzers.replay.rewrite import nodes_by_call
from gpuscope.trace.columns.table import Times

_WHOLE_DEVICE = "DeviceSynchronize"


def waited_for(graph: Graph) -> Graph:
    """With collectives where they are issued now: calls that wait for the whole device wait for those before them."""
    nodes, (src, dst, lag, why) = graph.nodes, (graph.edges[name] for name in ("src", "dst", "lag", "why"))
    whole = np.array([label.endswith(_WHOLE_DEVICE) for label in graph.labels] + [False], np.bool_)
    waits = np.flatnonzero(graph.of(Node.WAIT) & whole[nodes["label"]])
    if not len(waits):
        return graph
    returns = dict(zip(dst[why == Edge.SYNC].tolist(), lag[why == Edge.SYNC].tolist(), strict=True))
    transfer = nodes_by_call(graph, Node.TRANSFER)
    edges: list[EdgeRow] = []
    for rank in graph.ranks:
        own = waits[nodes["rank"][waits] == rank]
        issues = np.flatnonzero((why == Edge.LAUNCH) & graph.of(Node.ARRIVAL)[dst] & (nodes["rank"][dst] == rank))
        at = np.searchsorted(nodes["start"][own], nodes["end"][src[issues]])
        for issue, place in zip(issues[at < len(own)].tolist(), own[at[at < len(own)]].tolist(), strict=True):
            if (call := int(nodes["call"][dst[issue]])) >= 0:
                edges.append((int(transfer[call]), place, returns.get(place, 0), Edge.SYNC))
    return graph.add([], edges)


class EarlyIssue:
    """Where in a rank's host and streams an issue some ns earlier would stand.

    A host runs ahead of its device, so that a time on the host says nothing about the device's progress: an issue
    moved by an interval of the host comes behind the last operation that the host had launched then.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._into: defaultdict[int, list[int]] = defaultdict(list)
        issues = np.flatnonzero(graph.of(Node.ARRIVAL)[graph.edges["dst"]])
        for place, dst in zip(issues.tolist(), graph.edges["dst"][issues].tolist(), strict=True):
            self._into[dst].append(place)
        self._host = {rank: self._by_end(graph, rank) for rank in graph.ranks}
        launched = np.flatnonzero((graph.edges["why"] == Edge.LAUNCH) & graph.of(Node.DEVICE)[graph.edges["dst"]])
        node, at = graph.edges["dst"][launched], graph.nodes["end"][graph.edges["src"][launched]]
        rank, lane = graph.nodes["rank"][node], graph.nodes["lane"][node]
        order = np.lexsort((node, at, lane, rank))
        rows = np.stack((rank, lane, at, node), axis=1)[order]
        bounds = np.flatnonzero((np.diff(rows[:, :2], axis=0) != 0).any(axis=1)) + 1
        parts = np.split(rows, bounds) if len(rows) else []
        self._launched = {(int(own[0, 0]), int(own[0, 1])): own[:, 2:] for own in parts}
        """By rank and stream: when an operation was launched, and its node."""
        self._devices = {rank for rank, _ in self._launched}

    @staticmethod
    def _by_end(graph: Graph, rank: int) -> Times:
        own = np.flatnonzero(graph.of(Node.HOST, Node.WAIT) & (graph.nodes["rank"] == rank))
        return own[np.argsort(graph.nodes["end"][own], kind="stable")]

    def edges(self, old: int, new: int, earlier: int) -> Iterable[tuple[int, int, int, int]]:
        """What node `new` waits for if it is issued so many ns before node `old` was."""
        edges = self._graph.edges
        for place in self._into[old]:
            src, lag, why = (int(edges[name][place]) for name in ("src", "lag", "why"))
            if why not in (Edge.LAUNCH, Edge.EVENT):
                continue
            if earlier <= 0:
                yield src, new, lag, why
            elif why == Edge.LAUNCH:
                yield self._issued(src, lag, earlier, new)
            elif (operation := self._behind(old, src, earlier)) is not None:
                yield operation, new, lag, why

    def _at(self, old: int, earlier: int) -> int | None:
        """When the new issue is, on the host."""
        for place in self._into[old]:
            if self._graph.edges["why"][place] == Edge.LAUNCH:
                return int(self._graph.nodes["end"][self._graph.edges["src"][place]]) - earlier
        return None

    def _issued(self, host: int, lag: int, earlier: int, new: int) -> tuple[int, int, int, int]:
        ends, rank = self._graph.nodes["end"], int(self._graph.nodes["rank"][host])
        at = int(ends[host]) - earlier
        own = self._host[rank]
        place = int(np.searchsorted(ends[own], at, "right")) - 1
        if place < 0 or rank not in self._devices:  # a training thread that computes is between two issues for long
            return host, new, lag - earlier, Edge.LAUNCH
        return int(own[place]), new, lag + at - int(ends[own[place]]), Edge.LAUNCH

    def _behind(self, old: int, source: int, earlier: int) -> int | None:
        """The last operation that the stream of `source` had been given by then."""
        nodes, at = self._graph.nodes, self._at(old, earlier)
        launched = self._launched.get((int(nodes["rank"][source]), int(nodes["lane"][source])))
        if launched is None or at is None:
            return None
        place = int(np.searchsorted(launched[:, 0], at, "right")) - 1
        return int(launched[place, 1]) if place >= 0 else None
