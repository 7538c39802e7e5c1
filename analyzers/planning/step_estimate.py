"""The time of a step: compute, what of its communication nothing hides, and the pipeline's bubble."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.compute_time import (
    CAUSAL,
    SUSTAINED,
    LayerTime,
    head_time,
    host_time,
    layer_time,
    speed_of,
    update_time,
)
from gpuscope.analyzers.planning.plan_memory import (
    ATTENTION_EFFICIENCY,
    BYTES,
    NO,
    NVME,
    OPTIMIZER_BYTES,
    RING,
    ULYSSES,
    Layout,
    Rates,
    Stages,
    Weights,
    bubble,
    micro_batches,
    split,
    weights,
)
from gpuscope.analyzers.planning.transformer import Model
from gpuscope.collective_costs.bus_bandwidth import bus_bytes, more_steps
from gpuscope.words import units

# What the ranks of a layout send: bytes, and the time by a link's cost and bandwidth.
#
# Sent per rank, with tokens those of a micro-batch on a rank and Ψ the weights on a GPU before ZeRO divides them:
#
# tensor: with sequence parallelism two all-gathers and two reduce-scatters of the activations per layer, forward and
# again backward (Korthikanti et al., arXiv:2205.05198, section 4.2.2); with full recomputation the forward ones twice.
# pipeline: an activation and its gradient per chunk. context: keys and values in a ring forward, backward with their
# gradients (Liu et al., Ring Attention, arXiv:2310.01889), or four all-to-alls of queries, keys, values and output
# (Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509). expert: tokens out and back, forward and backward (Lepikhin et
# al., GShard, arXiv:2006.16668), each once to a host and from there once to each GPU that has an expert of it, as
# DeepEP
# does (DeepSeek-V3, arXiv:2412.19437, section 3.2.2), out in FP8 and back in bf16 where the plan is for FP8.
# data: gradients in fp32 or bf16, weights in bf16 (ZeRO, arXiv:1910.02054, section 7); ZeRO++ as Wang et al.,
# arXiv:2306.10209, section 3.

QUANTIZED_WEIGHT_BYTES = 1.0
QUANTIZED_GRADIENT_BYTES = 0.5


@dataclass(frozen=True)
class Message:
    """One collective or transfer: bytes that a rank sends, and its seconds."""

    nbytes: float = 0.0
    seconds: float = 0.0


NOTHING = Message()


@dataclass(frozen=True)
class Messages:
    """Of one layer and micro-batch unless said otherwise; forward and backward together where not."""

    tensor: Message
    tensor_count: float
    context: Message
    context_count: float
    expert: Message
    expert_count: float
    pipeline: Message
    """Of one chunk of a stage, one way."""
    gather: Message
    """Of a layer's weights, forward."""
    regather: Message
    """Of a layer's weights, backward."""
    reduce: Message
    """Of a layer's gradients."""
    replicate: Message
    """Of a layer's gradients over the replicas of hybrid sharding, once per step."""


