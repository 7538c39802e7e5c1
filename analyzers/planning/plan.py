"""From a question to the document of `gpuscope advise`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuscope.analyzers.planning.candidates import (
    LONG_SEQUENCE,
    Question,
    Scored,
    as_it_is,
    best_of_each,
    entry,
    least_recomputed,
    nearest,
    place,
    scored,
    settling,
)
from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.deepspeed import Setup
from gpuscope.analyzers.planning.plan_memory import BYTES, NO, OPTIMIZER_BYTES, STATE_BYTES, ULYSSES, Layout
from gpuscope.analyzers.planning.step_estimate import assumptions, flops, stages_of
from gpuscope.analyzers.planning.torchtitan import commands
from gpuscope.analyzers.planning.transformer import Model
from gpuscope.errors import UsageError
from gpuscope.hardware.link_rates import Link
from gpuscope.schema.plan_document import (
    PLAN_VERSION,
    Plan,
    PlanCalibration,
    PlanChange,
    PlanCluster,
    PlanCost,
    PlanGiven,
    PlanGoodput,
    PlanModel,
    PlanRemark,
    PlanRule,
)
from gpuscope.version import __version__
from gpuscope.words import units

# Failures and cost: when to write checkpoints, what share of the time is useful, energy and money per token.


@dataclass(frozen=True)
class Goodput:
    """Seconds, and shares of the time. `frac` is what is left after writing, repeating and restarting."""

    mtbf: float
    checkpoint: float
    interval: float
    frac: float


def goodput(parameters: float, cluster: Cluster) -> Goodput:
    """With the checkpoint interval that loses least.

    Young (1974) and Daly (Future Generation Computer Systems 22, 2006, equation 37): √(2δM)·(1 + ⅓√(δ/2M) + δ/18M) − δ
    for a checkpoint of δ and a mean time between failures of M, at most M. Lost per interval: δ, and per failure half
    an interval and the restart.
    """
    mtbf = cluster.gpu_mtbf_hours * 3600 / cluster.gpus
    delta = parameters * (BYTES + OPTIMIZER_BYTES) / (cluster.checkpoint_gbps * 1e9)
    if delta < 2 * mtbf:
        ratio = delta / (2 * mtbf)
        interval = math.sqrt(2 * delta * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delta
    else:
        interval = mtbf
    useful = interval / (interval + delta)
    lost = ((interval + delta) / 2 + cluster.restart_minutes * 60) / mtbf
    return Goodput(mtbf, delta, interval, max(useful * (1 - min(lost, 1.0)), 0.0))


def gpu_hours_per_token(step: float, tokens: float, cluster: Cluster, frac: float) -> float:
    """With what failures cost."""
    return cluster.gpus * step / 3600 / tokens / frac if frac else math.inf


def joules_per_token(step: float, tokens: float, cluster: Cluster, frac: float) -> float | None:
    """Of GPUs at their power and the data centre around them; None where the power is not known."""
    if cluster.power_w is None or not frac:
        return None
    return cluster.gpus * cluster.power_w * (cluster.pue or 1.0) * step / tokens / frac


# The literature's decision table, row by row, with what it says of a model and a cluster.

HOST_MEMORY = 1.5
CORES_PER_GPU = 4
PCIE_LANES = 16


def rules(question: Question, rows: list[Scored]) -> list[PlanRule]:
    """Every rule; `applies` where this model on this cluster calls for it."""
    model, cluster = question.model, question.cluster
    limit = cluster.usable
    needs = [_least(rows, stages) for stages in ((0,), (1, 2), (3,))]
    alone, light, full = needs
    fits = [need is not None and need <= limit for need in needs]
    return [
        _rule(
            "plain data parallelism while a replica fits one GPU",
            fits[0],
            _needs(alone, limit),
            "Li et al., PyTorch Distributed, arXiv:2006.15704",
        ),
        _rule(
            "else divide the optimizer and gradients (ZeRO-1, ZeRO-2): the same volume",
            fits[1] and not fits[0],
            _needs(light, limit),
            "Rajbhandari et al., ZeRO, arXiv:1910.02054, section 7",
        ),
        _rule(
            "else divide the weights too (ZeRO-3, FSDP): weights gathered twice per micro-batch",
            fits[2] and not any(fits[:2]),
            _needs(full, limit),
            "Zhao et al., PyTorch FSDP, arXiv:2304.11277",
        ),
        _rule(
            "tensor parallelism only inside a host's fast links, at most as wide as the host",
            cluster.gpus_per_host > 1 and not any(fits[:2]),
            f"{cluster.inside.name}, {units.bandwidth(cluster.inside.usable)}"
            + (f", between hosts {units.bandwidth(cluster.port_gbps)} per GPU" if cluster.network else ""),
            "Narayanan et al., arXiv:2104.04473, takeaway 1",
        ),
        _rule(
            "pipeline across hosts once a host's tensor parallelism does not suffice, with many micro-batches",
            cluster.hosts > 1 and not any(fits),
            f"a batch of {units.plural(question.batch, 'sequence')} on {units.plural(cluster.hosts, 'host')}",
            "Narayanan et al., arXiv:2104.04473, takeaways 1 and 2",
        ),
        _rule(
            "context parallelism for long sequences",
            model.sequence >= LONG_SEQUENCE,
            f"sequences of {model.sequence:,}; in every size from {LONG_SEQUENCE:,}, below it in halves",
            "Llama 3, arXiv:2407.21783, section 3.3.2",
        ),
        _rule(
            "expert parallelism for mixtures of experts, inside a host where it can be",
            model.experts > 0,
            f"{model.experts} experts; between hosts a GPU's all-to-all has {units.bandwidth(cluster.port_gbps)}"
            if model.experts and cluster.network
            else f"{model.experts} experts"
            if model.experts
            else "no experts",
            "Lepikhin et al., GShard, arXiv:2006.16668",
        ),
        *_host(cluster),
    ]


def _host(cluster: Cluster) -> list[PlanRule]:
    """What a host should have beside its GPUs, of what the cluster's file tells; `applies` where it has less."""
    gpus, memory = cluster.gpus_per_host, cluster.gpus_per_host * cluster.memory
    each = f"for {units.plural(gpus, 'GPU')}"
    found: list[tuple[bool, str, bool, str]] = [
        (
            cluster.host_memory > 0,
            "memory 1.5 to 2 times its GPUs'",
            cluster.host_memory < HOST_MEMORY * memory,
            f"{units.size(cluster.host_memory)} beside {units.size(memory)}",
        ),
        (
            cluster.host_cores > 0,
            f"{CORES_PER_GPU} cores per GPU or more",
            cluster.host_cores < CORES_PER_GPU * gpus,
            f"{cluster.host_cores} {each}",
        ),
        (
            cluster.pcie_lanes > 0,
            f"{PCIE_LANES} PCIe lanes per GPU",
            cluster.pcie_lanes < PCIE_LANES,
            f"{cluster.pcie_lanes}",
        ),
        (
            cluster.network is not None,
            "a network port for two GPUs or more",
            2 * cluster.ports < gpus,
            f"{units.plural(cluster.ports, 'port')} {each}",
        ),
    ]
    return [
        _rule(f"a host should have {what}", less, f"it has {has}", "rule of thumb", host=True)
        for known, what, less, has in found
        if known
    ]


