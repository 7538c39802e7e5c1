"""What the ranks of a layout send: bytes, and the time by a link's cost and bandwidth.

Sent per rank, with tokens those of a micro-batch on a rank and Ψ the weights on a GPU before ZeRO divides them:

tensor: with sequence parallelism two all-gathers and two reduce-scatters of the activations per layer, forward and
again backward (Korthikanti et al., arXiv:2205.05198, section 4.2.2); with full recomputation the forward ones twice.
pipeline: an activation and its gradient per chunk. context: keys and values in a ring forward, backward with their
gradients (Liu et al., Ring Attention, arXiv:2310.01889), or four all-to-alls of queries, keys, values and output
(Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509). expert: tokens out and back, forward and backward (Lepikhin et
al., GShard, arXiv:2006.16668), each once to a host and from there once to each GPU that has an expert of it, as DeepEP
does (DeepSeek-V3, arXiv:2412.19437, section 3.2.2), out in FP8 and back in bf16 where the plan is for FP8.
data: gradients in fp32 or bf16, weights in bf16 (ZeRO, arXiv:1910.02054, section 7); ZeRO++ as Wang et al.,
arXiv:2306.10209, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.analyzers.planning.costs.plan_memory import BYTES, Weights
from gpuscope.analyzers.planning.costs.rates import Rates
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.layout import ULYSSES, Layout
from gpuscope.collective_costs.bus_bandwidth import bus_bytes
from gpuscope.collective_costs.nccl_model import more_steps

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
