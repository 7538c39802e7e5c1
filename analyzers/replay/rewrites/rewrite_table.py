"""Which function carries out which change."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from gpuscope.analyzers import changes
from gpuscope.analyzers.replay.graph import Graph, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewrite, Rewritten, Setting
from gpuscope.analyzers.replay.rewrites.early_issue import waited_for

REWRITES: dict[type, str] = {
    changes.BucketSize: "gradient_buckets.bucket_size",
    changes.AccumulatedGradients: "gradient_buckets.accumulated",
    changes.Overlap: "gradient_buckets.overlap",
    changes.Prefetch: "sharded_parameters.prefetch",
    changes.KeepParameters: "sharded_parameters.keep_parameters",
    changes.GroupModules: "sharded_parameters.group_modules",
    changes.EarlyMessages: "early_messages.early_messages",
    changes.WireBytes: "transfer_cost.wire_bytes",
    changes.LinkSpeed: "transfer_cost.link_speed",
    changes.Algorithm: "nccl_algorithm.algorithm",
    changes.LineRate: "transfer_cost.line_rate",
    changes.MeasuredTransfers: "transfer_cost.measured_transfers",
    changes.MoreRanks: "transfer_cost.more_ranks",
    changes.LoaderWorkers: "loader_workers.loader_workers",
    changes.MoreLoaderWorkers: "loader_workers.more_workers",
    changes.PinnedCopies: "host_work.pinned_copies",
    changes.CopyStream: "host_work.copy_stream",
    changes.RemovedSyncs: "host_work.removed_syncs",
    changes.CapturedGraphs: "host_work.captured_graphs",
    changes.NoCollector: "host_work.no_collector",
    changes.NoAllocatorStalls: "host_work.no_allocator",
    changes.NoHostWork: "host_work.no_host_work",
    changes.ReplacedRank: "slow_ranks.replaced_rank",
    changes.Precision: "faster_kernels.precision",
    changes.PaddedProducts: "faster_kernels.padded_products",
    changes.NearerRoof: "faster_kernels.nearer_roof",
    changes.FusedKernels: "faster_kernels.fused_kernels",
    changes.NoLayoutConversion: "faster_kernels.no_layout_conversion",
    changes.FusedAttention: "faster_kernels.fused_attention",
    changes.HopperAttention: "faster_kernels.hopper_attention",
    changes.FusedOptimizer: "faster_kernels.fused_optimizer",
    changes.GradientViews: "faster_kernels.gradient_views",
    changes.SharedWork: "slow_ranks.shared_work",
    changes.ExpertLoads: "expert_loads.expert_loads",
}
"""The file of this folder and its function: few changes are tried on a run, and their files imported."""


def rewrite(graph: Graph, change: changes.Change, setting: Setting) -> Rewritten:
    """The graph after a change. Raises `UnreplayableError` where the trace can't support it."""
    found = REWRITES.get(type(change))
    if found is None:
        raise UnreplayableError("the replay has no model of this change")
    file, _, function = found.partition(".")
    carry_out: Rewrite = getattr(import_module(f"{__package__}.{file}"), function)
    made = carry_out(graph, change, setting)
    if setting.gpu and isinstance(change, changes.RegroupedCommunication):
        return replace(made, graph=waited_for(made.graph))
    return made
