"""All layouts that a model and a cluster allow, and the best of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.plan_memory import (
    COMPILED,
    CPU,
    EAGER,
    FSDP_BYTES,
    FULL,
    GRAPHS,
    NO,
    NVME,
    OPTIMIZER_BYTES,
    RANGE_ERROR,
    RECOMPUTED,
    RING,
    SELECTIVE,
    SQRT,
    ULYSSES,
    Layout,
    Link,
    Rates,
    bubble,
    memory,
    micro_batches,
    offloaded,
)
from gpuscope.analyzers.planning.step_estimate import Estimate, estimate, flops, stages_of
from gpuscope.analyzers.planning.torchtitan import runs
from gpuscope.analyzers.planning.transformer import Model
from gpuscope.collective_costs.message_cost import LEAST_USED, OTHER_GROUP_ERROR
from gpuscope.schema.plan_document import PlanEntry
from gpuscope.words import units

MICRO_BATCHES = (1, 2, 4, 8)
CHUNKS = (1, 2, 3, 4, 6, 8)
LONG_SEQUENCE = 16384
"""From this length on context parallelism is considered in every size: Llama 3 (arXiv:2407.21783, section 3.3.2)
divides sequences of 131,072 by 16. Below it only in halves, where a micro-batch of one sequence takes too much memory
or there are too few sequences for the ranks."""


@dataclass(frozen=True)
class Question:
    """What is planned. `batch` is in sequences; `lossy` allows what changes the arithmetic: gradients in
    bf16, ZeRO++; `framework` leaves what one can run."""

    model: Model
    cluster: Cluster
    batch: int
    rates: Rates
    precision: str = "bf16"
    lossy: bool = False
    framework: str = ""

    def allows(self, own: Layout) -> bool:
        """Whether the framework can run a layout."""
        return not own.contradictory and (not self.framework or runs(self.framework, self.model, own, self.precision))


@dataclass(frozen=True)
class Scored:
    """A layout with what it takes."""

    question: Question
    layout: Layout
    memory: dict[str, float]
    lacks: float
    """Bytes of a GPU's memory that are missing; 0 where it fits."""

    @cached_property
    def estimate(self) -> Estimate:
        """Its step; made when asked for, for most layouts fit nowhere and nobody asks."""
        own = self.question
        return estimate(own.model, own.cluster, self.layout, own.batch, own.rates, own.precision)

    @property
    def needs(self) -> float:
        """Bytes of a GPU."""
        return sum(self.memory.values())