def _least(rows: list[Scored], stages: tuple[int, ...]) -> float | None:
    """Memory of data parallelism alone with these stages of ZeRO; None where no layout divides the batch."""
    return min(
        (
            row.needs
            for row in rows
            if row.layout.tensor == row.layout.pipeline == row.layout.context == row.layout.expert == 1
            and row.layout.zero in stages
            and row.layout.offload == NO
        ),
        default=None,
    )


def _needs(need: float | None, limit: float) -> str:
    if need is None:
        return "no such layout divides the batch"
    return f"takes {units.size(round(need))} of {units.size(round(limit))} usable per GPU"


def _rule(rule: str, applies: bool, why: str, source: str, *, host: bool = False) -> PlanRule:
    return {"rule": rule, "applies": applies, "why": why, "source": source, "host": host}


NS = 1e9


def plan(
    question: Question,
    name: str,
    shown: int,
    calibration: PlanCalibration | None = None,
    measured: list[str] | None = None,
    setup: tuple[str, Setup] | None = None,
) -> Plan:
    """The plan; `setup` is a framework's file and what it asks for. Raises `UsageError` where no layout divides the
    batch."""
    model, cluster, batch = question.model, question.cluster, question.batch
    rows = scored(question)
    if not rows:
        what = f"a batch of {units.plural(batch, 'sequence')} over {units.plural(cluster.gpus, 'GPU')}"
        if question.framework:
            raise UsageError(
                f"{question.framework} runs no layout of {what} in {question.precision}", hint="leave out --framework"
            )
        raise UsageError(
            f"no layout divides {what}",
            hint=f"a multiple of the GPUs always does: --global-batch {cluster.gpus}",
        )
    best = best_of_each(rows)
    first = best[0] if best else None
    return {
        "plan_version": PLAN_VERSION,
        "gpuscope_version": __version__,
        "model": _model(question, name),
        "cluster": _cluster(cluster),
        "global_batch": batch,
        "sequence": model.sequence,
        "tokens": batch * model.sequence,
        "precision": question.precision,
        "considered": len(rows),
        "feasible": sum(row.lacks == 0 for row in rows),
        "candidates": [entry(question, row, best) for row in best[:shown]],
        "given": given(question, *setup, best) if setup else None,
        "nearest": [] if best else [entry(question, row, []) for row in nearest(rows, min(shown, 3))],
        "rules": rules(question, rows),
        "placement": _placement(cluster, first) if first else [],
        "sensitivity": sensitivity(question, best) if best else [],
        "settling": settling(question, first.layout) if first else None,
        "measured": measured or [],
        "goodput": _goodput(question) if first and cluster.gpu_mtbf_hours else None,
        "cost": _cost(question, first) if first and cluster.gpu_mtbf_hours else None,
        "commands": _commands(question, first) if first else {},
        "calibration": calibration,
        "assumptions": _assumptions(question, calibration is not None),
    }


