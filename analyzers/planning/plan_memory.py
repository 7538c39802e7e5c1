"""Memory of a layout on its fullest GPU.

States as Megatron-LM counts them (its `theoretical_memory_usage.py`): 18 bytes per weight — 2 of the bf16 weight, 4 of
its fp32 gradient, 12 of Adam's master weight, momentum and variance — of which ZeRO (Rajbhandari et al.,
arXiv:1910.02054, section 5) divides the last 12, then the gradient, then the weight. Where the weight is divided too it
is the master weight itself, and 16 bytes are (PyTorch's FSDP2: fp32 weights, gradients and Adam). Activations:
Korthikanti et al., arXiv:2205.05198, equations 1 to 4, with attention fused (no term in s²) and nothing dropped out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuscope.analyzers.pipelines.schedules import bubble_frac
from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.transformer import Model
from gpuscope.collective_costs.bus_bandwidth import RING_STEPS, bus_bytes
from gpuscope.errors import InputError
from gpuscope.hardware.link_rates import Link as link_rates_Link
from gpuscope.hardware.link_rates import base_latency_ns
from gpuscope.sources.nccl.log_facts import Tables
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.schema.nccl_sections import BandwidthEntry


# How quick a GPU computes and a link sends: published figures by default, measured where a run calibrates the plan.

ATTENTION_EFFICIENCY = 0.5
"""Of the dense bf16 peak in fused causal attention, forward and backward together: FlashAttention-2, arXiv:2307.08691,
section 4.1, reaches 50 to 73 % forward and less backward on A100; FlashAttention-3, arXiv:2407.08608, figure 5, and
cuDNN beside it 60 to 65 % forward with heads of 128 on H100, less backward."""

EAGER, COMPILED, GRAPHS = "eager", "compiled", "graphs"
"""How kernels are launched: one by one from Python, by compiled code, or as captured CUDA graphs."""
LAUNCHED = (EAGER, COMPILED, GRAPHS)

COMPUTE_ERROR = 0.15
"""Of compute that no run measured: three quarters of the published rates keep to it (benchmarks/planner.py)."""


RANGE_ERROR = 0.22
"""Of compute and launching that no run measured: with it nine in ten of the measured steps of
`benchmarks.planner --measured` lie within the range."""


@dataclass(frozen=True)
class Link:
    """What a kind of communication was measured to give: a fixed cost and GB/s of busbw."""

    alpha_ns: float
    busbw_gbps: float
    ranks: int
    """Of the group that it was measured on."""


@dataclass(frozen=True)
class Rates:
    """Efficiencies, and links where they are measured. `error_frac` is a standard error of a step's compute."""

    gemm_frac: float | None = None
    """Of the dense peak in matrix multiplications, with what runs between them, as a run measured it; None for what is
    published for their shapes (`compute_time`)."""
    attention_frac: float = ATTENTION_EFFICIENCY
    links: Mapping[str, Link] = field(default_factory=dict)
    """By kind: `data`, `tensor`, `pipeline`, `context`, `expert`, and `any` for the others."""
    step_ns: float = 0.0
    """What every step takes besides: host, optimizer, loader."""
    overlap_frac: float | None = None
    """Of the gradients' communication, measured to be hidden; None for what the rules give."""
    activation_factor: float = 1.0
    """Of a GPU's memory besides the model's states, measured by estimated."""
    error_frac: float = 0.0
    eager: bool = False
    """Whether each operator is a kernel of its own: PyTorch neither compiled nor with fused kernels."""
    flash_2: bool = False
    """Whether attention is FlashAttention-2, as in PyTorch's own, or the GPU's best."""
    launched: str = EAGER
    """How kernels are launched; a host that launches more slowly than the GPU computes sets the pace."""
    early_megatron: bool = False
    """Whether it is Megatron-LM of 2020 to 2022: attention of separate kernels that store the matrix of scores, no
    message hidden behind a product, and a host that waits for each hand-over between pipeline stages."""
    slower: float = 1.0
    """Times that compute takes as long: the ends of a range."""

    @property
    def error(self) -> float:
        """Of an estimate: as the run had it, or as published rates have it."""
        return self.error_frac or COMPUTE_ERROR

    def link(self, kind: str) -> Link | None:
        """What was measured for a kind."""
        return self.links.get(kind) or self.links.get("any")


# A link's fixed cost and bandwidth, fitted to the collectives of a report.

_KINDS = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
"""Parts of the names that `gpuscope train` gives its groups; what is in none of them is data parallelism's."""


