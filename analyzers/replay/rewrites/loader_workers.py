"""The data loader with other workers: how long the consumer still waits for a batch."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.frame.changes import LoaderWorkers
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Graph, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting, on_host
from gpuscope.report.view import units
from gpuscope.trace.columns.table import Times

HAND_OVER_NS = 1_000_000
"""What taking a ready batch from worker processes costs at worst: queue, wake-up and pinning, 0.1–1 ms."""


def loader_workers(graph: Graph, change: LoaderWorkers, setting: Setting) -> Rewritten:
    """Batches of B ns each come from w workers every B/w; the consumer waits for what that exceeds its own step.

    B is what the training thread itself spends on loading per step: so it is known only for a loader without workers.
    Where it turns out badly, a batch takes `HAND_OVER_NS` to be handed over; where it turns out well, none.
    """
    loading = np.where(on_host(graph), graph.nodes["input"], 0)
    if not loading.any():
        raise UnreplayableError("the replayed steps hold no wait for the data loader")
    if setting.loader_processes:
        raise UnreplayableError(
            "batches come from worker processes already, and how long one takes them is not recorded: record once with "
            "num_workers=0"
        )
    if change.workers < 1:
        raise UnreplayableError("without workers the training thread loads itself; how long is not recorded")
    batch = {rank: _per_step(graph, loading, rank) for rank in graph.ranks}
    free = graph.with_nodes(dur=graph.nodes["dur"] - loading, input=graph.nodes["input"] - loading)
    steps = replay(free).steps(free)
    own = float(np.mean([times.mean() for times in steps.values()]))
    extra = {-1: 0, 0: HAND_OVER_NS // 10, 1: HAND_OVER_NS}[setting.bias]
    dur = free.nodes["dur"].copy()
    for rank, spent in batch.items():
        wait = max(0.0, spent / change.workers - own) + min(extra, spent)
        mine = np.flatnonzero((graph.nodes["rank"] == rank) & (loading > 0))
        share = loading[mine] / loading[mine].sum() * len(steps[rank])
        dur[mine] += np.rint(share * wait).astype(np.int64)
    longest = max(batch.values())
    return Rewritten(
        free.with_nodes(dur=dur),
        f"{longest / 1e6:.1f} ms of loading per batch spread over {units.plural(change.workers, 'worker')}, "
        "assumed to have a core each",
    )


def _per_step(graph: Graph, loading: Times, rank: int) -> float:
    return float(loading[graph.nodes["rank"] == rank].sum() / max(1, len(graph.marks[rank]) - 1))