def _commands(question: Question, first: Scored) -> dict[str, str]:
    stages = stages_of(question.model, first.layout)
    found = commands(question.model, first.layout, stages, question.batch, question.precision)
    return {name: text for name, text in found.items() if question.framework in ("", name)}


def _assumptions(question: Question, measured: bool) -> list[str]:
    only = [f"only layouts that {question.framework} runs"] if question.framework else []
    return [*only, *assumptions(question.cluster, question.precision, measured)]


def _model(question: Question, name: str) -> PlanModel:
    model = question.model
    ends = model.parameters - round(model.layers * (model.layer + model.routed))
    return {
        "name": name,
        "parameters": model.parameters,
        "active_parameters": round(model.layers * model.active) + ends,
        "flops_per_step": flops(model, question.batch),
        "states_bytes": model.parameters * STATE_BYTES,
    }


def _cluster(cluster: Cluster) -> PlanCluster:
    return {
        "name": cluster.name,
        "gpus": cluster.gpus,
        "hosts": cluster.hosts,
        "memory_bytes": cluster.memory,
        "usable_bytes": round(cluster.usable),
        "peak_flops_per_s": cluster.peaks["bf16"],
        "inside": cluster.inside.name,
        "inside_gbps": cluster.inside.usable,
        "network": cluster.network.name if cluster.network else None,
        "network_gbps": cluster.port_gbps,
    }


def _goodput(question: Question) -> PlanGoodput:
    found = goodput(question.model.parameters, question.cluster)
    return {
        "mtbf_ns": round(found.mtbf * NS),
        "checkpoint_ns": round(found.checkpoint * NS),
        "checkpoint_interval_ns": round(found.interval * NS),
        "goodput_frac": found.frac,
    }


def _cost(question: Question, first: Scored) -> PlanCost | None:
    cluster, tokens = question.cluster, question.batch * question.model.sequence
    frac = goodput(question.model.parameters, cluster).frac
    if frac == 0:
        return None
    hours = gpu_hours_per_token(first.estimate.seconds, tokens, cluster, frac) * 1e6
    joules = joules_per_token(first.estimate.seconds, tokens, cluster, frac)
    price = cluster.gpu_hour_price
    return {
        "gpu_hours": hours,
        "joules": joules * 1e6 if joules is not None else None,
        "price": hours * price if price is not None else None,
    }


def _placement(cluster: Cluster, best: Scored) -> list[str]:
    def apart(ranks: int) -> str:
        return f"{units.plural(ranks, 'rank')} apart"

    own = best.layout
    found = []
    if own.tensor > 1:
        found.append(f"tensor parallelism over {own.tensor} neighbouring GPUs of one host ({cluster.inside.name})")
    if own.expert > 1:
        found.append(f"expert parallelism over {own.expert} neighbouring GPUs of a pipeline stage")
    if own.context > 1:
        found.append(f"context parallelism next to tensor parallelism, {apart(own.tensor)}")
    if own.data > 1:
        inside = own.tensor * own.context * own.data <= cluster.gpus_per_host
        where = (
            "inside the host" if inside else "over hosts, which divides gradients over every GPU's share of the ports"
        )
        found.append(f"data parallelism {where}, {apart(own.tensor * own.context)}")
    if own.pipeline > 1:
        found.append(f"pipeline outermost, {apart(cluster.gpus // own.pipeline)}: it sends least")
    return found


