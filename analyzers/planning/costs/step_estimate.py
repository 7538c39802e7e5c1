"""The time of a step: compute, what of its communication nothing hides, and the pipeline's bubble."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.analyzers.planning.costs.compute_time import (
    CAUSAL,
    SUSTAINED,
    LayerTime,
    head_time,
    host_time,
    layer_time,
    speed_of,
    update_time,
)
from gpuscope.analyzers.planning.costs.messages import Messages, messages
from gpuscope.analyzers.planning.costs.plan_memory import OPTIMIZER_BYTES, Weights, weights
from gpuscope.analyzers.planning.costs.rates import ATTENTION_EFFICIENCY, Rates
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.layout import (
    NO,
    NVME,
    RING,
    Layout,
    Stages,
    bubble,
    micro_batches,
    split,
)
from gpuscope.words import units

CPU_ADAM_NS = 0.25
"""Per weight and host: DeepSpeed's CPU Adam updates 1e9 weights in 0.26 s (DeepSpeed, ZeRO-Offload tutorial)."""
TENSOR_HIDDEN = 0.5
"""Of tensor parallelism's messages, sent by parts beside the product that needs or makes them (Megatron-LM's
--tp-comm-overlap, torchtitan's asynchronous tensor parallelism; Wang et al., ASPLOS 2023). Fitted."""
HAND_OVER = 1e-3
"""Seconds that a host waits around each message between pipeline stages where it synchronises for it (Megatron-LM of
2020 to 2022). Fitted with `HOST_PER_LAUNCH`."""
SENDING_SHARE = 20 / 132
"""Of a GPU that communication takes from the compute that hides it: 20 of its 132 multiprocessors (DeepSeek-V3, section
3.2.2)."""
ASSUMPTIONS = (
    "links give their usable rate and NCCL's latency (gpuscope/hardware/links.toml), whatever else they carry",
    "gradients are reduced behind the last micro-batch's backward pass; ZeRO-3 gathers a layer's weights behind the "
    "one before; a context ring hides behind its attention; an interleaved pipeline's messages behind its compute; "
    f"{units.whole_share(TENSOR_HIDDEN)} of tensor parallelism's; all-to-alls of experts only where they are said to "
    "overlap",
    "layers are spread as evenly as they divide; the load of experts is balanced",
    "Adam in fp32 (18 bytes per weight, 16 where weights are divided), fused attention, no dropout",
)


def assumptions(cluster: Cluster, precision: str, measured: bool) -> list[str]:
    """What an estimate rests on, in words."""
    compute = (
        f"large {precision} products run at {units.whole_share(SUSTAINED * cluster.reached[precision])} of the GPU's "
        f"dense peak, thin ones as memory allows, and attention at "
        f"{units.whole_share(ATTENTION_EFFICIENCY)} of the bf16 peak"
    )
    own = [] if measured else [compute]
    return [*own, *ASSUMPTIONS, f"{units.whole_share(cluster.usable_frac)} of the memory is usable"]


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step by part, and bytes sent by kind. The parts sum to `seconds`."""

    compute: float
    bubble: float
    exposed: dict[str, float]
    offload: float
    other: float
    sent: dict[str, float]
    in_flight: dict[str, float]
    """Communication by kind, hidden or not."""
    host: float = 0.0
    """What the device waits for its host's launches."""
    launching: tuple[float, float] = (0.0, 0.0)
    """Of a micro-batch on the slowest stage: seconds of the host, and of the device."""

    @property
    def seconds(self) -> float:
        """The step."""
        return self.compute + self.host + self.bubble + sum(self.exposed.values()) + self.offload + self.other

    @property
    def hidden(self) -> float:
        """Seconds of communication behind compute."""
        return sum(self.in_flight.values()) - sum(self.exposed.values())

    def beats(self, other: Estimate, error: float) -> bool:
        """Whether it is quicker by more than `error` of what the two do not share: what they share is wrong for both
        alike. Of hidden messages those count that it has more of, for these may turn out not to be hidden."""
        apart = sum(abs(size - other.exposed[kind]) for kind, size in self.exposed.items())
        apart += max(self.hidden - other.hidden, 0.0)
        apart += abs(self.compute - other.compute) + abs(self.bubble - other.bubble) + abs(self.offload - other.offload)
        return other.seconds - self.seconds > error * apart


def flops(model: Model, batch: int) -> float:
    """Of a step: forward and backward, nothing recomputed, causal attention by half."""
    return model.flops_per_token * model.sequence * batch


def stages_of(model: Model, layout: Layout) -> Stages:
    """The split of the layers; the output layer counts as the layers that take as long."""
    return split(model.layers, layout.pipeline, layout.chunks, model.embedding / model.active)


