"""A plan's rates from a recorded run: how quick it computed, what its links gave, what it hid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.analyzers.planning.cluster import Cluster, cluster_of
from gpuscope.analyzers.planning.plan_memory import Layout, Rates, measured_links, memory
from gpuscope.analyzers.planning.step_estimate import estimate, stages_of
from gpuscope.analyzers.planning.transformer import Model
from gpuscope.analyzers.what_if_changes import MoreRanks, OtherLink, Refused
from gpuscope.collective_costs.bus_bandwidth import Place, steps
from gpuscope.collective_costs.message_cost import LEAST_USED, OTHER_GROUP_ERROR
from gpuscope.errors import InputError, UsageError
from gpuscope.hardware.device_peaks import same_model
from gpuscope.hardware.link_rates import Link as HardwareLink
from gpuscope.hardware.link_rates import base_latency_ns
from gpuscope.schema.plan_document import PlanCalibration, PlanScaled
from gpuscope.sources.run_manifest import machine_of, training_of
from gpuscope.trace.kernel_categories import ATTENTION
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.analyzers.run.analysis import Analysis
    from gpuscope.schema.document import RankEntry, Report


# The model, layout and batch of a recorded run: from its manifest, or as the user gives them.

_SIZES = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "zero": "zero",
    "chunks": "chunks",
    "micro_batch": "micro_batch",
    "overlap": "overlap",
    "gradients": "gradients",
}
_ZERO = {"zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3}


@dataclass(frozen=True)
class Job:
    """What ran: `batch` in sequences per step, `processors` of the host that ran it on a CPU, else 0."""

    model: Model
    layout: Layout
    batch: int
    processors: int
    memory: int
    """Bytes of that host."""


def job_of(folder: Path, model: Model | None, layout: str | None, world: int) -> Job:
    """The job of a run folder. What is given goes before what the manifest says.

    Raises `InputError` where neither tells the model or the layout, `UsageError` for a layout that is none.
    """
    training = training_of(folder)
    own = model or (_model(training) if training else None)
    if own is None:
        raise InputError(f"{folder} does not say what model it trained", hint="name it with --model")
    if layout is not None:
        spread, batch = given_layout(layout, world)
    elif training is not None:
        spread, batch = _recorded(training, world)
    else:
        raise InputError(
            f"{folder} does not say how the model was spread",
            hint="give --layout tp=2,pp=4,zero=1,micro_batch=1,batch=512 (batch: sequences per step of that run)",
        )
    if batch % (spread.data * spread.micro_batch):
        raise UsageError(f"a batch of {batch} is no multiple of dp {spread.data} x micro-batch {spread.micro_batch}")
    processors, memory = machine_of(folder)
    return Job(own, spread, batch, processors, memory)


def _model(training: Mapping[str, Any]) -> Model:
    """Of `gpuscope train`: a GPT with feed-forward parts four times as wide, and an output layer of its own."""
    own, sequence = training["config"]["model"], training["config"]["data"]["sequence"]
    width = own["width"]
    return Model(
        own["layers"],
        width,
        own["heads"],
        4 * width,
        own["vocabulary"],
        sequence,
        experts=own.get("experts", 0),
        experts_per_token=own.get("experts_per_token", 2),
    )


def _recorded(training: Mapping[str, Any], world: int) -> tuple[Layout, int]:
    config, mesh = training["config"], training["mesh"]
    data = mesh.get("replicate", 1) * mesh.get("shard", 1) * mesh.get("ep", 1)
    pipeline, context, tensor = mesh.get("pp", 1), mesh.get("cp", 1), mesh.get("tp", 1)
    if data * pipeline * context * tensor != world:
        raise InputError(f"the manifest's mesh is of {data * pipeline * context * tensor} ranks, the run of {world}")
    micro = config.get("pipeline", {}).get("micro_batches", 1) if pipeline > 1 else 1
    accumulate = config.get("optimizer", {}).get("accumulate", 1) or 1
    batch = config["data"]["batch"]
    zero = _ZERO.get(str(config["parallel"].get("data", "")), 0)
    hybrid = mesh.get("shard", 1) if config["parallel"].get("data") == "hsdp" else 0
    layout = Layout(
        data,
        tensor,
        pipeline,
        context,
        mesh.get("ep", 1),
        zero,
        max(batch // micro, 1),
        chunks=config.get("pipeline", {}).get("stages_per_rank", 1) if pipeline > 1 else 1,
        shard=hybrid,
    )
    return layout, batch * data * accumulate


def given_layout(text: str, world: int) -> tuple[Layout, int]:
    """A layout of so many ranks and its batch, as a user writes them: `tp=2,pp=4,zero=1,micro_batch=1,batch=512`.

    Raises `UsageError` where it is none.
    """
    values: dict[str, int] = {}
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        if (key not in _SIZES and key != "batch") or not (value.isascii() and value.isdecimal() and int(value) >= 0):
            raise UsageError(
                f"--layout: {pair!r} is no part of a layout", hint=f"NUMBERs of {', '.join(_SIZES)}, batch"
            )
        values[key] = int(value)
    if not values.get("batch"):
        raise UsageError("--layout lacks batch", hint="batch=512: sequences per step of the recorded run")
    batch = values.pop("batch")
    rest = values.get("tp", 1) * values.get("pp", 1) * values.get("cp", 1)
    if rest < 1 or world % rest:
        raise UsageError(f"--layout: {text} does not divide {world} ranks")
    sizes = {_SIZES[key]: value for key, value in values.items()}
    layout = Layout(**{"data": world // rest, **sizes})  # type: ignore[arg-type]
    if (
        layout.data * rest != world
        or min(sizes.get(key, 1) for key in _SIZES.values() if key not in ("zero", "overlap")) < 1
    ):
        raise UsageError(f"--layout: {text} is not of {world} ranks")
    return layout, batch


# A measured run on a larger cluster: its replay, with the groups that exchange gradients over more ranks.

_OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")


def scaled(run: Analysis, job: Job, world: int, recorded: Cluster, wanted: Cluster) -> PlanScaled | None:
    """The run's step on the cluster, more data parallelism filling it; None where it has as many ranks as the run."""
    if wanted.gpus == world:
        return None
    factor, rest = divmod(wanted.gpus, world)
    grown: PlanScaled = {
        "ranks_before": world,
        "ranks_after": wanted.gpus,
        "scaling": "weak",
        "global_batch": job.batch * factor,
        "data_before": job.layout.data,
        "data_after": job.layout.data * factor,
        "step_ns_before": None,
        "step_ns_after": None,
        "low_ns": None,
        "high_ns": None,
        "efficiency_frac": None,
        "basis": "",
        "why": _why(job, world, recorded, wanted, rest),
        "untold": _untold(job, wanted),
    }
    if grown["why"]:
        return grown
    found = run.predict(MoreRanks(factor, _links(run, job, world, factor, wanted)))
    if isinstance(found, Refused):
        return grown | {"why": found.why}
    return grown | {
        "step_ns_before": found.before,
        "step_ns_after": found.after,
        "low_ns": found.low,
        "high_ns": found.high,
        "efficiency_frac": found.before / found.after if found.after else None,
        "basis": found.basis,
    }


