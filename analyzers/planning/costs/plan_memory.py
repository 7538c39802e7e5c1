"""Memory of a layout on its fullest GPU.

States as Megatron-LM counts them (its `theoretical_memory_usage.py`): 18 bytes per weight — 2 of the bf16 weight, 4 of
its fp32 gradient, 12 of Adam's master weight, momentum and variance — of which ZeRO (Rajbhandari et al.,
arXiv:1910.02054, section 5) divides the last 12, then the gradient, then the weight. Where the weight is divided too it
is the master weight itself, and 16 bytes are (PyTorch's FSDP2: fp32 weights, gradients and Adam). Activations:
Korthikanti et al., arXiv:2205.05198, equations 1 to 4, with attention fused (no term in s²) and nothing dropped out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.layout import FULL, NO, SELECTIVE, SQRT, Layout, Stages, micro_batches

BYTES = 2
"""Of a weight or activation in bf16."""
GRADIENT_BYTES = 4
OPTIMIZER_BYTES = 12
STATE_BYTES = BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES
FSDP_BYTES = GRADIENT_BYTES + OPTIMIZER_BYTES
"""Where the weight that is divided is the master weight."""
LOGIT_BYTES = 4
"""Of a logit in fp32, for the loss."""
OPERAND_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 1.0}
"""Of an activation kept for matrix products alone. NVFP4 keeps two copies of half a byte, by row and by column."""


@dataclass(frozen=True)
class Weights:
    """Weights of a GPU: those that all its data-parallel ranks share, and those of its experts."""

    shared: float
    experts: float


def weights(model: Model, layout: Layout, stages: Stages) -> tuple[Weights, ...]:
    """Of the fullest inner stage, the first and the last; of the only one where there is no pipeline."""

    def of(layers: int, ends: float) -> Weights:
        return Weights(
            (layers * model.layer + ends * model.embedding) / layout.tensor,
            layers * model.routed / layout.expert,
        )

    if layout.pipeline == 1:
        return (of(model.layers, 1 if model.tied else 2),)
    inner = (of(stages.most, 0),) if layout.pipeline > 2 else ()
    return (*inner, of(stages.stages[0], 1), of(stages.stages[-1], 1))


def memory(model: Model, layout: Layout, stages: Stages, batch: int, precision: str = "bf16") -> dict[str, float]:
    """Bytes on the fullest GPU by part: parameters, gradients, optimizer, activations."""
    parts = [
        _stage(model, layout, own, batch, layers, in_flight, logits, precision)
        for own, layers, in_flight, logits in _stages(model, layout, stages)
    ]
    return max(parts, key=lambda part: sum(part.values()))


def _stages(model: Model, layout: Layout, stages: Stages) -> list[tuple[Weights, int, int, bool]]:
    """Weights, layers, micro-batches in flight at most, and whether it has the logits, of each kind of stage. Where
    all-to-alls are overlapped a backward pass waits for the forward pass beside it: one more is in flight."""
    found, more = weights(model, layout, stages), int(layout.overlap)
    if layout.pipeline == 1:
        return [(found[0], model.layers, 1 + more, True)]
    first, last = stages.stages[0], stages.stages[-1]
    rows = [(found[-2], first, layout.pipeline + more, False), (found[-1], last, 1 + more, True)]
    return rows + ([(found[0], stages.most, layout.pipeline - 1 + more, False)] if layout.pipeline > 2 else [])


def _stage(
    model: Model, layout: Layout, own: Weights, batch: int, layers: int, in_flight: int, logits: bool, precision: str
) -> dict[str, float]:
    def states(per_weight: int, divided: bool) -> float:
        shared, experts = (layout.shards, layout.expert_shards) if divided else (1, 1)
        return per_weight * (own.shared / shared + own.experts / experts)

    # A ZeRO-3 rank gathers one layer's weights at a time, has the next one's under way, and the gradient of one. The
    # weight that it divides is the master weight, which the optimizer's part counts.
    gathered = 3 * BYTES * (model.layer / layout.tensor + model.routed / layout.expert)
    gathered += states(BYTES, divided=True) if layout.offload != NO else 0.0
    twice = 2 if layout.dual else 1
    second = BYTES * own.shared / layout.secondary if layout.secondary else 0.0
    return {
        "parameters": twice * (gathered if layout.zero >= 3 else states(BYTES, divided=False)) + second,
        "gradients": twice * states(layout.gradients, layout.zero >= 2),
        "optimizer": states(OPTIMIZER_BYTES, layout.zero >= 1) if layout.offload == NO else 0.0,
        "activations": _activations(model, layout, batch, layers, in_flight, logits, precision),
    }


def offloaded(model: Model, layout: Layout, stages: Stages) -> float:
    """Bytes per GPU that an offloaded optimizer takes elsewhere."""
    shared = max(own.shared for own in weights(model, layout, stages))
    experts = max(own.experts for own in weights(model, layout, stages))
    return OPTIMIZER_BYTES * (shared / layout.shards + experts / layout.expert_shards) if layout.offload != NO else 0.0


def layer_activations(model: Model, layout: Layout, precision: str = "bf16") -> float:
    """Bytes of one layer and one micro-batch, kept for the backward pass (equation 4: all of it divided by tensor)."""
    kept = model.kept(selective=layout.recompute == SELECTIVE, operand=OPERAND_BYTES[precision])
    return _tokens(model, layout) * kept / layout.tensor


def _tokens(model: Model, layout: Layout) -> float:
    return layout.micro_batch * model.sequence / layout.context


def _activations(
    model: Model, layout: Layout, batch: int, layers: int, in_flight: int, logits: bool, precision: str
) -> float:
    """With v chunks per stage 1 + (p − 1) / (p·v) times as much is kept (Korthikanti et al., section 4.2.3)."""
    one, tokens = layer_activations(model, layout, precision), _tokens(model, layout)
    whole = layout.recompute in (FULL, SQRT)
    own = BYTES * tokens * model.width / layout.tensor if whole else one
    kept = layout.again * own + (1 - layout.again) * one
    flying: float = min(in_flight, max(micro_batches(layout, batch), 1))
    if layout.chunks > 1 and flying > 1:
        flying *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.chunks)
    working, stored = one if whole else 0.0, layers
    if layout.recompute == SQRT:
        # One input for each group of √n layers, and while a group is computed again all that its layers keep.
        group = max(math.ceil(math.sqrt(layers)), 1)
        stored, working = math.ceil(layers / group), group * one
    head = LOGIT_BYTES * tokens * model.vocabulary / layout.tensor if logits else 0.0
    return kept * stored * flying + working + head