def layouts(model: Model, cluster: Cluster, batch: int, *, lossy: bool = False) -> Iterator[Layout]:
    """Every layout whose sizes divide what they must, before recomputation and offloading are chosen."""
    for tensor in _divisors(cluster.gpus_per_host):
        kv = model.kv_heads or model.heads
        if model.heads % tensor or (kv % tensor and tensor % kv) or model.width % tensor:
            continue
        for pipeline in _divisors(cluster.gpus // tensor):
            # Layers need not divide: stages may be uneven.
            if pipeline <= model.layers:
                base = Layout(1, tensor, pipeline, gradients=2 if lossy else 4)
                yield from _spread(model, cluster, batch, base, lossy)


def _spread(model: Model, cluster: Cluster, batch: int, base: Layout, lossy: bool) -> Iterator[Layout]:
    left = cluster.gpus // (base.tensor * base.pipeline)
    for context, exchange in _contexts(model, base.tensor, left):
        data = left // context
        ranks = data * context * base.tensor
        experts = [size for size in _divisors(ranks) if model.experts % size == 0] if model.experts else [1]
        for micro in MICRO_BATCHES if context == 1 or model.sequence >= LONG_SEQUENCE else (1,):
            if batch % (data * micro):
                continue
            count = batch // (data * micro)
            for expert in experts:
                for chunks in _chunks(model, base.pipeline, count):
                    own = replace(
                        base,
                        data=data,
                        context=context,
                        exchange=exchange,
                        expert=expert,
                        micro_batch=micro,
                        chunks=chunks,
                    )
                    yield from _zeros(cluster, own, lossy)
                    if context == 1 and _can_overlap(own, count):
                        yield from _zeros(cluster, replace(own, overlap=True), lossy)


def _can_overlap(own: Layout, count: int) -> bool:
    """Whether all-to-alls can run beside compute: there are micro-batches to pair. DualPipe feeds an even number of
    stages from both ends, each with as many micro-batches."""
    if own.expert == 1 or count < 2:
        return False
    return own.pipeline == 1 or own.chunks > 1 or (own.pipeline % 2 == count % 2 == 0 and count >= 2 * own.pipeline)


def _contexts(model: Model, tensor: int, left: int) -> Iterator[tuple[int, str]]:
    for size in _divisors(left):
        if size > 2 and model.sequence < LONG_SEQUENCE:
            return
        # Each rank of the ring has two pieces of the sequence, so that causal attention is balanced.
        if size == 1 or model.sequence % (2 * size) == 0:
            yield size, RING
        if size > 1 and (model.kv_heads or model.heads) % (tensor * size) == 0:
            yield size, ULYSSES


def _chunks(model: Model, stages: int, count: int) -> Iterator[int]:
    # The interleaved schedule takes micro-batches by rounds of as many as there are stages.
    for chunks in CHUNKS if stages > 1 and count % stages == 0 else (1,):
        if stages * chunks <= model.layers:
            yield chunks


def _zeros(cluster: Cluster, own: Layout, lossy: bool) -> Iterator[Layout]:
    yield own
    if own.replicas == 1:
        return
    # Gradients that are divided, or gathered weights, would cross the pipeline once per micro-batch.
    for zero in (1,) if own.pipeline > 1 else (1, 2, 3):
        yield replace(own, zero=zero)
        inside = cluster.gpus_per_host // own.tensor
        if zero == 3 and 1 < inside < own.replicas and own.replicas % inside == 0 and own.expert == 1:
            yield replace(own, zero=zero, shard=inside)
            if lossy:
                yield replace(own, zero=zero, secondary=inside)


def scored(question: Question) -> list[Scored]:
    """Every layout: those that fit, the quickest first, of equals the simplest, then the one that needs least memory;
    then the others.

    Recomputation costs time and saves memory, so each layout comes with the least of it that fits. An optimizer goes to
    the host only where nothing fits otherwise.
    """
    possible = layouts(question.model, question.cluster, question.batch, lossy=question.lossy)
    found = [least_recomputed(question, own) for own in possible if question.allows(own)]
    if not any(row.lacks == 0 for row in found):
        found += [least_recomputed(question, own) for own in _offloaded(question) if question.allows(own)]
    fit = [row for row in found if row.lacks == 0]
    fit.sort(key=lambda row: (row.estimate.seconds, row.layout.complexity, row.needs))
    return fit + [row for row in found if row.lacks]


def _offloaded(question: Question) -> Iterator[Layout]:
    places = (CPU, NVME) if question.cluster.nvme_gbps else (CPU,)
    for own in layouts(question.model, question.cluster, question.batch):
        if own.zero and own.shards == own.replicas:
            yield from (replace(own, offload=place) for place in places)
        elif own.replicas == 1:
            yield from (replace(own, zero=1, offload=place) for place in places)


def least_recomputed(question: Question, layout: Layout) -> Scored:
    """A layout with the least recomputation with which it fits: of full recomputation, as few layers as do."""
    tried = (replace(layout, recompute=recompute) for recompute in RECOMPUTED)
    for own in [*filter(question.allows, tried)] or [layout]:
        needs, lacks = _needs(question, own)
        if lacks == 0:
            break
    if lacks == 0 and own.recompute == FULL:
        most, (whole, over) = stages_of(question.model, own).most, _needs(question, replace(own, recompute=NO))
        saved = sum(whole.values()) - sum(needs.values())
        for count in range(min(max(math.ceil(most * over / saved), 1), most), most):
            few = replace(own, repeated=count / most)
            some, lacking = _needs(question, few)
            if lacking == 0 and question.allows(few):
                return Scored(question, few, some, 0.0)
    return Scored(question, own, needs, lacks)


def as_it_is(question: Question, layout: Layout) -> Scored:
    """A layout with what it takes, whether it fits or not."""
    return Scored(question, layout, *_needs(question, layout))


_memory = lru_cache(1 << 17)(memory)
"""The same search on other links or less memory asks for the same layouts again."""


def _needs(question: Question, layout: Layout) -> tuple[dict[str, float], float]:
    cluster, stages = question.cluster, stages_of(question.model, layout)
    needs = dict(_memory(question.model, layout, stages, question.batch, question.precision))
    needs["activations"] *= question.rates.activation_factor
    lacks = max(sum(needs.values()) - cluster.usable, 0.0)
    if layout.offload == CPU and cluster.host_memory:
        host = offloaded(question.model, layout, stages) * cluster.gpus_per_host
        lacks += max(host - cluster.host_memory, 0.0) / cluster.gpus_per_host
    return needs, lacks


def best_of_each(rows: Iterable[Scored]) -> list[Scored]:
    """Of those that fit, one of each combination of sizes. In a combination and between them a layout goes before one
    that it beats by more than the estimate's error, and the simpler one where neither does."""
    groups: dict[tuple[int, ...], list[Scored]] = {}
    for row in rows:
        if row.lacks == 0:
            groups.setdefault(sizes(row.layout), []).append(row)
    found = [
        min((row for row in group if not beats(group[0], row)), key=lambda row: row.layout.simplicity)
        for group in groups.values()
    ]
    found.sort(key=lambda row: row.estimate.seconds)
    return sorted(found, key=lambda row: (place(row, found), row.layout.simplicity))


def beats(one: Scored, other: Scored) -> bool:
    """Whether one is quicker than another by more than the estimate's error."""
    return one.estimate.beats(other.estimate, one.question.rates.error)


def place(own: Scored, rows: Iterable[Scored]) -> int:
    """1, and one for each row that beats it."""
    return 1 + sum(beats(row, own) for row in rows)


def sizes(own: Layout) -> tuple[int, ...]:
    """What makes two layouts the same combination: data, tensor, pipeline, context and expert parallelism."""
    return own.data, own.tensor, own.pipeline, own.context, own.expert


def nearest(rows: Iterable[Scored], shown: int) -> list[Scored]:
    """Of those that do not fit, the ones that lack least, one of each combination of sizes."""
    seen: dict[tuple[int, ...], Scored] = {}
    for row in sorted(rows, key=lambda row: (row.lacks, row.estimate.seconds)):
        seen.setdefault(sizes(row.layout), row)
    return list(seen.values())[:shown]


def _divisors(number: int) -> tuple[int, ...]:
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return tuple(sorted({*small, *(number // size for size in small)}))


# One layout of a plan's document: its sizes, what it takes, and why.

MATTERS = 0.05
"""Of the step: what a slow network adds below it is not worth a measurement."""


def entry(question: Question, row: Scored, best: Sequence[Scored]) -> PlanEntry:
    """The entry of a layout beside the candidates, none where nothing fits."""
    own, spent, stages = row.layout, row.estimate, stages_of(question.model, row.layout)
    low, high = range_of(question, own)
    return {
        "name": own.name,
        "data": own.data,
        "tensor": own.tensor,
        "pipeline": own.pipeline,
        "chunks": own.chunks,
        "context": own.context,
        "exchange": own.exchange if own.context > 1 else None,
        "expert": own.expert,
        "zero": own.zero,
        "shard": own.shards if own.zero else 1,
        "secondary": own.secondary,
        "offload": own.offload,
        "micro_batch": own.micro_batch,
        "micro_batches": micro_batches(own, question.batch),
        "recompute": own.recompute,
        "repeated": own.repeated,
        "overlap": own.overlap,
        "gradients": own.gradients,
        "layers": list(stages.stages),
        "memory_bytes": {part: round(size) for part, size in row.memory.items()},
        "memory_frac": row.needs / question.cluster.memory,
        "lacks_bytes": round(row.lacks),
        "volume_bytes": {kind: round(size) for kind, size in spent.sent.items()},
        "communication_ns": _ns(spent.in_flight),
        "exposed_ns": _ns(spent.exposed),
        "compute_ns": round(spent.compute * 1e9),
        "host_ns": round(spent.host * 1e9),
        "bubble_ns": round(spent.bubble * 1e9),
        "bubble_frac": bubble(own, question.batch),
        "estimate_ns": round(spent.seconds * 1e9),
        "low_ns": low,
        "high_ns": high,
        "tokens_per_s_per_gpu": tokens_per_gpu(question, spent),
        "mfu_frac": mfu(question, spent),
        "slower_frac": spent.seconds / best[0].estimate.seconds - 1 if best else 0.0,
        "place": place(row, best) if row.lacks == 0 else None,
        "why": [*_alike(row, best), *_why(question, row)],
    }


def tokens_per_gpu(question: Question, spent: Estimate) -> float:
    """Tokens that a GPU trains on per second."""
    return question.batch * question.model.sequence / spent.seconds / question.cluster.gpus


def mfu(question: Question, spent: Estimate) -> float:
    """Model FLOPs of a step by what the GPUs' peak at the plan's precision gives in its time."""
    cluster = question.cluster
    peak = cluster.gpus * cluster.peaks.get(question.precision, cluster.peaks["bf16"])
    return flops(question.model, question.batch) / (spent.seconds * peak)


def _alike(row: Scored, best: Sequence[Scored]) -> list[str]:
    """Of the first candidate, how many others the estimate can't tell from the quickest."""
    alike = sum(place(one, best) == 1 for one in best) - 1 if best and row is best[0] else 0
    return (
        [f"the estimate can't tell {units.plural(alike, 'other layout')} from the quickest: this one is the simplest"]
        if alike
        else []
    )


def _ns(seconds: dict[str, float]) -> dict[str, int]:
    return {kind: round(value * 1e9) for kind, value in seconds.items()}


def range_of(question: Question, layout: Layout) -> tuple[int, int]:
    """ns of the estimate with everything at its better and at its worse end. Links that nobody measured give what is
    usual or, at worst, as little of it as fabrics are known to."""
    rates, error = question.rates, question.rates.error_frac or RANGE_ERROR

    def at(side: float) -> int:
        longer = 1 + side * OTHER_GROUP_ERROR
        links = {
            kind: Link(link.alpha_ns * longer, link.busbw_gbps / longer, link.ranks)
            for kind, link in rates.links.items()
        }
        scale = 1 + side * error
        own: Rates = replace(rates, slower=scale, links=links, step_ns=rates.step_ns * scale)
        cluster = question.cluster
        if cluster.measured:
            cluster = with_network(cluster, 1 / longer)
        elif side > 0 and not links:
            cluster = with_network(cluster, LEAST_USED)
        made: Estimate = estimate(question.model, cluster, layout, question.batch, own, question.precision)
        return round(made.seconds * 1e9)

    return at(-1), at(1)


def with_network(cluster: Cluster, share: float) -> Cluster:
    """The cluster with so much of its network's rate."""
    if cluster.network is None:
        return cluster
    between = tuple((hosts, gbps * share) for hosts, gbps in cluster.between)
    return replace(cluster, network=replace(cluster.network, usable=cluster.network.usable * share), between=between)


def settling(question: Question, layout: Layout) -> str | None:
    """The measurement that would narrow the range most; None where links are measured or matter little."""
    cluster, model = question.cluster, question.model
    if cluster.network is None or cluster.measured or question.rates.links:
        return None
    here, slow = (
        estimate(model, one, layout, question.batch, question.rates, question.precision)
        for one in (cluster, with_network(cluster, LEAST_USED))
    )
    more = {kind: slow.exposed[kind] - here.exposed[kind] for kind in here.exposed}
    kind = max(more, key=lambda one: more[one])
    if more[kind] < MATTERS * here.seconds:
        return None
    sizes = {
        "tensor": (layout.tensor, 1),
        "context": (layout.context, layout.tensor),
        "expert": (layout.expert, 1),
        "data": (layout.shards if layout.zero else layout.replicas, layout.tensor),
        "pipeline": (2, cluster.gpus // layout.pipeline),
    }
    hosts = min(cluster.spread(*sizes[kind]), cluster.hosts)
    op = {"expert": "all_to_all", "pipeline": "sendrecv", "data": "all_reduce" if not layout.zero else "reduce_scatter"}
    return (
        f"{kind} parallelism over {units.plural(hosts, 'host')} would add {units.duration(more[kind] * 1e9)} to the "
        f"step at {units.share(LEAST_USED)} of the network's rate: measure {op.get(kind, 'all_gather')} there "
        f"(gpuscope bench collectives --json, or nccl-tests) and plan again with --bench"
    )


def _launching(question: Question, row: Scored) -> list[str]:
    """Of a step that its host holds back: by how much, and what launching otherwise or a larger micro-batch gives."""
    if not row.estimate.host:
        return []
    own, (host, device) = row.layout, row.estimate.launching

    def step(layout: Layout, launched: str) -> str:
        rates = replace(question.rates, launched=launched)
        made = estimate(question.model, question.cluster, layout, question.batch, rates, question.precision)
        return units.duration(made.seconds * 1e9)

    launched = question.rates.launched
    ways = [f"CUDA graphs give {step(own, GRAPHS)}"] if launched != GRAPHS else []
    if launched == EAGER:
        ways.insert(0, f"torch.compile gives {step(own, COMPILED)}")
    twice = replace(own, micro_batch=2 * own.micro_batch)
    if question.batch % (twice.data * twice.micro_batch) == 0:
        ways.append(f"micro-batches of {twice.micro_batch} give {step(twice, launched)}, if they fit")
    return [
        f"host-bound: launching a micro-batch's kernels ({launched}) takes {units.duration(host * 1e9)}, running them "
        f"{units.duration(device * 1e9)}; {', '.join(ways)}"
    ]


def _why(question: Question, row: Scored) -> list[str]:
    own, spent = row.layout, row.estimate
    model = question.model
    found = _launching(question, row)
    for kind in sorted(spent.in_flight, key=lambda kind: -spent.exposed[kind]):
        if spent.in_flight[kind]:
            found.append(
                f"{kind} parallelism sends {units.size(round(spent.sent[kind]))} per GPU and step: "
                f"{units.duration(spent.in_flight[kind] * 1e9)}, exposed {units.duration(spent.exposed[kind] * 1e9)}"
            )
    if own.pipeline > 1:
        count = units.plural(micro_batches(own, question.batch), "micro-batch", "micro-batches")
        found.append(f"{own.pipeline} stages idle {units.share(bubble(own, question.batch))} with {count}")
        stages = stages_of(model, own)
        if len(set(stages.stages)) > 1:
            counts = [
                f"{stages.stages.count(layers)} of {layers}" for layers in sorted(set(stages.stages), reverse=True)
            ]
            found.append(
                f"stages by layers: {', '.join(counts)}; the last one, with the output layer, has {stages.stages[-1]}"
            )
    if own.recompute == SELECTIVE:
        found.append("norms and activation functions are recomputed: activations would not fit otherwise")
    if own.overlap:
        found.append("all-to-alls of one micro-batch run beside the compute of another")
    if own.recompute in (FULL, SQRT):
        found.append(f"activations of {units.share(own.again)} of the layers are recomputed, or they would not fit")
    if own.zero == 3:
        found.append(f"ZeRO-3 divides all {units.size(FSDP_BYTES * model.parameters)} of the model's states")
    if own.secondary:
        found.append("ZeRO++ sends weights in 8 and gradients in 4 bits: check that the loss still converges as before")
    if own.offload != NO:
        where = "the hosts' memory" if own.offload == CPU else "NVMe drives"
        size = units.size(round(OPTIMIZER_BYTES * model.parameters / question.cluster.hosts))
        found.append(f"the optimizer and {size} of states per host are in {where}")
    if row.lacks:
        found.append(f"{units.size(round(row.lacks))} per GPU are missing")
    return found
