"""A way to spread a model over a cluster, and what it takes: memory by part, bytes sent, idle share.

Memory of the model's states: Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3 (2Ψ weights, 2Ψ gradients, 12Ψ for
Adam in mixed precision) and section 5 (what each stage divides). Activations: Korthikanti et al., arXiv:2205.05198,
equations 1 to 4, counted part by part, so that gated feed-forward parts and grouped queries come out too; attention is
taken to be fused (FlashAttention), so its 5·a·s²·b term is absent, and nothing is dropped out. Bubble of 1F1B:
Narayanan et al., arXiv:2104.04473, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.analyzers.pipelines.schedules import bubble_frac
from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.transformer import Model

BYTES = 2
"""Of a weight, gradient or activation in bf16."""
OPTIMIZER_BYTES = 12
"""Of Adam per weight: master weight, momentum and variance in fp32."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallelisms; `tensor` includes sequence parallelism. ZeRO 0 is plain data parallelism."""

    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    zero: int = 0
    micro_batch: int = 1
    recompute: bool = False

    @property
    def name(self) -> str:
        """`dp 8 (ZeRO-1) x tp 8 x pp 4, micro-batch 1, full recomputation`."""
        zero = f" (ZeRO-{self.zero})" if self.zero else ""
        others = (("tp", self.tensor), ("pp", self.pipeline), ("cp", self.context), ("ep", self.expert))
        sizes = "".join(f" x {kind} {size}" for kind, size in others if size > 1)
        tail = ", full recomputation" if self.recompute else ""
        return f"dp {self.data}{zero}{sizes}, micro-batch {self.micro_batch}{tail}"

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO divides: those that hold the same weights."""
        return self.data * self.context


def micro_batches(layout: Layout, batch: int) -> int:
    """Micro-batches of a step per replica, for a global batch in sequences."""
    return batch // (layout.data * layout.micro_batch)


@dataclass(frozen=True)
class Weights:
    """Weights on the fullest GPU: those that all data-parallel ranks share, and those of its experts."""

    shared: float
    experts: float


def weights(model: Model, layout: Layout) -> Weights:
    """Of a first or last pipeline stage, whichever GPU holds more: its layers, and an embedding or the output layer."""
    per_stage = model.layers / layout.pipeline
    ends = model.embedding * (2 if layout.pipeline == 1 and not model.tied else 1)
    return Weights(
        (per_stage * model.layer + ends) / layout.tensor,
        per_stage * model.layer_experts / (layout.tensor * layout.expert),
    )


def memory(model: Model, layout: Layout, batch: int) -> dict[str, float]:
    """Bytes on the fullest GPU by part: parameters, gradients, optimizer, activations."""
    own, shards = weights(model, layout), layout.shards
    # Experts are replicated only over the data-parallel ranks that do not share them out.
    spread = max(shards // layout.expert, 1)

    def states(per_weight: int, divided: bool) -> float:
        return per_weight * (own.shared / (shards if divided else 1) + own.experts / (spread if divided else 1))

    # A ZeRO-3 rank gathers one layer's weights at a time, and has the next one's under way.
    gathered = 2 * BYTES * (model.layer / layout.tensor + model.layer_experts / (layout.tensor * layout.expert))
    return {
        "parameters": states(BYTES, layout.zero >= 3) + (gathered if layout.zero >= 3 and shards > 1 else 0.0),
        "gradients": states(BYTES, layout.zero >= 2),
        "optimizer": states(OPTIMIZER_BYTES, layout.zero >= 1),
        "activations": activations(model, layout, batch),
    }


def layer_activations(model: Model, layout: Layout) -> float:
    """Bytes of one layer and one micro-batch, kept for the backward pass (equation 4: all of it divided by tensor).

    Per token and in bf16: two norms' inputs, attention's input, queries, keys, values and output, the feed-forward
    part's input and what lies between its matrices. For GPT (ffn 4·width, no grouping, no dropout) that is
    32·s·b·h of the paper's 34; the other two are dropout masks.
    """
    tokens = layout.micro_batch * model.sequence / layout.context
    attention = 3 * model.width + 2 * model.kv_width
    between = (3 if model.gated else 2) * model.ffn * (model.experts_per_token if model.experts else 1)
    return BYTES * tokens * (2 * model.width + attention + model.width + between) / layout.tensor


def activations(model: Model, layout: Layout, batch: int) -> float:
    """Bytes on the first pipeline stage, which keeps most micro-batches, or on the last, which has the logits."""
    one = layer_activations(model, layout)
    tokens = layout.micro_batch * model.sequence / layout.context
    kept = BYTES * tokens * model.width / layout.tensor if layout.recompute else one
    per_stage = model.layers / layout.pipeline
    in_flight = min(layout.pipeline, max(micro_batches(layout, batch), 1))
    working = one if layout.recompute else 0.0
    logits = 4 * tokens * model.vocabulary / layout.tensor  # fp32, for the loss
    first, last = kept * per_stage * in_flight + working, kept * per_stage + working + logits
    return first + logits if layout.pipeline == 1 else max(first, last)


def bubble(layout: Layout, batch: int) -> float:
    """Share of a step that a pipeline stage idles under 1F1B: (p − 1) / (m + p − 1)."""
    return bubble_frac(layout.pipeline, micro_batches(layout, batch))


def volume(model: Model, layout: Layout, batch: int) -> dict[str, float]:
    """Bytes that a GPU sends per step, by parallelism.

    data: ZeRO section 7: 2Ψ for an all-reduce, as for stages 1 and 2 (which reduce once per micro-batch with stage
    2), 3Ψ per micro-batch for stage 3. tensor: four all-reduces of the activations per layer and micro-batch
    (Shoeybi et al., arXiv:1909.08053, section 3). pipeline: an activation and its gradient. context: keys and
    values forward, again backward with their gradients (Liu et al., Ring Attention, arXiv:2310.01889). expert:
    tokens out and back, forward and backward (Lepikhin et al., GShard, arXiv:2006.16668).
    """
    count = micro_batches(layout, batch)
    tokens = layout.micro_batch * model.sequence / layout.context
    hidden = BYTES * tokens * model.width
    layers = model.layers / layout.pipeline
    own = weights(model, layout)
    spread = max(layout.shards // layout.expert, 1)
    rounds = {0: 2, 1: 2, 2: count + 1, 3: 3 * count}[layout.zero]
    states = own.shared * _ring(layout.shards) + own.experts * _ring(spread)
    keys = BYTES * tokens * 2 * model.kv_width / layout.tensor
    return {
        "data": BYTES * rounds * states,
        "tensor": count * layers * 4 * 2 * _ring(layout.tensor) * hidden,
        "pipeline": (count * 2 * hidden / layout.tensor) if layout.pipeline > 1 else 0.0,
        "context": count * layers * 3 * (layout.context - 1) * keys,
        "expert": count * layers * 4 * _ring(layout.expert) * hidden * model.experts_per_token / layout.tensor
        if model.experts else 0.0,
    }  # fmt: skip


def _ring(size: int) -> float:
    """Share of the bytes that a ring of so many ranks sends on."""
    return (size - 1) / size


def bandwidths(cluster: Cluster, layout: Layout) -> dict[str, float]:
    """Bytes/s per GPU for each parallelism, with tensor innermost, then context, data, and the pipeline outermost."""
    inner = layout.tensor * layout.context
    return {
        "data": cluster.bandwidth(layout.data * layout.context, layout.tensor),
        "tensor": cluster.bandwidth(layout.tensor, 1),
        "pipeline": cluster.bandwidth(layout.pipeline, inner * layout.data),
        "context": cluster.bandwidth(layout.context, layout.tensor),
        "expert": cluster.bandwidth(layout.expert, inner),
    }
