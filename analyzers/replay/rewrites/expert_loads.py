"""Experts with other numbers of tokens."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuscope.analyzers.changes import ExpertLoads
from gpuscope.analyzers.replay.graph import Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting
from gpuscope.trace.schema import Kind


def expert_loads(graph: Graph, change: ExpertLoads, setting: Setting) -> Rewritten:
    """What each rank computes between dispatch and combine, and both transfers, scaled as the change says."""
    del setting
    nodes = graph.nodes
    dur = nodes["dur"].astype(np.float64)
    computes = graph.of(Node.DEVICE) & (nodes["work"] == Kind.COMPUTE)
    if not computes.any():  # training threads are the devices
        computes = graph.of(Node.HOST)
    windows = defaultdict(list)
    for rank, begin, until, factor in change.windows:
        windows[rank].append((begin, until, factor))
    scaled = 0
    for rank, own in windows.items():
        mine = np.flatnonzero(computes & (nodes["rank"] == rank))
        start, end = nodes["start"][mine], nodes["end"][mine]
        for begin, until, factor in own:
            inside = np.clip(np.minimum(end, until) - np.maximum(start, begin), 0, None)
            part = inside / np.maximum(end - start, 1)
            dur[mine] *= 1 - part * (1 - factor)
            scaled += int((inside > 0).sum())
    if not scaled:
        raise UnreplayableError("the passes through experts are in no replayed step")
    factors = {tuple(call): factor for *call, factor in change.transfers}
    for place in np.flatnonzero(graph.of(Node.TRANSFER) & (nodes["call"] >= 0)).tolist():
        call = graph.calls[int(nodes["call"][place])]
        dur[place] *= factors.get((call.rank, call.start, call.end), 1.0)
    return Rewritten(graph.with_nodes(dur=np.rint(dur).astype(np.int64)), change.what)