def _why(job: Job, world: int, recorded: Cluster, wanted: Cluster, rest: int) -> str:
    """Why the run can't be scaled to the cluster; empty where it can."""
    own = job.layout
    if wanted.gpus < world or rest:
        return f"{units.plural(wanted.gpus, 'rank')} are no multiple of the {world} recorded"
    if not same_model(recorded.gpu, wanted.gpu):
        return f"how fast the kernels recorded on {recorded.gpu} are on {wanted.gpu} is not in the trace"
    if own.data * own.context == 1:
        return "no rank of the run exchanges gradients with another: when they would be sent is not in the trace"
    if own.expert > 1:
        return "which tokens go to which experts on more ranks is not in the trace"
    if own.zero and own.shards < own.replicas:
        return "with hybrid sharding only the replicas grow, whose all-reduce is not told from the shards' collectives"
    return ""


def _untold(job: Job, wanted: Cluster) -> list[str]:
    """What the replay can't tell of the larger cluster, and why."""
    found = [
        "other sizes of tensor, pipeline or context parallelism: how long kernels of other pieces of a layer take is "
        "not in the trace (the candidates estimate it)",
        "the same global batch (strong scaling): how long kernels of smaller batches take is not in the trace",
    ]
    if 0 < job.processors < wanted.gpus:
        found.append(f"what {wanted.gpus} processes lose by sharing {units.plural(job.processors, 'core')}")
    return found


def _links(run: Analysis, job: Job, world: int, factor: int, wanted: Cluster) -> tuple[OtherLink, ...]:
    """What the grown groups send over, where it is another kind of link than the recorded ones did: groups that were
    inside a host, and no longer are."""
    size, stride = job.layout.data * job.layout.context, job.layout.tensor
    hosts = len(run.hosts) or math.ceil(world / wanted.gpus_per_host)
    if size * stride > world / hosts or wanted.inside_host(size * factor, stride):
        return ()
    rate = wanted.ring(size * factor, stride)
    worst = 1 / (1 + OTHER_GROUP_ERROR) if wanted.measured else LEAST_USED
    best = 1 + OTHER_GROUP_ERROR if wanted.measured else 1.0
    return tuple(
        OtherLink(op, _latency(op, size * factor, stride, wanted), (rate * best, rate, rate * worst)) for op in _OPS
    )


