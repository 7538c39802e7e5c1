"""One layout of a plan's document: its sizes, what it takes, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuscope.analyzers.planning.candidates import Question, Scored, place
from gpuscope.analyzers.planning.costs.plan_memory import FSDP_BYTES, OPTIMIZER_BYTES
from gpuscope.analyzers.planning.costs.rates import COMPILED, EAGER, GRAPHS, RANGE_ERROR, Link, Rates
from gpuscope.analyzers.planning.costs.step_estimate import Estimate, estimate, flops, stages_of
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.analyzers.planning.layout import CPU, FULL, NO, SELECTIVE, SQRT, Layout, bubble, micro_batches
from gpuscope.collective_costs.fixed_part import LEAST_USED
from gpuscope.collective_costs.message_cost import OTHER_GROUP_ERROR
from gpuscope.schema.plan_document import PlanEntry
from gpuscope.words import units

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
