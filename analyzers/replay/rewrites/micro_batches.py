"""A pipeline's batch cut into more micro-batches, each a copy of a recorded one: its kernels, messages and launches.

A kernel or message of a smaller micro-batch takes less as far as its time is that of its data. Hosts launch as much for
each as before; what they do once a step is not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.changes import MicroBatches
from gpuscope.analyzers.replay.from_trace.batch_overhead import KERNEL_NS
from gpuscope.analyzers.replay.graph import CAUSES, NONE, Call, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import on_host
from gpuscope.analyzers.replay.rewrites.pipeline_blocks import Blocks, Computed
from gpuscope.analyzers.replay.rewrites.pipeline_layout import UNFILLED_SHARE
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

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
