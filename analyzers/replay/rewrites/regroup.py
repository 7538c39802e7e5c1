"""Collectives of a step put together, or cut, into others: the nodes and edges that this takes.

Gradients come one after the other: bytes of a bucket become ready evenly between the issue of the bucket before it
and its own. A joined collective is issued when its last bytes are there (gradients) or with its first (parameters);
whoever waited for one of the old ones waits for the one that now holds its last bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscope.analyzers.replay.graph import NONE, Call, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Costs, bus_bytes, by_issue, nodes_by_call
from gpuscope.analyzers.replay.rewrites.transfer_cost import EarlyIssue, steps_of
from gpuscope.trace.schema import Kind
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Piece:
    """Part of an old collective (its place among its step's): the bytes up to share `until` of it."""

    old: int
    bytes: int
    until: float = 1.0
    early: int | None = None
    """ns before the old one's issue at which it was ready; None where that has to be guessed from the share."""


class Scale(NamedTuple):
    """Transfer times by what the model expects."""

    beside: float
    """Of all but the last of a step."""
    last: float
    late: float = 0.0
    """ns that the last takes besides."""


LAUNCH, STREAM, WAITED = int(Edge.LAUNCH), int(Edge.STREAM), (int(Edge.SYNC), int(Edge.EVENT))
Bucket = Sequence[Piece]
"""A new collective."""


def regrouped(
    graph: Graph,
    calls: Sequence[int],
    cut: Callable[[list[Call]], list[Bucket]],
    found: Costs,
    scale: Scale,
    *,
    key: Hashable,
    at_first: bool = False,
    whole: bool = False,
) -> Graph:
    """The graph with `calls` replaced: `cut` gives, of a step's calls in order, the new ones.

    A new one takes so many times what the model expects as the measured ones did. What costs do not change is kept for
    the next time that `key`, which stands for `cut`, is asked for: a prediction asks for it with several costs.
    `at_first`: issued with the first of its parts, else with the last. `whole`: no old one is cut, and other
    collectives of the stream stand between them, so that a new one takes the place of one of its parts.
    Raises `UnreplayableError` where ranks or steps disagree on the calls.
    """
    if (key, at_first) not in graph.memo:
        work = _Work(graph, at_first, whole)
        for own in _by_step(graph, calls):
            work.step(own, cut([graph.calls[call] for call in next(iter(own.values()))]))
        graph.memo.clear()  # one is as large as the graph
        graph.memo[key, at_first] = work.finish(calls), tuple(work.made)
    changed: Graph
    changed, made = graph.memo[key, at_first]
    dur = changed.nodes["dur"].copy()
    for one in made:
        bus = bus_bytes(graph, one.old, one.bytes) or 0.0
        expected = found.model(graph, one.old).expected(bus)
        dur[one.node] = round(scale.last * expected + scale.late if one.last else scale.beside * expected)
    return changed.with_nodes(dur=dur)


class _Made(NamedTuple):
    """A new transfer, as one rank sees it."""

    node: int
    old: int
    """The call that it is like."""
    bytes: int
    last: bool
    """Whether it is the last of its step."""


def _by_step(graph: Graph, calls: Sequence[int]) -> list[dict[int, list[int]]]:
    """Per step, per rank, its calls in order."""
    step = steps_of(graph, calls)
    steps: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for call in by_issue(graph, calls):
        steps[step[call]][graph.calls[call].rank].append(call)
    for own in steps.values():
        sizes = {tuple(graph.calls[call].bytes for call in mine) for mine in own.values()}
        if len(sizes) > 1 or set(own) != set(graph.ranks):
            raise UnreplayableError("ranks communicate different gradients in one step")
    return [steps[step] for step in sorted(steps)]


class _Work:
    """Collects what a regrouping adds and takes away."""

    def __init__(self, graph: Graph, at_first: bool, whole: bool) -> None:
        self.graph, self.at_first, self.whole = graph, at_first, whole
        self.made: list[_Made] = []
        self.arrival, self.transfer = (nodes_by_call(graph, kind) for kind in (Node.ARRIVAL, Node.TRANSFER))
        self.into, self.out = graph.around_calls
        self.ends: list[int] = graph.nodes["end"].tolist()
        self.sources: dict[int, int] = {}
        self.early = EarlyIssue(graph)
        self.nodes: list[dict[str, int]] = []
        self.edges: list[tuple[int, int, int, int]] = []
        self.calls: list[Call] = []
        self.last: dict[int, list[int]] = defaultdict(list)
        """Per rank, the new transfers in order."""
        self.stands: dict[int, int] = {}
        """By old transfer, what ends at its place on the stream now."""
        self.chosen: set[int] = set()
        """Old arrivals: what their place on the stream is, each says itself."""
        self.replaced: dict[int, int] = {}
        """New arrival by old one, of each collective that a new one holds a part of."""
        self.spent: dict[int, int] = defaultdict(int)
        """ns that a host segment takes more."""

    def step(self, own: dict[int, list[int]], buckets: list[Bucket]) -> None:
        """The new collectives of a step, on all ranks."""
        self.chosen.update(int(self.arrival[call]) for calls in own.values() for call in calls)
        made: dict[int, list[tuple[int, int]]] = {}
        for rank, calls in own.items():
            self._issue_costs(calls, buckets)
            made[rank] = [self._bucket(rank, calls, bucket, bucket is buckets[-1]) for bucket in buckets]
            if self.whole:
                self._in_place(calls, buckets, made[rank])
            else:
                self._order(rank, calls, made[rank])
            self._consumers(calls, buckets, made[rank])
        together: dict[str, list[int]] = defaultdict(list)
        for rank, calls in own.items():
            together[self.graph.calls[calls[0]].group].append(rank)
        for place in range(len(buckets)):
            for ranks in together.values():
                join = self._node(kind=Node.JOIN, rank=NONE)
                for rank in ranks:
                    arrival, transfer = made[rank][place]
                    self.edges += [(arrival, join, 0, Edge.JOIN), (join, transfer, 0, Edge.JOIN)]

    def _issue_costs(self, calls: list[int], buckets: list[Bucket]) -> None:
        """What the training thread spends on issuing: no more on the old ones, their mean on each new one."""
        costs = [self.graph.calls[call].issue for call in calls]
        if not any(costs):
            return
        for call, ns in zip(calls, costs, strict=True):
            self.spent[self._source(call)] -= ns
        for bucket in buckets:
            last = bucket[0] if self.at_first else bucket[-1]
            self.spent[self._source(calls[last.old])] += round(sum(costs) / len(costs))

    def _node(self, **columns: int) -> int:
        self.nodes.append(columns)
        return len(self.graph) + len(self.nodes) - 1

    def _bucket(self, rank: int, calls: list[int], bucket: Bucket, is_last: bool) -> tuple[int, int]:
        last = bucket[0] if self.at_first else bucket[-1]
        old = calls[last.old]
        size = sum(piece.bytes for piece in bucket)
        call = len(self.graph.calls) + len(self.calls)
        self.calls.append(replace(self.graph.calls[old], bytes=size))
        step = int(self.graph.nodes["step"][self.arrival[old]])
        common = {"rank": rank, "step": step, "call": call, "work": int(Kind.COMMUNICATION)}
        common["lane"] = int(self.graph.nodes["lane"][self.arrival[old]])
        arrival = self._node(kind=Node.ARRIVAL, **common)
        transfer = self._node(kind=Node.TRANSFER, **common)
        self.made.append(_Made(transfer, old, size, is_last))
        self.edges.append((arrival, transfer, 0, Edge.JOIN))
        self._issue(calls, last, arrival)
        for piece in bucket:
            self.replaced.setdefault(int(self.arrival[calls[piece.old]]), arrival)
        return arrival, transfer

    def _issue(self, calls: list[int], last: Piece, arrival: int) -> None:
        """When a new collective is issued: with the old one, or as much earlier as its bytes are there."""
        old = int(self.arrival[calls[last.old]])
        earlier = 0 if self.at_first else self._earlier(calls, last)
        self.edges += self.early.edges(old, arrival, earlier)

    def _earlier(self, calls: list[int], last: Piece) -> int:
        """ns before the old one's issue at which its bytes up to `last` were there."""
        if last.early is not None:
            return last.early
        return round((1 - last.until) * self._interval(calls, last.old))

    def _interval(self, calls: list[int], which: int) -> int:
        """ns within which the bytes of an old collective became ready, at the pace of the step's others."""
        at = self.graph.nodes["start"]
        ready = [int(at[self._source(call)]) + int(self.graph.nodes["dur"][self._source(call)]) for call in calls]
        if which > 0:
            return max(0, ready[which] - ready[which - 1])
        rest = sum(self.graph.calls[call].bytes or 0 for call in calls[1:])
        if not rest:
            raise UnreplayableError("all gradients go in one bucket: when parts of it are ready is not recorded")
        return round(max(0, ready[-1] - ready[0]) * (self.graph.calls[calls[0]].bytes or 0) / rest)

    def _source(self, call: int) -> int:
        """The host segment that issues a call."""
        if call not in self.sources:
            issues = [src for src, _, _, why in self.into.get(int(self.arrival[call]), ()) if why == LAUNCH]
            if not issues:
                raise UnreplayableError("the issue of a collective is not recorded")
            self.sources[call] = issues[0]
        return self.sources[call]

    def _order(self, rank: int, calls: list[int], made: list[tuple[int, int]]) -> None:
        """As many at once as there were lanes; behind what was before them on these, and before what follows."""
        graph = self.graph
        old = {int(self.transfer[call]) for call in calls} | {int(self.arrival[call]) for call in calls}
        lanes = sorted({int(graph.nodes["lane"][self.arrival[call]]) for call in calls})
        pauses, before, behind = [], [], []
        for call in calls:
            for src, _, lag, why in self.into.get(int(self.arrival[call]), ()):
                if why == STREAM:
                    pauses.append(lag)
                    if src not in old:
                        before.append(src)
            for _, dst, _, why in self.out.get(int(self.transfer[call]), ()):
                if why == STREAM and dst not in old:
                    behind.append(dst)
        pause = round(float(np.median(pauses))) if pauses else 0
        followed = self.last[rank]
        for place, (arrival, _) in enumerate(made):
            if place >= len(lanes):
                self.edges.append((made[place - len(lanes)][1], arrival, pause, Edge.STREAM))
            else:
                self.edges += [(src, arrival, pause, Edge.STREAM) for src in before]
                self.edges += [(src, arrival, pause, Edge.STREAM) for src in followed[-len(lanes) :]]
        for _, transfer in made[-len(lanes) :]:
            self.edges += [(transfer, dst, pause, Edge.STREAM) for dst in behind]
        followed += [transfer for _, transfer in made]

    def _in_place(self, calls: list[int], buckets: list[Bucket], made: list[tuple[int, int]]) -> None:
        """Each where the old one that it is issued with stood on the stream; what stood around the others closes up."""
        which = 0 if self.at_first else -1
        anchors: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for bucket, pair in zip(buckets, made, strict=True):
            anchors[bucket[which].old].append(pair)
        for place, call in enumerate(calls):
            edges = self.into.get(int(self.arrival[call]), ())
            source, pause = next(((src, lag) for src, _, lag, why in edges if why == STREAM), (NONE, 0))
            source = self.stands.get(source, source)
            for arrival, transfer in anchors.get(place, ()):
                if source != NONE:
                    self.edges.append((source, arrival, pause, Edge.STREAM))
                source = transfer
            self.stands[int(self.transfer[call])] = source
            for _, dst, lag, why in self.out.get(int(self.transfer[call]), ()):
                if why == STREAM and source != NONE and dst not in self.chosen:
                    self.edges.append((source, dst, lag, Edge.STREAM))

    def _consumers(self, calls: list[int], buckets: list[Bucket], made: list[tuple[int, int]]) -> None:
        holder: dict[int, int] = {}
        for place, bucket in enumerate(buckets):
            for piece in bucket:
                # The last that holds some of it; where sizes are not known, the first: others are issued with it.
                if piece.bytes or piece.old not in holder:
                    holder[piece.old] = place
        for which, call in enumerate(calls):
            # A consumer that comes before the new collective is even issued waits for it no more.
            last = calls[buckets[holder[which]][-1].old]
            issued = None if self.at_first else self.ends[self._source(last)]
            for _, dst, lag, why in self.out.get(int(self.transfer[call]), ()):
                if why in WAITED and (issued is None or self.ends[dst] >= issued):
                    self.edges.append((made[holder[which]][1], dst, lag, why))

    def finish(self, calls: Sequence[int]) -> Graph:
        """The old ones take no time and block nothing; the new ones are there."""
        graph = self.graph
        gone = np.zeros(len(graph), np.bool_)
        chosen = list(calls)
        gone[self.arrival[chosen]] = True
        gone[self.transfer[chosen]] = True
        joins = graph.of(Node.JOIN) & np.isin(graph.nodes["call"], chosen)
        gone |= joins
        kept = ~(gone[graph.edges["src"]] | gone[graph.edges["dst"]])
        dur = np.where(gone, 0, graph.nodes["dur"])
        for node, ns in self.spent.items():
            dur[node] = max(0, int(dur[node]) + ns)
        # A step that began with an old one begins with what holds it now.
        marks = {
            rank: np.array([self.replaced.get(node, node) for node in own.tolist()], np.int64)
            for rank, own in graph.marks.items()
        }
        left = replace(graph.with_nodes(dur=dur).keep_edges(kept), marks=marks)
        return left.add(self.nodes, self.edges, self.calls)
