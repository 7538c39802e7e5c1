"""Which function carries out which change."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from gpuscope.analyzers import what_if_changes
from gpuscope.analyzers.replay.graph import Graph, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewrite, Rewritten, Setting
from gpuscope.analyzers.replay.rewrites.transfer_cost import waited_for

REWRITES: dict[type, str] = {
    what_if_changes.BucketSize: "gradient_buckets.bucket_size",
    what_if_changes.AccumulatedGradients: "gradient_buckets.accumulated",
    what_if_changes.Overlap: "gradient_buckets.overlap",
    what_if_changes.Prefetch: "loader_workers.prefetch",
    what_if_changes.KeepParameters: "loader_workers.keep_parameters",
    what_if_changes.GroupModules: "loader_workers.group_modules",
    what_if_changes.EarlyMessages: "transfer_cost.early_messages",
    what_if_changes.WireBytes: "transfer_cost.wire_bytes",
    what_if_changes.LinkSpeed: "transfer_cost.link_speed",
    what_if_changes.AtBest: "transfer_bounds.at_best",
    what_if_changes.Algorithm: "transfer_cost.algorithm",
    what_if_changes.LineRate: "transfer_cost.line_rate",
    what_if_changes.MeasuredTransfers: "transfer_cost.measured_transfers",
    what_if_changes.MoreRanks: "transfer_cost.more_ranks",
    what_if_changes.LoaderWorkers: "loader_workers.loader_workers",
    what_if_changes.MoreLoaderWorkers: "loader_workers.more_workers",
    what_if_changes.PinnedCopies: "host_work.pinned_copies",
    what_if_changes.CopyStream: "host_work.copy_stream",
    what_if_changes.RemovedSyncs: "host_work.removed_syncs",
    what_if_changes.CapturedGraphs: "host_work.captured_graphs",
    what_if_changes.NoCollector: "host_work.no_collector",
    what_if_changes.NoAllocatorStalls: "host_work.no_allocator",
    what_if_changes.NoHostWork: "host_work.no_host_work",
    what_if_changes.ReplacedRank: "gradient_buckets.replaced_rank",
    what_if_changes.Precision: "faster_kernels.precision",
    what_if_changes.PaddedProducts: "faster_kernels.padded_products",
    what_if_changes.NearerRoof: "faster_kernels.nearer_roof",
    what_if_changes.FusedKernels: "faster_kernels.fused_kernels",
    what_if_changes.NoLayoutConversion: "faster_kernels.no_layout_conversion",
    what_if_changes.FusedAttention: "faster_kernels.fused_attention",
    what_if_changes.HopperAttention: "faster_kernels.hopper_attention",
    what_if_changes.FusedOptimizer: "faster_kernels.fused_optimizer",
    what_if_changes.GradientViews: "faster_kernels.gradient_views",
    what_if_changes.SharedWork: "gradient_buckets.shared_work",
    what_if_changes.ExpertLoads: "transfer_cost.expert_loads",
}
"""The file of this folder and its function: few changes are tried on a run, and their files imported."""


def rewrite(graph: Graph, change: what_if_changes.Change, setting: Setting) -> Rewritten:
    """The graph after a change. Raises `UnreplayableError` where the trace can't support it."""
    found = REWRITES.get(type(change))
    if found is None:
        raise UnreplayableError("the replay has no model of this change")
    file, _, function = found.partition(".")
    carry_out: Rewrite = getattr(import_module(f"{__package__}.{file}"), function)
    made = carry_out(graph, change, setting)
    if setting.gpu and isinstance(change, what_if_changes.RegroupedCommunication):
        return replace(made, graph=waited_for(made.graph))
    return made