def estimate(
    model: Model, cluster: Cluster, layout: Layout, batch: int, rates: Rates, precision: str = "bf16"
) -> Estimate:
    """The step of a layout. Of the stages the one that takes longest sets the pace."""
    count = micro_batches(layout, batch)
    # Megatron-LM of those years gave each stage as many layers, whatever the output layer takes.
    head = 0.0 if rates.early_megatron else model.embedding / model.active
    stages = split(model.layers, layout.pipeline, layout.chunks, head)
    speed = speed_of(cluster, rates, precision)
    layer = layer_time(model, layout, speed)
    own = max(weights(model, layout, stages), key=lambda one: one.shared + one.experts)
    sent = messages(model, cluster, layout, own, stages.most, rates, precision)
    head, layers = head_time(model, layout, speed), stages.most
    compute = max(layers * layer.both if layout.pipeline > 1 else 0.0, stages.stages[-1] * layer.both + head)
    exposed, in_flight, volume = _communication(model, layout, layer, sent, layers, count, rates)
    inner = sum(exposed[kind] for kind in ("tensor", "context", "expert", "pipeline"))
    launching = layers * host_time(model, layout, rates)
    host = count * max(launching - compute - inner / count, 0.0)
    host += 2 * HAND_OVER * layout.chunks * count if rates.early_megatron and layout.pipeline > 1 else 0.0
    per_round = compute * count + inner + host
    idle = bubble(layout, batch)
    mine = _divided(layout, own) if layout.zero else own.shared + own.experts
    update = update_time(mine, cluster, rates) if layout.offload == NO else 0.0
    return Estimate(
        compute * count + update,
        per_round * idle / (1 - idle),
        exposed,
        _offload(layout, cluster, own),
        rates.step_ns / 1e9,
        volume,
        in_flight,
        host,
        (launching, compute + inner / count),
    )


def _divided(layout: Layout, own: Weights) -> float:
    """Weights of a GPU after ZeRO."""
    return own.shared / layout.shards + own.experts / layout.expert_shards


def _communication(
    model: Model, layout: Layout, layer: LayerTime, sent: Messages, layers: int, count: int, rates: Rates
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Exposed seconds, all seconds, and bytes, by kind, of a step."""
    rounds, sparse = layers * count, model.moe_layers / model.layers
    times = {
        "tensor": rounds * sent.tensor_count * sent.tensor.seconds,
        "context": rounds * sent.context_count * sent.context.seconds,
        "expert": rounds * sparse * sent.expert_count * sent.expert.seconds,
        "pipeline": 2 * layout.chunks * count * sent.pipeline.seconds,
    }
    volume = {
        "tensor": rounds * sent.tensor_count * sent.tensor.nbytes,
        "context": rounds * sent.context_count * sent.context.nbytes,
        "expert": rounds * sparse * sent.expert_count * sent.expert.nbytes,
        "pipeline": 2 * layout.chunks * count * sent.pipeline.nbytes,
    }
    exposed = dict(times)
    exposed["tensor"] *= 1 if rates.link("tensor") or rates.eager or rates.early_megatron else 1 - TENSOR_HIDDEN
    if layout.chunks > 1:
        exposed["pipeline"] = 0.0
    if layout.overlap:
        beside = rounds * layer.both
        exposed["expert"] = max(times["expert"] - beside, 0.0) + SENDING_SHARE * min(times["expert"], beside)
    if layout.exchange == RING:
        hidden = layer.both / max(layout.context, 1) * (layout.context - 1)
        exposed["context"] = max(times["context"] - rounds * hidden * _attention_share(model), 0.0)
    gathers = count if layout.zero >= 3 else 1
    reduces = count if layout.zero >= 2 else 1
    volume["data"] = layers * (
        gathers * (sent.gather.nbytes + sent.regather.nbytes) + reduces * sent.reduce.nbytes + sent.replicate.nbytes
    )
    times["data"] = layers * (
        gathers * (sent.gather.seconds + sent.regather.seconds) + reduces * sent.reduce.seconds + sent.replicate.seconds
    )
    exposed["data"] = (
        times["data"] * (1 - rates.overlap_frac)
        if rates.overlap_frac is not None
        else _data_exposed(layout, layer, sent, layers, gathers, reduces)
    )
    for kind in ("context", "data") if rates.overlap_frac is None else ("context",):
        exposed[kind] += SENDING_SHARE * max(times[kind] - exposed[kind], 0.0)
    return exposed, times, volume


def _attention_share(model: Model) -> float:
    """Of a layer's compute, by multiplications."""
    attention = CAUSAL * model.attention_flops
    return attention / (attention + 2 * model.active)


def _data_exposed(layout: Layout, layer: LayerTime, sent: Messages, layers: int, gathers: int, reduces: int) -> float:
    """As the replay has it: a layer's weights are gathered while the one before computes, its gradients reduced while
    the one before it in the backward pass does; the first gather and the last reduction have nothing to hide behind."""
    more = layers - 1

    def behind(message: float, compute: float) -> float:
        return message + more * max(message - compute, 0.0) if message else 0.0

    if layout.zero >= 3:
        both = sent.regather.seconds + sent.reduce.seconds
        found = gathers * (behind(sent.gather.seconds, layer.forward) + behind(both, layer.backward))
    else:
        found = reduces * behind(sent.reduce.seconds, layer.backward) + behind(sent.gather.seconds, layer.forward)
    return found + behind(sent.replicate.seconds, layer.backward)


def _offload(layout: Layout, cluster: Cluster, own: Weights) -> float:
    """Gradients to the host, its update, weights back (Ren et al., ZeRO-Offload, arXiv:2101.06840); with NVMe the
    states read and written too (Rajbhandari et al., ZeRO-Infinity, arXiv:2104.07857). Nothing of it is hidden."""
    if layout.offload == "none":
        return 0.0
    mine = _divided(layout, own)
    moved = (4 + 2) * mine / (cluster.host_link_gbps * 1e9) if cluster.host_link_gbps else 0.0
    update = CPU_ADAM_NS * mine * cluster.gpus_per_host / 1e9
    states = 2 * OPTIMIZER_BYTES * mine * cluster.gpus_per_host
    return moved + update + (states / (cluster.nvme_gbps * 1e9) if layout.offload == NVME else 0.0)