def _latency(op: str, size: int, stride: int, wanted: Cluster) -> float:
    """ns that do not depend on the bytes; of an all-reduce those of a tree where they are less than a ring's."""
    ring = wanted.latency_ns(op, size, stride)
    if op != "all_reduce" or wanted.network is None:
        return ring
    tree = steps(op, "tree", Place(size, wanted.spread(size, stride), nvlink=True, generation="hopper"))
    spent = tree.inside * wanted.inside.latency_ns + tree.between * wanted.network.latency_ns
    return min(ring, base_latency_ns() + spent)


LEAST_ERROR = 0.1
"""Of compute predicted for other sizes than those measured: other matrices are multiplied at other rates."""
CPU = "CPU"
"""Of a run on a CPU, the name of what stands where a GPU does."""
_CPU_FLOPS = 1e11
"""Nominal peak of a core, for a run on a CPU: only its product with the measured share is used."""
_CPU_MEMORY = 1 << 40


def calibrated(
    path: Path, model: Model | None, cluster: Cluster | None, layout: str | None, processes: int | None
) -> tuple[Model, Cluster, Rates, PlanCalibration]:
    """The run's model, the cluster to plan for, and what the run measured.

    `model`, `cluster` and `layout` are those that the user names, and go before what the manifest says; `processes` is
    how many the machine of a run on a CPU is planned for.

    Raises `InputError` for a run without whole steps or one that does not say what it trained.
    """
    from gpuscope.analyzers.run.runner import analyze

    run = analyze(path, advice=False, replay=True)
    report = run.report
    folder = path if path.is_dir() else path.parent
    step = report["step_time"]
    ranks = [rank for rank in report["ranks"] if rank["steps"]]
    if step is None or not ranks:
        raise InputError(f"{path} has no whole steps", hint="record at least three with gpuscope record or train")
    world = report["trace"]["world_size"] or len(ranks)
    job = job_of(folder, model, layout, world)
    recorded = _recorded_cluster(job, ranks, cluster, world)
    links, told = measured_links(report["bandwidth"])
    gemm, attention = efficiencies(report, job, recorded, ranks, path)
    rates = Rates(
        gemm,
        attention,
        links,
        step_ns=_constant(ranks),
        overlap_frac=_overlap(job, ranks),
        error_frac=_error(report),
    )
    again = estimate(job.model, recorded, job.layout, job.batch, rates)
    wanted = _wanted(job, recorded, cluster, processes)
    notes = _notes(report, job, world, ranks)
    if links and not _same_links(recorded, wanted):
        rates = replace(rates, links={}, overlap_frac=None)
        told, notes = [], [*notes, f"the links of {wanted.name} are not those measured: assumed"]
    factor, told_memory = _memory(report, job)
    rates, notes = replace(rates, activation_factor=factor), [*notes, *told_memory]
    return (
        job.model,
        wanted,
        rates,
        {
            "run": str(path),
            "layout": job.layout.name,
            "measured_step_ns": step["median_ns"],
            "estimated_step_ns": round(again.seconds * 1e9),
            "compute_frac": gemm,
            "attention_frac": attention,
            "links": told,
            "notes": notes,
            "scaled": scaled(run, job, world, recorded, wanted),
        },
    )


def _wanted(job: Job, recorded: Cluster, cluster: Cluster | None, processes: int | None) -> Cluster:
    if recorded.gpu != CPU:
        if processes is not None:
            raise UsageError("the run was on GPUs", hint="name the cluster, such as --cluster 8xH100")
        return cluster or recorded
    if cluster is not None:
        raise UsageError("a run on a CPU says nothing of GPUs", hint="plan for its own machine: --cluster 4xCPU")
    return on_cpu(processes, job.processors, job.memory) if processes else recorded


def efficiencies(
    report: Report, job: Job, recorded: Cluster, ranks: list[RankEntry], path: Path
) -> tuple[float, float]:
    """Of the peak, in matrix multiplications with what runs between them, and in attention.

    Attention is known by its kernels where a device ran them; else both are taken to be alike. Raises `InputError`
    where nothing was computed.
    """
    measured = sum(rank["breakdown_ns"]["compute"] / rank["steps"] for rank in ranks) / len(ranks)
    both = estimate(job.model, recorded, job.layout, job.batch, Rates(1.0, 1.0)).compute * 1e9
    if not measured or not both:
        raise InputError(f"{path} has no compute in its steps")
    entries = report.get("compute", [])
    spent = [part["dur_ns"] for entry in entries for part in entry["parts"] if part["category"] == ATTENTION]
    attention = sum(spent) / len(entries) if entries else 0.0
    # With attention for nothing what is left of the estimate are the multiplications.
    gemm = estimate(job.model, recorded, job.layout, job.batch, Rates(1.0, float("inf"))).compute * 1e9
    if not 0 < attention < measured or recorded.gpu == CPU:
        return both / measured, both / measured
    return gemm / (measured - attention), (both - gemm) / attention


