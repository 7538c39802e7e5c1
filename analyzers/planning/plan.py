"""From a model and a cluster to the document of `gpuscope advise`."""

from __future__ import annotations

from gpuscope.analyzers.planning.candidates import Scored, best_of_each, scored
from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.estimate import ASSUMPTIONS, flops
from gpuscope.analyzers.planning.layout import BYTES, OPTIMIZER_BYTES, bandwidths, bubble, micro_batches, volume
from gpuscope.analyzers.planning.rules import rules
from gpuscope.analyzers.planning.transformer import Model
from gpuscope.errors import UsageError
from gpuscope.report.schema.plan_document import PLAN_VERSION, Plan, PlanEntry
from gpuscope.report.view import units
from gpuscope.version import __version__

TOKENS = 4 << 20
"""Tokens of a step where no batch is named: what Llama 2 (arXiv:2307.09288, section 2.2) trained with."""


def default_batch(model: Model, cluster: Cluster) -> int:
    """Sequences of about `TOKENS`, as a multiple of the GPUs."""
    return max(TOKENS // model.sequence // cluster.gpus, 1) * cluster.gpus


def plan(model: Model, name: str, cluster: Cluster, batch: int, shown: int) -> Plan:
    """The plan for a global batch in sequences. Raises `UsageError` where no layout divides the batch."""
    rows = scored(model, cluster, batch)
    if not rows:
        raise UsageError(
            f"no layout divides a batch of {batch} sequences over {cluster.gpus} GPUs",
            hint=f"a multiple of the GPUs always does: --global-batch {cluster.gpus}",
        )
    best = best_of_each(rows)
    network = cluster.network
    return {
        "plan_version": PLAN_VERSION,
        "gpuscope_version": __version__,
        "model": {
            "name": name, "parameters": model.parameters, "flops_per_step": flops(model, batch),
            "states_bytes": model.parameters * (2 * BYTES + OPTIMIZER_BYTES),
        },
        "cluster": {
            "name": f"{cluster.hosts} x {cluster.gpus_per_host} {cluster.gpu}", "gpus": cluster.gpus,
            "hosts": cluster.hosts, "memory_bytes": cluster.memory, "peak_flops_per_s": cluster.peak,
            "inside": cluster.inside.name, "network": network.name if network else None,
        },
        "global_batch": batch, "sequence": model.sequence, "considered": len(rows),
        "feasible": sum(row.fits for row in rows),
        "candidates": [_entry(model, cluster, row, batch) for row in best[:shown]],
        "rules": rules(model, cluster, rows, batch),
        "placement": _placement(cluster, best[0]) if best else [],
        "assumptions": list(ASSUMPTIONS),
    }  # fmt: skip


def _entry(model: Model, cluster: Cluster, row: Scored, batch: int) -> PlanEntry:
    own = row.layout
    sent = {kind: round(size) for kind, size in volume(model, own, batch).items()}
    return {
        "name": own.name, "data": own.data, "tensor": own.tensor, "pipeline": own.pipeline, "context": own.context,
        "expert": own.expert, "zero": own.zero, "micro_batch": own.micro_batch,
        "micro_batches": micro_batches(own, batch), "recompute": own.recompute,
        "memory_bytes": {part: round(size) for part, size in row.memory.items()},
        "memory_frac": sum(row.memory.values()) / cluster.memory, "volume_bytes": sent,
        "bubble_frac": bubble(own, batch), "estimate_ns": round(row.seconds * 1e9),
        "why": _why(model, cluster, row, batch, sent),
    }  # fmt: skip


def _why(model: Model, cluster: Cluster, row: Scored, batch: int, sent: dict[str, int]) -> list[str]:
    own, rates = row.layout, bandwidths(cluster, row.layout)
    found = [
        f"{kind} parallelism sends {units.size(sent[kind])} per GPU and step at {units.bandwidth(rates[kind] / 1e9)}: "
        f"{units.duration(sent[kind] / rates[kind] * 1e9)}"
        for kind in sorted(sent, key=lambda kind: -sent[kind] / rates[kind])
        if sent[kind]
    ]
    if own.pipeline > 1:
        count = units.plural(micro_batches(own, batch), "micro-batch", "micro-batches")
        found.append(f"{own.pipeline} stages idle {units.share(bubble(own, batch))} with {count}")
    if own.recompute:
        found.append("activations are recomputed: a third more compute, or they would not fit or not as quickly")
    if own.zero == 3:
        found.append(f"ZeRO-3 divides all {units.size(16 * model.parameters)} of the model's states")
    return found


def _placement(cluster: Cluster, best: Scored) -> list[str]:
    def apart(ranks: int) -> str:
        return f"{units.plural(ranks, 'rank')} apart"

    own = best.layout
    found = []
    if own.tensor > 1:
        found.append(f"tensor parallelism over {own.tensor} neighbouring GPUs of one host ({cluster.inside.name})")
    if own.context > 1:
        found.append(f"context parallelism next to it, {apart(own.tensor)}")
    if own.data > 1:
        inside = own.tensor * own.context * own.data <= cluster.gpus_per_host
        where = "inside the host" if inside else "over hosts, which divides gradients over every GPU's own network port"
        found.append(f"data parallelism {where}, {apart(own.tensor * own.context)}")
    if own.pipeline > 1:
        found.append(f"pipeline outermost, {apart(cluster.gpus // own.pipeline)}: it sends least")
    return found
