"""From a question to the document of `gpuscope advise`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuscope.analyzers.planning.candidates import (
    Question,
    Scored,
    as_it_is,
    best_of_each,
    least_recomputed,
    nearest,
    place,
    scored,
)
from gpuscope.analyzers.planning.costs.goodput import goodput, gpu_hours_per_token, joules_per_token
from gpuscope.analyzers.planning.costs.plan_memory import STATE_BYTES
from gpuscope.analyzers.planning.costs.step_estimate import assumptions, flops, stages_of
from gpuscope.analyzers.planning.entries import entry, settling
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.launchers import commands
from gpuscope.analyzers.planning.layout import ULYSSES, Layout
from gpuscope.analyzers.planning.rules import rules
from gpuscope.analyzers.planning.settings.values import Setup
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
)
from gpuscope.version import __version__
from gpuscope.words import units

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
