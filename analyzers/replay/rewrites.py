"""Which function carries out which change."""

from __future__ import annotations

from analyzers.replay import algorithm, buckets, changes, fsdp, host, links, loader, ranks
from analyzers.replay.graph import Graph, UnreplayableError
from analyzers.replay.rewriting import Rewrite, Rewritten, Setting

REWRITES: dict[type, Rewrite] = {
    changes.BucketSize: buckets.bucket_size,
    changes.Overlap: buckets.overlap,
    changes.Prefetch: fsdp.prefetch,
    changes.KeepParameters: fsdp.keep_parameters,
    changes.GroupModules: fsdp.group_modules,
    changes.WireBytes: links.wire_bytes,
    changes.LinkSpeed: links.link_speed,
    changes.Algorithm: algorithm.algorithm,
    changes.MoreRanks: links.more_ranks,
    changes.LoaderWorkers: loader.loader_workers,
    changes.PinnedCopies: host.pinned_copies,
    changes.RemovedSyncs: host.removed_syncs,
    changes.CapturedGraphs: host.captured_graphs,
    changes.NoCollector: host.no_collector,
    changes.NoAllocatorStalls: host.no_allocator,
    changes.NoHostWork: host.no_host_work,
    changes.ReplacedRank: ranks.replaced_rank,
}

_UNTOLD: dict[type, str] = {
    changes.SequenceParallel: "it moves as many bytes in two collectives instead of one; what it saves, memory and "
    "compute of norms and dropout, the trace does not tell: run it",
}


def rewrite(graph: Graph, change: changes.Change, setting: Setting) -> Rewritten:
    """The graph after a change. Raises `UnreplayableError` where the trace can't support it."""
    found = REWRITES.get(type(change))
    if found is None:
        raise UnreplayableError(_UNTOLD.get(type(change), "the replay has no model of this change"))
    return found(graph, change, setting)