def given(question: Question, path: str, setup: Setup, best: list[Scored]) -> PlanGiven:
    """What the file asks for, estimated; without an estimate where its sizes do not divide the model or the batch."""
    remarks = [*setup.remarks]
    if setup.layout is not None:
        remarks += _impossible(question.model, setup.layout, question.batch)
    row = None
    if setup.layout is not None and len(remarks) == len(setup.remarks):
        own = replace(question, framework=setup.framework)
        row = (as_it_is if setup.recomputes else least_recomputed)(own, setup.layout)
    fits = row is not None and row.lacks == 0
    return {
        "path": path,
        "framework": setup.framework,
        "fits": fits,
        "place": place(row, best) if row and fits else None,
        "entry": entry(question, row, best) if row else None,
        "remarks": remarks,
    }


def _impossible(model: Model, own: Layout, batch: int) -> list[PlanRemark]:
    """Sizes that do not divide what they must."""
    heads = model.kv_heads or model.heads
    ulysses = own.context if own.exchange == ULYSSES else 1
    wrong = {
        "tensor parallelism": (own.tensor > 1 and bool(model.heads % own.tensor), f"{model.heads} heads"),
        "sequence parallelism": (ulysses > 1 and bool(heads % (own.tensor * ulysses)), f"{heads} key and value heads"),
        "context parallelism": (bool(model.sequence % own.context), f"{model.sequence:,} tokens"),
        "expert parallelism": (own.expert > 1 and bool(model.experts % own.expert), f"{model.experts} experts"),
        "the pipeline": (own.pipeline * own.chunks > model.layers, f"{model.layers} layers"),
        "data-parallel ranks x micro-batch": (bool(batch % (own.data * own.micro_batch)), f"a batch of {batch}"),
    }
    return [
        {"key": key, "kind": "contradiction", "message": f"does not divide {what}"}
        for key, (found, what) in wrong.items()
        if found
    ]


def sensitivity(question: Question, best: Sequence[Scored]) -> list[PlanChange]:
    """Each change by itself, beside the layouts as they are, the chosen one first."""
    base = _quickest(question, best)
    return [_changed(text, other, best[0], base) for text, other in _others(question)]


def _others(question: Question) -> Iterator[tuple[str, Question]]:
    cluster, model, batch = question.cluster, question.model, question.batch
    if batch % 2 == 0:
        yield "half the batch", replace(question, batch=batch // 2)
    yield "twice the batch", replace(question, batch=2 * batch)
    if batch % 2 == 0:
        longer = replace(model, sequence=2 * model.sequence)
        yield "sequences twice as long, as many tokens", replace(question, model=longer, batch=batch // 2)
    if cluster.network is not None:
        for text, factor in (("half the network", 0.5), ("twice the network", 2.0)):
            link = _scaled(cluster.network, factor)
            yield text, replace(question, cluster=replace(cluster, network=link))
    elif cluster.gpus > 1:
        link = _scaled(cluster.inside, 0.5)
        yield "half the bandwidth between GPUs", replace(question, cluster=replace(cluster, inside=link))
    for text, factor in (("a fifth less memory", 0.8), ("a fifth more memory", 1.2)):
        yield text, replace(question, cluster=replace(cluster, memory=round(factor * cluster.memory)))


def _scaled(link: Link, factor: float) -> Link:
    return replace(link, usable=factor * link.usable, peak=factor * link.peak)


def _rate(question: Question, row: Scored) -> float:
    return question.batch * question.model.sequence / row.estimate.seconds


def _quickest(question: Question, rows: Sequence[Scored]) -> float:
    """What can't be told apart goes by simplicity: the first may be a little slower than others."""
    return max(_rate(question, row) for row in rows)


def _changed(text: str, other: Question, best: Scored, base: float) -> PlanChange:
    found = best_of_each(scored(other))
    if not found:
        return {"change": text, "name": None, "same": False, "tokens_per_s": 0.0, "factor": 0.0}
    first = found[0]
    return {
        "change": text,
        "name": first.layout.name,
        "same": _sizes(first.layout) == _sizes(best.layout),
        "tokens_per_s": _rate(other, first),
        "factor": _quickest(other, found) / base,
    }


def _sizes(layout: Layout) -> tuple[object, ...]:
    own = layout
    return own.data, own.tensor, own.pipeline, own.context, own.expert, own.zero, own.shards, own.recompute
