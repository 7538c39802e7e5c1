"""From a question to the document of `gpuscope advise`."""

from __future__ import annotations

from gpuscope.analyzers.planning.candidates import Question, Scored, best_of_each, nearest, scored
from gpuscope.analyzers.planning.costs.goodput import goodput, gpu_hours_per_token, joules_per_token
from gpuscope.analyzers.planning.costs.plan_memory import STATE_BYTES
from gpuscope.analyzers.planning.costs.step_estimate import assumptions, flops, stages_of
from gpuscope.analyzers.planning.entries import entry, settling
from gpuscope.analyzers.planning.given import given
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.analyzers.planning.launchers import commands
from gpuscope.analyzers.planning.rules import rules
from gpuscope.analyzers.planning.sensitivity import sensitivity
from gpuscope.analyzers.planning.settings.values import Setup
from gpuscope.errors import UsageError
from gpuscope.schema.plan_document import (
    PLAN_VERSION,
    Plan,
    PlanCalibration,
    PlanCluster,
    PlanCost,
    PlanGoodput,
    PlanModel,
)
from gpuscope.version import __version__
from gpuscope.words import units

NS = 1e9


def plan(question: Question, name: str, shown: int, calibration: PlanCalibration | None = None,
         measured: list[str] | None = None, setup: tuple[str, Setup] | None = None) -> Plan:  # fmt: skip
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
        "global_batch": batch, "sequence": model.sequence, "tokens": batch * model.sequence,
        "precision": question.precision, "considered": len(rows), "feasible": sum(row.lacks == 0 for row in rows),
        "candidates": [entry(question, row, best) for row in best[:shown]],
        "given": given(question, *setup, best) if setup else None,
        "nearest": [] if best else [entry(question, row, []) for row in nearest(rows, min(shown, 3))],
        "rules": rules(question, rows),
        "placement": _placement(cluster, first) if first else [],
        "sensitivity": sensitivity(question, best) if best else [],
        "settling": settling(question, first.layout) if first else None, "measured": measured or [],
        "goodput": _goodput(question) if first and cluster.gpu_mtbf_hours else None,
        "cost": _cost(question, first) if first and cluster.gpu_mtbf_hours else None,
        "commands": _commands(question, first) if first else {},
        "calibration": calibration,
        "assumptions": _assumptions(question, calibration is not None),
    }  # fmt: skip


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
        "name": name, "parameters": model.parameters, "active_parameters": round(model.layers * model.active) + ends,
        "flops_per_step": flops(model, question.batch), "states_bytes": model.parameters * STATE_BYTES,
    }  # fmt: skip


def _cluster(cluster: Cluster) -> PlanCluster:
    return {
        "name": cluster.name, "gpus": cluster.gpus, "hosts": cluster.hosts, "memory_bytes": cluster.memory,
        "usable_bytes": round(cluster.usable), "peak_flops_per_s": cluster.peaks["bf16"],
        "inside": cluster.inside.name, "inside_gbps": cluster.inside.usable,
        "network": cluster.network.name if cluster.network else None, "network_gbps": cluster.port_gbps,
    }  # fmt: skip


def _goodput(question: Question) -> PlanGoodput:
    found = goodput(question.model.parameters, question.cluster)
    return {
        "mtbf_ns": round(found.mtbf * NS), "checkpoint_ns": round(found.checkpoint * NS),
        "checkpoint_interval_ns": round(found.interval * NS), "goodput_frac": found.frac,
    }  # fmt: skip


def _cost(question: Question, first: Scored) -> PlanCost | None:
    cluster, tokens = question.cluster, question.batch * question.model.sequence
    frac = goodput(question.model.parameters, cluster).frac
    if frac == 0:
        return None
    hours = gpu_hours_per_token(first.estimate.seconds, tokens, cluster, frac) * 1e6
    joules = joules_per_token(first.estimate.seconds, tokens, cluster, frac)
    price = cluster.gpu_hour_price
    return {
        "gpu_hours": hours, "joules": joules * 1e6 if joules is not None else None,
        "price": hours * price if price is not None else None,
    }  # fmt: skip


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