def measured_links(entries: Sequence[BandwidthEntry]) -> tuple[dict[str, Link], list[str]]:
    """Links by kind of parallelism and for all others (`any`), with a sentence on each."""
    by_kind: dict[str, list[tuple[float, float, int, int]]] = {}
    for entry in entries:
        point = _point(entry)
        if point is not None:
            by_kind.setdefault(_kind(entry["group"]), []).append(point)
            by_kind.setdefault("any", []).append(point)
    links = {kind: fitted(points) for kind, points in by_kind.items()}
    if len(links) == 2:
        links = {"any": links["any"]}
    return links, [_sentence(kind, link) for kind, link in links.items()]


def _kind(group: str | None) -> str:
    words = (group or "").lower().replace("-", "_").split("_")
    return next((kind for word, kind in _KINDS.items() if word in words), "data")


def _point(entry: BandwidthEntry) -> tuple[float, float, int, int] | None:
    """Bytes on the wire and ns of a call, calls, and ranks; None where the size or group is not known."""
    size = entry["group_size"] or 2
    wire = bus_bytes(entry["op"], entry["bytes"] or 0, size)
    if not wire or not entry["busbw_gbps"] or entry["tool"] != "trace":
        return None
    return wire, wire / entry["busbw_gbps"], entry["count"], size


def fitted(points: Sequence[tuple[float, float, int, int]]) -> Link:
    """Least squares of α + bytes / busbw, relative to each time and weighted by calls; α not below 0. One size alone
    gives a bandwidth that contains its fixed cost."""
    wire, time, count, ranks = (np.array(column, np.float64) for column in zip(*points, strict=True))
    weight = np.sqrt(count) / time
    both = np.stack([np.ones_like(wire), wire], 1) * weight[:, None]
    (alpha, per_byte), *_ = np.linalg.lstsq(both, time * weight, rcond=None)
    if len(set(wire)) < 2 or alpha < 0 or per_byte <= 0:
        alpha = 0.0
        per_byte = float((wire * time * weight**2).sum() / ((wire * weight) ** 2).sum())
    return Link(float(alpha), 1 / float(per_byte), int(np.median(ranks)))


def _sentence(kind: str, link: Link) -> str:
    name = "all collectives" if kind == "any" else f"{kind} parallelism"
    return f"{name}: {units.bandwidth(link.busbw_gbps)} busbw and {units.duration(link.alpha_ns)} per call"


# A cluster's links as `gpuscope bench collectives --json` or nccl-tests measured them, by placement and by size of the
# group.

_HINT = (
    "write it with gpuscope bench collectives --json, or keep all that nccl-tests prints: its line «# Collective test "
    "starting: all_reduce_perf» names the operation"
)
_OPS = (*RING_STEPS, "all_to_all")


class _Timing(NamedTuple):
    op: str
    ranks: int
    hosts: int
    nbytes: int
    ns: float


