"""All layouts that a model and a cluster allow, and the best of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from gpuscope.analyzers.planning.costs.plan_memory import memory, offloaded
from gpuscope.analyzers.planning.costs.rates import Rates
from gpuscope.analyzers.planning.costs.step_estimate import Estimate, estimate, stages_of
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.launchers import runs
from gpuscope.analyzers.planning.layout import CPU, FULL, NO, NVME, RECOMPUTED, RING, ULYSSES, Layout

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
