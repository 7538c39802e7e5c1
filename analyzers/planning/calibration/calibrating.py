"""A plan's rates from a recorded run: how quick it computed, what its links gave, what it hid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.analyzers.planning.calibration.measured_links import measured_links
from gpuscope.analyzers.planning.calibration.recorded_job import Job, job_of
from gpuscope.analyzers.planning.calibration.scaled_run import scaled
from gpuscope.analyzers.planning.costs.plan_memory import memory
from gpuscope.analyzers.planning.costs.rates import Rates
from gpuscope.analyzers.planning.costs.step_estimate import estimate, stages_of
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.analyzers.planning.inputs.cluster_spec import cluster_of
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.errors import InputError, UsageError
from gpuscope.hardware.device_peaks import same_model
from gpuscope.hardware.link_rates import Link as HardwareLink
from gpuscope.schema.plan_document import PlanCalibration
from gpuscope.trace.naming.kernel_categories import ATTENTION
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.schema.document import RankEntry, Report

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