def with_bench(cluster: Cluster, path: Path) -> tuple[Cluster, list[str]]:
    """The cluster with what was measured in place of its links' usual rates, and a sentence for each.

    Raises `InputError` where the file holds no collective of two ranks or more.
    """
    groups: dict[tuple[int, int], list[_Timing]] = {}
    for timing in _timings(cluster, path):
        groups.setdefault((timing.hosts, timing.ranks), []).append(timing)
    if not groups:
        raise InputError(f"{path} holds no timed collectives", hint=_HINT)
    told: list[str] = []
    between: dict[int, float] = {}
    for (hosts, ranks), rows in sorted(groups.items()):
        # Rings tell a link's rate; only where none was measured do all-to-alls.
        rings = [row for row in rows if row.op != "all_to_all"] or rows
        link = fitted([(bus_bytes(row.op, row.nbytes, ranks) or 0.0, row.ns, 1, ranks) for row in rings])
        where = "in one host" if hosts == 1 else f"over {units.plural(hosts, 'host')}"
        told.append(
            f"{ranks} ranks {where}: {units.bandwidth(link.busbw_gbps)} busbw and "
            f"{units.duration(link.alpha_ns)} per call"
        )
        steps = max(RING_STEPS.get(rings[0].op, 1) * (ranks - 1), 1)
        latency = max(round((link.alpha_ns - base_latency_ns()) / steps), 0)
        if hosts == 1:
            cluster = replace(cluster, inside=_measured(cluster.inside, link.busbw_gbps, latency))
        else:
            # A ring over hosts has the ports of all its members in a host.
            between[hosts] = link.busbw_gbps / max(ranks // hosts, 1)
            if cluster.network is not None:
                port = between[hosts] * cluster.gpus_per_host / cluster.ports
                cluster = replace(cluster, network=_measured(cluster.network, port, latency))
    return replace(cluster, between=tuple(sorted(between.items())), measured=_covered(cluster, groups)), told


def with_link(cluster: Cluster, gbps: float) -> Cluster:
    """The cluster with so many GB/s per GPU between hosts, or between the GPUs of the only host."""
    if cluster.network is None:
        return replace(cluster, inside=_measured(cluster.inside, gbps, cluster.inside.latency_ns), measured=True)
    port = gbps * cluster.gpus_per_host / cluster.ports
    network = _measured(cluster.network, port, cluster.network.latency_ns)
    return replace(cluster, network=network, between=(), measured=True)


def _covered(cluster: Cluster, groups: dict[tuple[int, int], list[_Timing]]) -> bool:
    """Whether the placements that the cluster has were measured."""
    return cluster.hosts == 1 or any(hosts > 1 for hosts, _ in groups)


def _measured(link: link_rates_Link, gbps: float, latency: int) -> link_rates_Link:
    return replace(link, name=f"{link.name}, measured", usable=gbps, latency_ns=latency)


def _timings(cluster: Cluster, path: Path) -> list[_Timing]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or 'is not text'}", hint=_HINT) from None
    if not text.lstrip().startswith("{"):
        tables = Tables()
        for line in text.splitlines():
            tables.feed(line)
        hosts = len({device.host for device in tables.devices.values()})
        rows = [(row.op, row.ranks, row.size, row.dur) for row in tables.rows]
        return [
            _Timing(op, n, hosts or _hosts(cluster, n), size, ns)
            for op, n, size, ns in rows
            if _usable(op, n, size, ns)
        ]
    try:
        document = json.loads(text)
        rows = [
            (str(row["op"]), int(row["ranks"]), int(row["nbytes"]), int(row["time_ns"])) for row in document["rows"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{path} is not what gpuscope bench collectives --json writes", hint=_HINT) from None
    return [_Timing(op, n, _hosts(cluster, n), size, ns) for op, n, size, ns in rows if _usable(op, n, size, ns)]


def _usable(op: str, ranks: int, size: int, ns: int) -> bool:
    return op in _OPS and ranks > 1 and size > 0 and ns > 0


def _hosts(cluster: Cluster, ranks: int) -> int:
    """Our own document does not say: ranks fill one host after the other."""
    return -(-ranks // cluster.gpus_per_host)


# A way to spread a model over a cluster: the sizes of its parallelisms, and which layers a stage gets.

NO, SELECTIVE, FULL, SQRT = "none", "selective", "full", "sqrt"
"""What is recomputed in the backward pass: nothing; norms, experts' activation functions and what latent attention
expands; whole layers; or groups of √n of n layers, of which only the first one's input is kept (Chen et al.,
arXiv:1604.06174)."""
RECOMPUTED = (NO, SELECTIVE, FULL, SQRT)
"""In the order of what they cost."""
RING, ULYSSES = "ring", "ulysses"
"""How context parallelism exchanges: keys and values in a ring, or all-to-alls of heads."""
CPU, NVME = "cpu", "nvme"
"""Where the optimizer and its states are, if not on the GPU."""


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
    recompute: str = NO
    chunks: int = 1
    """Model chunks of a pipeline stage: more than one is the interleaved schedule."""
    exchange: str = RING
    """Of context parallelism."""
    shard: int = 0
    """Ranks over which ZeRO divides, fewer than all: hybrid sharding (HSDP); 0 for all."""
    secondary: int = 0
    """ZeRO++: weights and gradients sent in 8 and 4 bits, and so many ranks of a host that divide a second copy of the
    weights; 0 for none of it."""
    offload: str = NO
    repeated: float = 1.0
    """Share of a stage's layers that full recomputation repeats: the first so many of them."""
    gradients: int = 4
    """Bytes of a gradient, kept and sent: 2 for bf16."""
    overlap: bool = False
    """Whether one micro-batch's all-to-alls of experts run beside another's compute: in pairs of a forward and a
    backward pass, as DualPipe (DeepSeek-V3, section 3.2.1) and Megatron-Core's overlap of experts do."""

    @property
    def name(self) -> str:
        """`dp 8 (ZeRO-1) x tp 8 x pp 4 (2 chunks), micro-batch 1, full recomputation`."""
        zero = f"ZeRO-{self.zero}{'++' if self.secondary else ''}" if self.zero else ""
        zero += f" over {self.shard}" if zero and self.shards < self.replicas else ""
        others = (("tp", self.tensor), ("pp", self.pipeline), ("cp", self.context), ("ep", self.expert))
        notes = {"pp": f" ({self.chunks} chunks)" if self.chunks > 1 else "", "cp": f" ({self.exchange})"}
        sizes = "".join(f" x {kind} {size}{notes.get(kind, '')}" for kind, size in others if size > 1)
        tail = f", {self.recompute} recomputation" if self.recompute != NO else ""
        tail += f" of {units.whole_share(self.again)}" if 0 < self.again < 1 else ""
        tail += ", all-to-alls overlapped" if self.overlap else ""
        tail += ", gradients in bf16" if self.gradients == 2 else ""
        tail += f", optimizer on {'NVMe' if self.offload == NVME else 'the CPU'}" if self.offload != NO else ""
        return f"dp {self.data}{f' ({zero})' if zero else ''}{sizes}, micro-batch {self.micro_batch}{tail}"

    @property
    def again(self) -> float:
        """Forward passes of a layer besides the first, mean over layers."""
        return self.repeated if self.recompute == FULL else float(self.recompute == SQRT)

    @property
    def contradictory(self) -> bool:
        """Whether all-to-alls are to overlap although layers are computed again as wholes, which excludes each other
        (Megatron-LM, `TransformerConfig`)."""
        return self.overlap and self.recompute in (FULL, SQRT)

    @property
    def dual(self) -> bool:
        """Whether its pipeline is fed from both ends (DualPipe), so that a GPU has two stages: what overlaps
        all-to-alls in a pipeline with one chunk per stage."""
        return self.overlap and self.pipeline > 1 and self.chunks == 1

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights before ZeRO divides them."""
        return self.data * self.context

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO divides."""
        return self.shard or self.replicas

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts: those of a stage by the ranks that share the experts out. Experts
        are whole: they are shared over tensor-parallel ranks too (Megatron-Core's folding, arXiv:2504.14960)."""
        return max(self.replicas * self.tensor // self.expert, 1)

    @property
    def expert_shards(self) -> int:
        """Ranks over which ZeRO divides an expert's states."""
        return max(self.shards * self.tensor // self.expert, 1)

    @property
    def complexity(self) -> int:
        """Kinds of parallelism and of saving besides plain data parallelism."""
        sizes = sum(size > 1 for size in (self.tensor, self.pipeline, self.context, self.expert, self.chunks))
        savings = RECOMPUTED.index(self.recompute) + (self.offload != NO) + (self.secondary > 0) + self.overlap
        return sizes + self.zero + savings + (self.shards < self.replicas)

    @property
    def simplicity(self) -> tuple[int, int]:
        """The smaller, the simpler: kinds of parallelism, then ranks that are not data-parallel."""
        return self.complexity, self.tensor * self.pipeline * self.context


def micro_batches(layout: Layout, batch: int) -> int:
    """Micro-batches of a step per replica, for a global batch in sequences."""
    return batch // (layout.data * layout.micro_batch)


def bubble(layout: Layout, batch: int) -> float:
    """Share of a step that a pipeline stage idles: (p − 1) / (v·m + p − 1) with v chunks per stage. DualPipe's is
    (p/2 − 1)·(F&B + B − 3W) beside m·(F + B) of work (DeepSeek-V3, table 2), with B = 2F, W = F and F&B = F + B."""
    if layout.dual:
        return (layout.pipeline - 2) / (layout.pipeline - 2 + 3 * micro_batches(layout, batch))
    return bubble_frac(layout.pipeline, micro_batches(layout, batch), layout.chunks)


@dataclass(frozen=True)
class Stages:
    """How a pipeline's layers are split: those of each model chunk, in the order in which a micro-batch meets them."""

    chunks: tuple[int, ...]
    stages: tuple[int, ...]
    """Layers of each stage: stage s has chunks s, s + p, …"""

    @property
    def most(self) -> int:
        """Of the fullest stage."""
        return max(self.stages)

    @property
    def even(self) -> bool:
        """Whether all chunks are equal."""
        return len(set(self.chunks)) == 1


@cache
def split(layers: int, stages: int, chunks: int, head: float) -> Stages:
    """The split in which the slowest stage takes least, uneven where it must be, with the output layer counted as
    `head` layers on the last chunk: as Llama 3 (arXiv:2407.21783, section 3.3.2: one layer fewer on the first and the
    last stage) and DeepSeek-V3 do."""
    count = stages * chunks
    if count == 1:
        return Stages((layers,), (layers,))
    found = [_split(layers, stages, count, last) for last in range(-(-layers // count) + 1)]
    return min(found, key=lambda one: (max(*one.stages[:-1], one.stages[-1] + head), -one.chunks[-1]))


def _split(layers: int, stages: int, count: int, last: int) -> Stages:
    base, more = divmod(layers - last, count - 1)
    # The first stage has the embedding and most micro-batches in flight, so it gets a larger chunk last.
    sizes = (*(base + (index >= count - 1 - more) for index in range(count - 1)), last)
    return Stages(sizes, tuple(sum(sizes[stage::stages]) for stage in range(stages)))


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
