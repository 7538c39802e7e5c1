"""A measured run on a larger cluster: its replay, with the groups that exchange gradients over more ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuscope.analyzers.changes import MoreRanks, OtherLink, Refused
from gpuscope.analyzers.planning.calibration.recorded_job import Job
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.collective_costs.fixed_part import LEAST_USED
from gpuscope.collective_costs.message_cost import OTHER_GROUP_ERROR
from gpuscope.collective_costs.nccl_model import Place, steps
from gpuscope.hardware.device_peaks import same_model
from gpuscope.hardware.link_rates import base_latency_ns
from gpuscope.schema.plan_document import PlanScaled
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.analyzers.run.analysis import Analysis

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
