"""A pipeline's computations in another order, cut smaller, or as long on all stages, on the hosts and devices that ran
them.

With a computation moves what is launched for it: kernels, the receives before it, the sends behind it, and the host's
time to launch them. So hosts, streams, messages that share a link and kernels beside them are replayed as elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.facts.pipeline_facts import Computation, Flush, StageMap
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.pipelines.schedules import message_time, recognise, schedule_order
from gpuscope.analyzers.replay.engine import CircleError, replay
from gpuscope.analyzers.replay.graph import (
    CAUSES,
    EDGE_COLUMNS,
    NONE,
    QUEUE,
    Call,
    Edge,
    EdgeRow,
    Graph,
    Node,
    UnreplayableError,
)
from gpuscope.analyzers.replay.rewrite import Setting, nodes_by_call, on_host
from gpuscope.analyzers.replay.rewrites.pipeline_layout import UNFILLED_SHARE
from gpuscope.analyzers.replay.training_thread import KERNEL_NS
from gpuscope.analyzers.what_if_changes import EvenStages, MicroBatches, PipelineChange, Schedule
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.when_used import dataclass

# Which computation of a pipeline each node of a graph runs for: kernels, receives before it, sends behind it, and the
# host's time to launch them.


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


# A pipeline's batch cut into more micro-batches, each a copy of a recorded one: its kernels, messages and launches.
#
# A kernel or message of a smaller micro-batch takes less as far as its time is that of its data. Hosts launch as much
# for
# each as before; what they do once a step is not repeated.

MOST_NODES = 200_000
"""Of a graph with copies: more are not worth the time and memory."""


@dataclass(frozen=True)
class Sizes:
    """What of a smaller micro-batch's time is left."""

    scale: float
    """Its size by that of a recorded one."""
    message: float
    """What a message takes, by what it took."""
    bias: int

    def kernels(self, dur: Times) -> Array:
        """Without what each takes whatever it does; at worst smaller ones do not fill the device."""
        fixed = np.minimum(dur, (1 + self.bias) * KERNEL_NS)
        fixed = np.maximum(fixed, UNFILLED_SHARE * dur) if self.bias > 0 else fixed
        return np.asarray(np.rint(fixed + (dur - fixed) * self.scale))


def cut(graph: Graph, found: Blocks, change: MicroBatches, sizes: Sizes) -> tuple[Graph, Blocks]:
    """The graph with copies of its micro-batches behind each, in an order that is yet to be made (`reordered`).

    Raises `UnreplayableError`.
    """
    copies, stages = _copies(found, change.count)
    of_node = np.where(found.of == NONE, 1, copies[found.of])
    _joins(graph, of_node)
    cloned = of_node > 1
    if int(of_node.sum()) > MOST_NODES:
        raise UnreplayableError("so many micro-batches make too large a graph")
    launched = on_host(graph)
    launched[graph.edges["dst"][graph.edges["why"] == Edge.LAUNCH]] = True
    if bool((cloned & (graph.nodes["release"] != NA) & ~launched).any()):
        raise UnreplayableError("the launches of some computations are not recorded")
    first = np.cumsum(copies) - copies
    of = np.where(found.of == NONE, NONE, first[found.of])
    graph = _smaller(graph, found, sizes)
    place = [np.arange(len(graph))]
    """Of each copy, the places of its nodes."""
    nodes, calls = {name: [column] for name, column in graph.nodes.items()}, [*graph.calls]
    ofs, total = [of], len(graph)
    for number in range(1, int(of_node.max())):
        own = np.flatnonzero(of_node > number)
        place.append(np.full(len(graph), NONE, np.int64))
        place[-1][own] = total + np.arange(len(own))
        copied = _copied(graph, own, calls)
        for name, columns in nodes.items():
            columns.append(copied[name])
        ofs.append(np.where(of[own] == NONE, NONE, of[own] + number))
        total += len(own)
    edges = _edges(graph, found, of_node, place)
    made = replace(
        graph, nodes={name: np.concatenate(own) for name, own in nodes.items()}, edges=edges, calls=tuple(calls)
    )
    return made, Blocks(stages, np.concatenate(ofs))


