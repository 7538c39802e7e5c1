"""A step time for the order of candidates. Everything here is assumed; only a trace of a run is a measurement."""

from __future__ import annotations

from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.layout import Layout, bandwidths, bubble, micro_batches, volume
from gpuscope.analyzers.planning.transformer import Model

EFFICIENCY = 0.5
"""Of the peak while computing: published runs reach 40 to 57 % overall (Narayanan et al., arXiv:2104.04473, table 1;
Korthikanti et al., arXiv:2205.05198, table 5)."""
BACKWARD = 2 / 3
"""Of the compute: the backward pass does each multiplication twice."""
RECOMPUTED = 4 / 3
"""Compute with the forward pass done again, by compute without."""
USABLE = 0.9
"""Of a GPU's memory: the rest is left to CUDA's context, NCCL's buffers, temporary tensors and fragmentation."""
ASSUMPTIONS = (
    f"compute runs at {EFFICIENCY * 100:.0f} % of the GPU's dense bf16 peak, whatever the sizes",
    "links give their usable rate (gpuscope/hardware/links.toml); fixed costs of messages are left out",
    "gradients are reduced behind the last micro-batch's backward, ZeRO-3 gathers behind all compute; tensor, context "
    "and expert communication is not hidden",
    "one-forward-one-backward pipeline without interleaving, equal stages; the load of experts is balanced",
    "bf16 with Adam in fp32 (16 bytes per parameter), fused attention, no dropout",
    f"{USABLE * 100:.0f} % of the memory is usable",
)


def flops(model: Model, batch: int) -> float:
    """Of a step."""
    return model.flops_per_token * model.sequence * batch


def step_seconds(model: Model, cluster: Cluster, layout: Layout, batch: int) -> float:
    """The assumed step."""
    compute = flops(model, batch) / (cluster.gpus * cluster.peak * EFFICIENCY) * (RECOMPUTED if layout.recompute else 1)
    sent, rates = volume(model, layout, batch), bandwidths(cluster, layout)
    times = {kind: size / rates[kind] for kind, size in sent.items()}
    hidden = compute if layout.zero >= 3 else BACKWARD * compute / micro_batches(layout, batch)
    exposed = sum(times[kind] for kind in ("tensor", "pipeline", "context", "expert"))
    return (compute + exposed) / (1 - bubble(layout, batch)) + max(times["data"] - hidden, 0.0)
