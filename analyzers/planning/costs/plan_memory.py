"""Memory of a layout on its fullest GPU.

States as Megatron-LM counts them (its `theoretical_memory_usage.py`): 18 bytes per weight — 2 of the bf16 weight, 4 of
its fp32 gradient, 12 of Adam's master weight, momentum and variance — of which ZeRO (Rajbhandari et al.,
arXiv:1910.02054, section 5) divides the last 12, then the gradient, then the weight. Activations: Korthikanti et al.,
arXiv:2205.05198, equations 1 to 4, with attention fused (no term in s²) and nothing dropped out.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.layout import FULL, NO, SELECTIVE, Layout, Stages, micro_batches

BYTES = 2
"""Of a weight or activation in bf16."""
GRADIENT_BYTES = 4
OPTIMIZER_BYTES = 12
STATE_BYTES = BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES
LOGIT_BYTES = 4
"""Of a logit in fp32, for the loss."""


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


def memory(model: Model, layout: Layout, stages: Stages, batch: int) -> dict[str, float]:
    """Bytes on the fullest GPU by part: parameters, gradients, optimizer, activations."""
    parts = [
        _stage(model, layout, own, batch, layers, in_flight, logits)
        for own, layers, in_flight, logits in _stages(model, layout, stages)
    ]
    return max(parts, key=lambda part: sum(part.values()))


def _stages(model: Model, layout: Layout, stages: Stages) -> list[tuple[Weights, int, int, bool]]:
    """Weights, layers, micro-batches in flight at most, and whether it has the logits, of each kind of stage."""
    found = weights(model, layout, stages)
    if layout.pipeline == 1:
        return [(found[0], model.layers, 1, True)]
    first, last = stages.stages[0], stages.stages[-1]
    rows = [(found[-2], first, layout.pipeline, False), (found[-1], last, 1, True)]
    return rows + ([(found[0], stages.most, layout.pipeline - 1, False)] if layout.pipeline > 2 else [])


def _stage(
    model: Model, layout: Layout, own: Weights, batch: int, layers: int, in_flight: int, logits: bool
) -> dict[str, float]:
    def states(per_weight: int, divided: bool) -> float:
        shared, experts = (layout.shards, layout.expert_shards) if divided else (1, 1)
        return per_weight * (own.shared / shared + own.experts / experts)

    # A ZeRO-3 rank gathers one layer's weights at a time, has the next one's under way, and the gradient of one.
    gathered = 3 * BYTES * (model.layer / layout.tensor + model.routed / layout.expert)
    second = BYTES * own.shared / layout.secondary if layout.secondary else 0.0
    return {
        "parameters": states(BYTES, layout.zero >= 3) + (gathered if layout.zero >= 3 else 0.0) + second,
        "gradients": states(GRADIENT_BYTES, layout.zero >= 2),
        "optimizer": states(OPTIMIZER_BYTES, layout.zero >= 1) if layout.offload == NO else 0.0,
        "activations": _activations(model, layout, batch, layers, in_flight, logits),
    }


def offloaded(model: Model, layout: Layout, stages: Stages) -> float:
    """Bytes per GPU that an offloaded optimizer takes elsewhere."""
    shared = max(own.shared for own in weights(model, layout, stages))
    experts = max(own.experts for own in weights(model, layout, stages))
    return OPTIMIZER_BYTES * (shared / layout.shards + experts / layout.expert_shards) if layout.offload != NO else 0.0


def layer_activations(model: Model, layout: Layout) -> float:
    """Bytes of one layer and one micro-batch, kept for the backward pass (equation 4: all of it divided by tensor)."""
    elements = model.kept(selective=layout.recompute == SELECTIVE)
    return BYTES * _tokens(model, layout) * elements / layout.tensor


def _tokens(model: Model, layout: Layout) -> float:
    return layout.micro_batch * model.sequence / layout.context


def _activations(model: Model, layout: Layout, batch: int, layers: int, in_flight: int, logits: bool) -> float:
    """With v chunks per stage 1 + (p − 1) / (p·v) times as much is kept (Korthikanti et al., section 4.2.3)."""
    one, tokens = layer_activations(model, layout), _tokens(model, layout)
    kept = BYTES * tokens * model.width / layout.tensor if layout.recompute == FULL else one
    flying: float = min(in_flight, max(micro_batches(layout, batch), 1))
    if layout.chunks > 1 and flying > 1:
        flying *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.chunks)
    working = one if layout.recompute == FULL else 0.0
    head = LOGIT_BYTES * tokens * model.vocabulary / layout.tensor if logits else 0.0
    return kept * layers * flying + working + head
