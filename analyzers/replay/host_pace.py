"""What hosts need for a pipeline's steps, whatever its devices do: no other layout of its computations is faster."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from gpuscope.analyzers.changes import MicroBatches, PipelineChange
from gpuscope.analyzers.facts.pipeline_facts.flushes import Flush
from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap
from gpuscope.analyzers.replay.graph import Edge, Graph, Node
from gpuscope.analyzers.replay.rewrites.loader_workers import as_they_came
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.schema import NA


def hosts_alone(
    graph: Graph, changes: Collection[PipelineChange], flushes: Sequence[Flush], stages: StageMap, *, paced: bool
) -> Graph:
    """The graph of a job on devices and links that take no time: hosts launch, and wait for batches.

    More micro-batches are so many times the launches of computations and messages. `paced`: batches come no sooner
    where loader workers fall behind.
    """
    times = 1.0
    for change in changes:
        if isinstance(change, MicroBatches):
            times *= change.count / max(flushes[0].micro_batches, 1)
    found = as_they_came(graph, ()).graph if paced else graph
    launching = np.append(_launching(graph, flushes, stages), np.zeros(len(found) - len(graph), np.bool_))
    dur = np.where(launching, np.rint(found.nodes["dur"] * times).astype(np.int64), found.nodes["dur"])
    device = found.of(Node.DEVICE, Node.ARRIVAL, Node.TRANSFER, Node.JOIN)
    launched = np.zeros(len(found), np.bool_)
    launched[found.edges["dst"][found.edges["why"] == Edge.LAUNCH]] = True
    return found.with_nodes(
        dur=np.where(device, 0, dur), release=np.where(device & launched, NA, found.nodes["release"])
    )


def _launching(graph: Graph, flushes: Sequence[Flush], stages: StageMap) -> Mask:
    """Host segments that end with the launch of something between a flush's first computation and its last one."""
    found = np.zeros(len(graph), np.bool_)
    nodes, launch = graph.nodes, graph.edges["why"] == Edge.LAUNCH
    src, dst = graph.edges["src"][launch], graph.edges["dst"][launch]
    rank_of = {place: rank for rank, place in stages.places.items()}
    for flush in flushes:
        for stage, own in enumerate(flush.stages):
            rank = rank_of.get((flush.pipeline, stage))
            inside = (nodes["rank"][dst] == rank) & (nodes["start"][dst] >= own[0].start)
            found[src[inside & (nodes["start"][dst] < own[-1].end)]] = True
    return found