def _copies(found: Blocks, count: int) -> tuple[Times, list[Computed]]:
    """Into how many each computation is cut, and the stages then."""
    copies: list[int] = []
    stages: list[Computed] = []
    for stage in found.stages:
        micro = sorted({one.micro_batch for one in stage.own})
        each = dict.fromkeys(micro, 0)
        for new in range(count):
            each[micro[new * len(micro) // count]] += 1
        if not all(each.values()) or any(one.kind == "W" for one in stage.own):
            raise UnreplayableError("only forwards and backwards are cut, into more micro-batches")
        first = sum(copies)
        copies += [each[one.micro_batch] for one in stage.own]
        stages.append(replace(stage, first=first, own=[one for one in stage.own for _ in range(each[one.micro_batch])]))
    return np.array(copies, np.int64), stages


def _joins(graph: Graph, of_node: Times) -> None:
    """A meeting of ranks is copied as the messages that meet."""
    src, dst, joins = graph.edges["src"], graph.edges["dst"], graph.of(Node.JOIN)
    for meets, ends in ((dst, src), (src, dst)):
        own = joins[meets]
        np.maximum.at(of_node, meets[own], of_node[ends[own]])
    meeting = joins[src] | joins[dst]
    if bool((of_node[src] != of_node[dst])[meeting].any()):
        raise UnreplayableError("what computations wait for is not of the pipeline alone")


def _smaller(graph: Graph, found: Blocks, sizes: Sizes) -> Graph:
    """Kernels, copies and messages of all computations as small as they then are."""
    inside, dur = found.of != NONE, graph.nodes["dur"]
    message = np.array([call.op in ("send", "recv") for call in graph.calls] + [False], np.bool_)
    sent = inside & message[graph.nodes["call"]]
    dur = np.where(inside & graph.of(Node.DEVICE), sizes.kernels(dur), dur)
    dur = np.where(sent & graph.of(Node.TRANSFER), np.rint(dur * sizes.message), dur)
    calls = list(graph.calls)
    for number in np.unique(graph.nodes["call"][sent]).tolist():
        nbytes = calls[number].bytes
        calls[number] = replace(calls[number], bytes=None if nbytes is None else round(nbytes * sizes.scale))
    return replace(graph.with_nodes(dur=dur.astype(np.int64)), calls=tuple(calls))


def _copied(graph: Graph, own: Times, calls: list[Call]) -> dict[str, Times]:
    """Columns of copied nodes, their calls added to `calls`. What a host does for a cause of its own happens once."""
    columns = {name: column[own] for name, column in graph.nodes.items()}
    host = on_host(graph)[own]
    once = np.where(host, np.sum([columns[cause] for cause in CAUSES], axis=0), 0)
    columns |= {"dur": np.maximum(columns["dur"] - once, 0), "release": np.full(len(own), NA, np.int64)}
    for cause in CAUSES:
        columns[cause] = np.where(host, 0, columns[cause])
    number, kept = np.unique(columns["call"], return_inverse=True)
    new = np.where(number == NONE, NONE, len(calls) + np.cumsum(number != NONE) - 1)
    calls += [graph.calls[call] for call in number.tolist() if call != NONE]
    columns["call"] = new[kept.reshape(-1)]
    return columns


def _edges(graph: Graph, found: Blocks, of_node: Times, place: Sequence[Times]) -> dict[str, Times]:
    """Within a computation and between the ends of a message, of each copy; into a computation, into each copy."""
    src, dst = graph.edges["src"], graph.edges["dst"]
    joins = graph.of(Node.JOIN)
    within = ((found.of[src] == found.of[dst]) & (found.of[src] != NONE)) | joins[src] | joins[dst]
    if bool((within & (of_node[src] != of_node[dst])).any()):
        raise UnreplayableError("what computations wait for is not of the pipeline alone")
    edges = {name: [column] for name, column in graph.edges.items()}
    for own in place[1:]:
        which = np.flatnonzero(own[dst] != NONE)
        edges["src"].append(np.where(within[which], own[src[which]], src[which]))
        edges["dst"].append(own[dst[which]])
        edges["lag"].append(graph.edges["lag"][which])
        edges["why"].append(graph.edges["why"][which])
    return {name: np.concatenate(columns) for name, columns in edges.items()}


REORDERED: tuple[PipelineChange, ...] = (Schedule("gpipe"), Schedule("1f1b"), EvenStages())
"""Changes that need no other computations than those recorded."""


def moved(
    graph: Graph,
    changes: Sequence[PipelineChange],
    facts: RunFacts,
    numbers: Sequence[int],
    counted: Mask,
    setting: Setting,
) -> Graph | None:
    """The graph with these changes; None where it can't hold them. `numbers` are those of the replayed steps."""
    if facts.stages is None or not all(change in REORDERED or isinstance(change, MicroBatches) for change in changes):
        return None
    try:
        flushes = facts.flushes[0]
        found = blocks(graph, flushes, facts.stages, numbers)
        if len(found.stages) < counted.sum() * len(graph.ranks):
            return None
        for change in changes:
            if isinstance(change, MicroBatches):
                graph, found = cut(graph, found, change, _sizes(facts, flushes[0], change, setting))
                graph = reordered(graph, found, recognise(flushes[0]).name)
            else:
                graph = reordered(graph, found, change.name) if isinstance(change, Schedule) else evened(graph, found)
        replay(graph)
    except (UnreplayableError, CircleError):
        return None
    return graph


def _sizes(facts: RunFacts, flush: Flush, change: MicroBatches, setting: Setting) -> Sizes:
    scale = flush.micro_batches / max(1, change.count) if change.keep_batch else 1.0
    sent = message_time(facts, setting.gpu)
    shorter = sent.shorter(scale, setting.bias) / sent.transfer if sent is not None else 0.0
    return Sizes(scale, 1 - shorter, setting.bias)


def evened(graph: Graph, found: Blocks) -> Graph:
    """Kernels of each stage as much longer or shorter as its computations of a kind are than those of all stages."""
    kinds = [one.kind for stage in found.stages for one in stage.own]
    kernels = np.flatnonzero((found.of != NONE) & graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE))
    code = {kind: place for place, kind in enumerate(sorted(set(kinds)))}
    kind = np.array([code[kinds[number]] for number in found.of[kernels].tolist()], np.int64)
    rank = np.searchsorted(graph.ranks, graph.nodes["rank"][kernels])
    total = np.zeros((len(graph.ranks), len(code)))
    np.add.at(total, (rank, kind), graph.nodes["dur"][kernels])
    dur = graph.nodes["dur"].copy()
    factor = total.mean(axis=0) / np.maximum(total, 1)
    dur[kernels] = np.rint(dur[kernels] * factor[rank, kind]).astype(np.int64)
    return graph.with_nodes(dur=dur)


def reordered(graph: Graph, found: Blocks, name: str) -> Graph:
    """The computations in the order of a schedule. Raises `UnreplayableError`."""
    place = _places(found, name)
    moved = (found.of != NONE) & (place[found.of] != np.arange(len(place))[found.of])
    if bool((moved & (graph.nodes["release"] != NA)).any()):
        raise UnreplayableError("the launches of some computations are not recorded")
    chains = _Chains(graph, found, place)
    src, dst, why = (graph.edges[name] for name in ("src", "dst", "why"))
    crossing = (found.of[src] != found.of[dst]) & np.isin(why, (Edge.PROGRAM, Edge.STREAM, Edge.EVENT, Edge.SYNC))
    rows = zip(*(graph.edges[name][crossing].tolist() for name in EDGE_COLUMNS), strict=True)
    return graph.keep_edges(~crossing).add([], [*chains.edges(rows)])


def _places(found: Blocks, name: str) -> Times:
    """Per computation its place in the new order: those of a stage take the numbers of each other."""
    place: list[int] = []
    for stage in found.stages:
        chunks, kinds = {one.model_chunk for one in stage.own}, [one.kind for one in stage.own]
        if len(chunks) > 1 or set(kinds) != {"F", "B"}:
            raise UnreplayableError("only forwards and backwards of one chunk per stage are put into another order")
        own = {kind: iter([at for at, each in enumerate(kinds) if each == kind]) for kind in "FB"}
        order = schedule_order(name, stage.stage, stage.stages, kinds.count("F"), 1)
        new = [next(own[kind]) for kind, _ in order]
        place += (stage.first + np.argsort(new)).tolist()
    return np.array(place, np.int64)


class _Chains:
    """The computations on each host and stream, in their new order."""

    def __init__(self, graph: Graph, found: Blocks, place: Times) -> None:
        self._graph, self._of, self._place = graph, found.of, place
        self._stage = np.repeat(np.arange(len(found.stages)), [len(stage.own) for stage in found.stages])
        self._ends: dict[tuple[int, int], tuple[int, int]] = {}
        """First and last node of a computation on a stream."""
        self._on: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Computations of a stage on a stream (-1: the host)."""
        for node in np.flatnonzero(found.of != NONE).tolist():  # in the order of each host and stream
            number, lane = int(found.of[node]), int(graph.nodes["lane"][node])
            first, _ = self._ends.get((number, lane), (node, node))
            self._ends[number, lane] = first, node
        for number, lane in self._ends:
            self._on[int(self._stage[number]), lane].append(number)
        for own in self._on.values():
            own.sort(key=lambda number: int(place[number]))

    def edges(self, crossing: Iterable[EdgeRow]) -> Iterator[EdgeRow]:
        """In place of those that lead from one computation to another, into the first or out of the last one."""
        into: dict[tuple[int, int], EdgeRow] = {}
        for row in crossing:
            src, dst, lag, why = row
            if why in (Edge.PROGRAM, Edge.STREAM):
                number, lane = int(self._of[dst]), int(self._graph.nodes["lane"][dst])
                if number != NONE and (number, lane) in into:
                    raise UnreplayableError("computations of a stage are launched in turns")
                if number != NONE:
                    into[number, lane] = row
                if self._leaves(src, dst):
                    yield self._last(src), dst, lag, why
            elif (source := self._waited_for(src, dst)) is not None:
                yield source, dst, lag, why
        for (_, lane), own in self._on.items():
            entry = next((into[number, lane] for number in own if self._enters(into.get((number, lane)))), None)
            if entry is not None:
                yield entry[0], self._ends[own[0], lane][0], entry[2], entry[3]
            for before, number in pairwise(own):
                _, _, lag, why = into.get((number, lane)) or entry or (0, 0, 0, Edge.STREAM)
                yield self._ends[before, lane][1], self._ends[number, lane][0], lag, why

    def _same_stage(self, src: int, dst: int) -> bool:
        ends = self._of[src], self._of[dst]
        return NONE not in ends and bool(self._stage[ends[0]] == self._stage[ends[1]])

    def _leaves(self, src: int, dst: int) -> bool:
        return bool(self._of[src] != NONE) and not self._same_stage(src, dst)

    def _enters(self, row: EdgeRow | None) -> bool:
        return row is not None and not self._same_stage(row[0], row[1])

    def _last(self, node: int) -> int:
        """The last node of its stage on its stream."""
        lane = int(self._graph.nodes["lane"][node])
        return self._ends[self._on[int(self._stage[self._of[node]]), lane][-1], lane][1]

    def _waited_for(self, src: int, dst: int) -> int | None:
        """What stands where `src` stood for who waited for its stream; None where nothing does."""
        label = int(self._graph.nodes["label"][dst])
        if self._of[src] == NONE or (label != NONE and self._graph.labels[label] == QUEUE):
            return src
        if self._leaves(src, dst):
            return self._last(src)
        call = int(self._graph.nodes["call"][src])
        if self._graph.inferred and call != NONE and self._graph.calls[call].op == "send":
            return None  # inferred from the order in which computations were
        lane, place = int(self._graph.nodes["lane"][src]), self._place[self._of[dst]]
        before = [number for number in self._on[int(self._stage[self._of[src]]), lane] if self._place[number] < place]
        return self._ends[before[-1], lane][1] if before else None