def _same_links(recorded: Cluster, wanted: Cluster) -> bool:
    """Whether messages of the one run over what was measured on the other."""
    return same_model(recorded.gpu, wanted.gpu) and (recorded.hosts == 1) == (wanted.hosts == 1)


def _memory(report: Report, job: Job) -> tuple[float, list[str]]:
    """What the model's states leave of the measured peak, by the activations of the formulas."""
    peaks = [entry["peak_reserved_bytes"] or entry["peak_allocated_bytes"] for entry in report.get("memory", ())]
    if not peaks:
        return 1.0, []
    parts = memory(job.model, job.layout, stages_of(job.model, job.layout), job.batch)
    rest = max(peaks) - (sum(parts.values()) - parts["activations"])
    if rest <= 0:
        return 1.0, [f"the measured peak of {units.size(max(peaks))} is less than the states: memory is not calibrated"]
    factor = rest / parts["activations"]
    return factor, [f"activations take {factor:.2f} times what the formulas say, by the measured peak of memory"]


def _recorded_cluster(job: Job, ranks: list[RankEntry], cluster: Cluster | None, world: int) -> Cluster:
    name = next((rank["device_name"] for rank in ranks if rank["device_name"]), None)
    if any(rank["device"] is not None for rank in ranks):
        if cluster is None and name is None:
            raise UsageError("the run does not name its GPUs", hint="name them with --cluster, such as 8xH100")
        return cluster if cluster is not None and cluster.gpus == world else cluster_of(f"{world}x{name}")
    # Processes share the cores: with more of them than cores each computes so much more slowly.
    return on_cpu(world, job.processors, job.memory)


def on_cpu(world: int, processors: int, memory: int) -> Cluster:
    """A host that trains on its cores, one per process while there are enough."""
    share = min(processors / world, 1.0) if processors else 1.0
    link = HardwareLink("measured", "gloo", "ethernet", 1, 1.0, 1.0, 0)
    usable = memory // world if memory else _CPU_MEMORY
    return Cluster(
        1, world, CPU, usable, {"bf16": _CPU_FLOPS * share}, link, None, 1, 1.0, _CPU_FLOPS, {"bf16": 1.0}, False
    )


def _constant(ranks: list[RankEntry]) -> float:
    """What a step takes besides compute and transfers, mean over ranks: idle, exposed memory, waits for a late rank."""
    found = 0.0
    for rank in ranks:
        parts = rank["breakdown_ns"]
        late = rank["stall_ns"]["communication"].get("straggler", 0)
        found += (parts["idle"] + parts["exposed_memory"] + late) / rank["steps"]
    return found / len(ranks)


def _overlap(job: Job, ranks: list[RankEntry]) -> float | None:
    """Of communication, hidden behind compute; only where all of it is data parallelism's, so that it can be told."""
    own = job.layout
    if own.replicas == 1 or max(own.tensor, own.pipeline, own.context, own.expert) > 1:
        return None
    total = sum(rank["communication_ns"] for rank in ranks)
    late = sum(rank["stall_ns"]["communication"].get("straggler", 0) for rank in ranks)
    exposed = sum(rank["breakdown_ns"]["exposed_communication"] for rank in ranks) - late
    return 1 - max(exposed, 0) / (total - late) if total > late else None


def _error(report: Report) -> float:
    step = report["step_time"]
    spread = (step["p90_ns"] - step["min_ns"]) / step["median_ns"] / 2 if step else 0.0
    return max(spread, LEAST_ERROR)


def _notes(report: Report, job: Job, world: int, ranks: list[RankEntry]) -> list[str]:
    found = []
    if report["step_time"] is not None and report["step_time"]["steps"] < 5:
        found.append(f"only {units.plural(report['step_time']['steps'], 'steady step')} measured")
    if len(ranks) < world:
        found.append(f"{len(ranks)} of {world} ranks were recorded; the others are assumed alike")
    if all(rank["device"] is None for rank in ranks):
        cores = f"{job.processors} cores" if job.processors else "cores that the run does not count"
        found.append(f"on a CPU {units.plural(world, 'process', 'processes')} share {cores}; memory is the host's")
    return found