def messages(
    model: Model, cluster: Cluster, layout: Layout, own: Weights, layers: int, rates: Rates, precision: str = "bf16"
) -> Messages:
    """Every message of a stage with these weights and so many layers."""
    link = _Links(cluster, layout, rates)
    tokens = layout.micro_batch * model.sequence / layout.context
    hidden, again = BYTES * tokens * model.width, layout.again
    context, context_count = _context(model, layout, link, tokens, again)
    experts = layout.expert > 1 and model.experts > 0
    element = (BYTES + (BYTES if precision == "bf16" else 1)) / 2
    moved = element / BYTES * hidden / layout.tensor
    return Messages(
        link.ring("tensor", "all_gather", hidden, layout.tensor, 1),
        8 + 4 * again if layout.tensor > 1 else 0,
        context,
        context_count,
        link.experts(model, moved) if experts else NOTHING,
        4 + 2 * again if experts else 0,
        link.pair("pipeline", hidden / layout.tensor, cluster.gpus // layout.pipeline)
        if layout.pipeline > 1
        else NOTHING,
        *_data(layout, link, own, max(layers, 1)),
    )


def _context(model: Model, layout: Layout, link: _Links, tokens: float, again: float) -> tuple[Message, float]:
    if layout.context == 1:
        return NOTHING, 0
    kv = model.kv if model.kv_rank else 2 * (model.kv_heads or model.heads) * model.head
    if layout.exchange == ULYSSES:
        elements = model.heads * (model.query + model.value) + kv
        whole = BYTES * tokens * elements / layout.tensor
        return link.all_to_all("context", whole, layout.context, layout.tensor), 2 + again
    whole = BYTES * tokens * kv / layout.tensor * layout.context
    return link.ring("context", "all_gather", whole, layout.context, layout.tensor), 3 + again


def _data(layout: Layout, link: _Links, own: Weights, layers: int) -> tuple[Message, Message, Message, Message]:
    """Gather, gather again, reduce, and reduce over the replicas of hybrid sharding: each of one layer's share."""
    shards, replicas, zero = layout.shards, layout.replicas, layout.zero
    # Experts are shared by fewer ranks, `expert` apart.
    parts = (
        (own.shared, shards, replicas, layout.tensor),
        (own.experts, layout.expert_shards, layout.expert_replicas, layout.expert),
    )

    def summed(op: str, per_weight: float, *, over_all: bool = False, inside: int = 0) -> Message:
        found = [
            link.ring("data", op, per_weight * count / layers, size, stride)
            for count, own_shards, all_ranks, stride in parts
            for size in (inside or (all_ranks if over_all else own_shards),)
            if count and size > 1
        ]
        return Message(sum(one.nbytes for one in found), sum(one.seconds for one in found))

    if zero == 0:
        return NOTHING, NOTHING, summed("all_reduce", layout.gradients, over_all=True), NOTHING
    hybrid = shards < replicas
    across = _across(layout, link, own, layers) if hybrid else NOTHING
    if layout.secondary:
        inner = summed("all_gather", BYTES, inside=layout.secondary)
        reduced = summed("reduce_scatter", QUANTIZED_GRADIENT_BYTES)
        return summed("all_gather", QUANTIZED_WEIGHT_BYTES), inner, reduced, across
    gather = summed("all_gather", BYTES)
    return gather, gather if zero >= 3 else NOTHING, summed("reduce_scatter", layout.gradients), across


def _across(layout: Layout, link: _Links, own: Weights, layers: int) -> Message:
    copies, stride = layout.replicas // layout.shards, layout.tensor * layout.shards
    share = layout.gradients * (own.shared + own.experts * layout.expert) / layout.shards / layers
    return link.ring("data", "all_reduce", share, copies, stride)


def _reached(places: int, picks: int, limit: int) -> float:
    """Places that so many picks, each as likely anywhere, are expected to touch; at most `limit` where routing keeps to
    that (DeepSeek-V3, section 2.1.2)."""
    found = places * (1 - (1 - 1 / places) ** picks)
    return min(found, limit) if limit else found


@dataclass(frozen=True)
class _Links:
    """Messages by kind of parallelism, with the operation and the bytes of its array: seconds by what was measured for
    the kind, else by NCCL's latency and the links' usable rate."""

    cluster: Cluster
    layout: Layout
    rates: Rates

    def ring(self, kind: str, op: str, nbytes: float, size: int, stride: int) -> Message:
        return self._message(kind, op, nbytes, size, stride, self.cluster.ring(size, stride))

    def all_to_all(self, kind: str, nbytes: float, size: int, stride: int) -> Message:
        return self._message(kind, "all_to_all", nbytes, size, stride, self.cluster.all_to_all(size, stride))

    def experts(self, model: Model, nbytes: float) -> Message:
        """Of tokens to their experts or back: through the network to the hosts that have some of a token's experts,
        and at the same time between the GPUs of a host."""
        size, k = self.layout.expert, model.experts_per_token
        hosts = self.cluster.spread(size, 1)
        network = nbytes * _reached(hosts, k, model.expert_hosts) * (hosts - 1) / hosts
        inside = nbytes * _reached(size, k, 0) * (size - 1) / size
        measured = self.rates.link("expert")
        if measured is not None:
            sent = network or inside
            return Message(
                sent, (measured.alpha_ns * more_steps(measured.ranks, size) + sent / measured.busbw_gbps) / 1e9
            )
        port = network / self.cluster.port_over(hosts) if network else 0.0
        spent = self.cluster.latency_ns("all_to_all", size, 1) + max(port, inside / self.cluster.inside.usable)
        return Message(network or inside, spent / 1e9)

    def pair(self, kind: str, nbytes: float, stride: int) -> Message:
        return self._message(kind, "send_recv", nbytes, 2, stride, self.cluster.pair(stride))

    def _message(self, kind: str, op: str, nbytes: float, size: int, stride: int, gbps: float) -> Message:
        sent = bus_bytes(op, nbytes, size) or 0.0
        if size <= 1 or sent <= 0:
            return NOTHING
        measured = self.rates.link(kind)
        if measured is not None:
            fixed = measured.alpha_ns * more_steps(measured.ranks, size)
            return Message(sent, (fixed + sent / measured.busbw_gbps) / 1e9)
        return Message(sent, (self.cluster.latency_ns(op, size, stride) + sent / gbps) / 1e9)


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
