"""Jobs drawn by a seed: not only their times, what they are made of too, with up to two faults put in.

Each knows its fixes: what of the job is other without one of its faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from simulator.device import BUS_FACTORS
from simulator.job import MIB, Job
from simulator.script import PAGEABLE_RATE, PINNED_RATE

MOST_KERNELS = 600
"""Of all ranks and steps together, so that a job is simulated and analysed in a second."""
RANKS = {
    "single": (1,),
    "ddp": (2, 2, 2, 3, 4, 4, 8),
    "fsdp": (2, 2, 2, 3, 4, 4, 8),
    "tensor": (4, 4, 4, 6),
    "pipeline": (2, 3, 4),
}
Changed = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """`fixes`: by fault, the fields of the job as they are without it."""

    job: Job
    fixes: dict[str, Changed] = field(default_factory=dict)

    def fixed(self, fault: str) -> Job:
        return replace(self.job, **self.fixes[fault])


@dataclass(frozen=True)
class Fault:
    """What is put into a job, and how it is mended there."""

    put_in: Changed
    fix: Changed


def draw(seed: int, *wanted: str, beside: int = 0) -> Drawn:
    """The job of a seed: with the wanted faults, and so many of any `beside` them; else with up to two of any."""
    rng = Random(seed)
    job = replace(_healthy(rng), name=f"drawn_{seed}", seed=seed)
    while not all(_fits(name, job) for name in wanted):
        job = replace(_healthy(rng), name=f"drawn_{seed}", seed=seed)
    names = list(wanted)
    for _ in range(beside if wanted else rng.choice((0, 1, 1, 2, 2, 2))):
        areas = {FAULTS[name].area for name in names}
        names.append(rng.choice([name for name in FAULTS if _fits(name, job) and FAULTS[name].area not in areas]))
    fixes: dict[str, Changed] = {}
    for name in names:
        fault = FAULTS[name].of(rng, job)
        job, fixes[name] = replace(job, **fault.put_in), fault.fix
    return Drawn(job, fixes)


def device_ns(job: Job) -> float:
    """What a rank computes in a step."""
    layer = 3 * job.gemms * job.gemm_ns + 2 * job.smalls * job.small_ns
    return job.layers * layer * job.accumulate + job.optimizer_kernels * job.optimizer_ns


def launch_ns(job: Job) -> float:
    """What launching that takes the host."""
    passes = job.micro_batches if job.parallel == "pipeline" else job.accumulate
    kernels = job.layers * (3 * job.gemms + 2 * job.smalls) * passes + job.optimizer_kernels
    return kernels * (job.op_ns + job.call_ns)


def _log(rng: Random, low: float, high: float) -> float:
    """As likely between `low` and twice that as between half of `high` and that."""
    return float(low * (high / low) ** rng.random())


def _healthy(rng: Random) -> Job:
    """A job whose device is busy, whose communication mostly hides."""
    parallel = rng.choice(("single", "ddp", "ddp", "ddp", "fsdp", "fsdp", "tensor", "pipeline", "pipeline"))
    ranks = rng.choice(
        {"single": (1,), "tensor": (4, 4, 6, 8), "pipeline": (2, 3, 4)}.get(parallel, (2, 2, 3, 4, 6, 8))
    )
    job = Job(
        parallel=parallel,
        ranks=ranks,
        steps=rng.randint(6, 8),
        layers=rng.randint(2, 8),
        gemms=rng.randint(1, 4),
        smalls=rng.randint(1, 6),
        gemm_ns=round(_log(rng, 30_000, 350_000)),
        small_ns=round(_log(rng, 6_000, 45_000)),
        op_ns=round(_log(rng, 4_000, 13_000)),
        call_ns=round(_log(rng, 2_500, 5_000)),
        latency_ns=round(_log(rng, 3_000, 8_000)),
        optimizer_kernels=rng.randint(2, 10),
        optimizer_ns=round(_log(rng, 10_000, 60_000)),
        kernel_jitter=_log(rng, 0.002, 0.02),
        host_jitter=_log(rng, 0.02, 0.12),
        batched=rng.random() < 0.2,
        alpha_ns=round(_log(rng, 8_000, 40_000)),
        layer_bytes=round(_log(rng, MIB, 64 * MIB)),
        bucket_bytes=rng.choice((5, 25, 25, 25, 50)) * MIB,
        items=rng.choice((0, 0, 1)),
        workers_apart=True,
        item_own_ns=round(_log(rng, 2_000, 30_000)),
        host_work="save_checkpoint",
    )
    if rng.random() < 0.5:
        job = replace(job, compute_slow=rng.uniform(1.03, 1.3), transfer_slow=rng.uniform(1.0, 1.4))
    if parallel == "ddp" and rng.random() < 0.2:
        job = replace(job, accumulate=rng.choice((2, 3)), no_sync=True)
    job = _small_enough(_of_parallelism(rng, job))
    if launch_ns(job) > 0.75 * device_ns(job):  # else the host would be the slower of the two
        more = launch_ns(job) / device_ns(job) / rng.uniform(0.3, 0.75)
        job = replace(
            job,
            gemm_ns=round(job.gemm_ns * more),
            small_ns=round(job.small_ns * more),
            optimizer_ns=round(job.optimizer_ns * more),
        )
    return _beside(rng, replace(job, rate=_rate(job, _log(rng, 0.05, 0.5))))


def _of_parallelism(rng: Random, job: Job) -> Job:
    if job.parallel == "fsdp":
        fsdp1 = rng.random() < 0.3
        return replace(
            job,
            fsdp1=fsdp1,
            limited=fsdp1 and rng.random() < 0.5,
            keep_parameters=rng.random() < 0.2,
            scatter_apart=rng.random() < 0.3,
            crowd_cost=rng.uniform(0.85, 1.2),
        )
    if job.parallel == "tensor":
        return replace(job, one_link=rng.random() < 0.4, crowd_cost=rng.uniform(0.85, 1.2))
    if job.parallel == "pipeline":
        return replace(
            job,
            layers=min(job.layers, 3),
            micro_batches=rng.choice((4, 6, 8)),
            items=0,
            one_by_one=rng.random() < 0.5,
            pipeline_ranges=rng.random() < 0.6,
        )
    return job


def _small_enough(job: Job) -> Job:
    def kernels(one: Job) -> int:
        repeated = one.micro_batches if one.parallel == "pipeline" else one.accumulate
        return one.ranks * one.steps * one.layers * (3 * one.gemms + 2 * one.smalls) * repeated

    for name, least in [("layers", 2), ("smalls", 1), ("gemms", 1), ("steps", 6), ("layers", 1)] * 8:
        if kernels(job) > MOST_KERNELS and getattr(job, name) > least:
            job = replace(job, **{name: getattr(job, name) - 1})
    return job


def _rate(job: Job, share: float) -> float:
    """The rate at which the gradients (and parameters) take that share of what a rank computes."""
    n = job.ranks
    if job.parallel == "tensor":
        n //= 2
    passes = 1 if job.no_sync else job.accumulate
    factor = BUS_FACTORS["all_reduce"](n) * passes
    if job.parallel == "fsdp":
        factor = BUS_FACTORS["all_gather"](n) * (2 if job.keep_parameters else 3)
    return max(job.layers * job.layer_bytes * factor / (share * device_ns(job)), 1.0)


def _beside(rng: Random, job: Job) -> Job:
    """Messages within layers and stages, a loader, copies, a start and single steps unlike the others."""
    whole = device_ns(job)
    if job.parallel == "tensor":
        # Two of n ranks each: the factor is 1.
        job = replace(job, tensor_bytes=round(_log(rng, 0.03, 0.3) * whole * job.rate / job.layers / 2))
    if job.parallel == "pipeline":
        job = replace(job, rate=150.0, activation_bytes=round(_log(rng, 0.01, 0.2) * whole * 150 / 2))
    if rng.random() < 0.4:
        job = replace(job, loader_ns=round(whole * rng.uniform(0.3, 2)), workers=4)
    if rng.random() < 0.4:
        # On a stream of their own they would run all steps ahead of a host that waits for nothing.
        beside = job.items > 0 and rng.random() < 0.5
        job = replace(
            job, copy_bytes=round(whole * _log(rng, 0.003, 0.03) * PINNED_RATE), copy="beside" if beside else "pinned"
        )
    if rng.random() < 0.1 and job.parallel in ("single", "ddp") and not job.items:
        job = replace(job, graphs=True)
    start = rng.random()
    if start < 0.15:
        job = replace(job, warmup_factor=rng.uniform(1.5, 3))
    elif start < 0.25:
        job = replace(job, compile_ns=round(whole * rng.uniform(3, 20)))
    elif start < 0.35 and job.steps > 7:
        job = replace(job, outlier_step=rng.randint(2, job.steps - 3), outlier_ns=round(whole * rng.uniform(2, 6)))
    return job


# Faults: what they are put in by, which jobs they fit.


@dataclass(frozen=True)
class _Kind:
    of: Callable[[Random, Job], Fault]
    parallel: tuple[str, ...] = ("single", "ddp", "fsdp", "tensor")
    fits: Callable[[Job], bool] = lambda _: True
    area: str = ""
    """Two of one area are not put into one job."""


def _fits(name: str, job: Job) -> bool:
    kind = FAULTS[name]
    return job.parallel in kind.parallel and kind.fits(job)


def _part(rng: Random, job: Job, low: float = 0.08, high: float = 1.2) -> int:
    """A stall by what the device computes in a step."""
    return round(_log(rng, low, high) * device_ns(job))


def _one_rank(rng: Random, job: Job) -> int:
    return rng.randrange(job.ranks)


def _slow_link(rng: Random, job: Job) -> Fault:
    return Fault({"rate": _rate(job, _log(rng, 0.8, 4))}, {"wire": 0.5})


def _tiny_buckets(rng: Random, job: Job) -> Fault:
    size = rng.choice((1, MIB // 4, MIB))
    alpha = round(_log(rng, 0.15, 1.5) * device_ns(job) / job.layers / job.gemms)
    # NCCL needs up to 100 us within a node, whatever it sends.
    return Fault(
        {"bucket_bytes": size, "alpha_ns": min(max(alpha, 20_000), 100_000), "rate": _rate(job, 0.1)},
        {"bucket_bytes": 25 * MIB},
    )


def _late_reduction(rng: Random, job: Job) -> Fault:
    bucket = job.layers * job.layer_bytes // rng.randint(2, 6)
    put_in = {"overlap": False, "wrapped": False, "bucket_bytes": bucket, "rate": _rate(job, _log(rng, 0.1, 1))}
    return Fault(put_in, {"overlap": True})


def _synced_accumulation(rng: Random, job: Job) -> Fault:
    job = replace(job, accumulate=rng.choice((2, 3)))
    put_in = {"accumulate": job.accumulate, "no_sync": False, "rate": _rate(job, _log(rng, 0.8, 3))}
    return Fault(put_in, {"no_sync": True})


def _gradient_copies(rng: Random, job: Job) -> Fault:
    # 2 bytes per byte of gradients at 2,000 bytes per ns of the device's memory.
    size = round(_log(rng, 0.03, 0.3) * device_ns(job) * 1_000 / job.layers)
    job = replace(job, layer_bytes=size)
    return Fault({"gradient_copies": True, "layer_bytes": size, "rate": _rate(job, 0.2)}, {"gradient_copies": False})


def _stage_slow(rng: Random, job: Job) -> Fault:
    slow = {_one_rank(rng, job): rng.uniform(1.25, 2.0)}
    mean = (job.ranks - 1 + sum(slow.values())) / job.ranks
    return Fault({"stage_slow": slow}, {"stage_slow": dict.fromkeys(range(job.ranks), mean)})


def _long_batches(rng: Random, job: Job) -> Fault:
    scale = {_one_rank(rng, job): rng.uniform(1.15, 1.8)}
    mean = (job.ranks - 1 + sum(scale.values())) / job.ranks
    return Fault({"data_scale": scale}, {"data_scale": dict.fromkeys(range(job.ranks), mean)})


def _rotating(rng: Random, job: Job) -> Fault:
    long = rng.uniform(1.3, 2.0)
    mean = (job.ranks - 1 + long) / job.ranks
    return Fault({"rotating": long}, {"rotating": 1.0, "data_scale": dict.fromkeys(range(job.ranks), mean)})


def _slow_devices(rng: Random, job: Job) -> Fault:
    several = rng.sample(range(job.ranks), 2) if job.ranks >= 6 and rng.random() < 0.3 else [_one_rank(rng, job)]
    return Fault({"device_slow": dict.fromkeys(several, rng.uniform(1.12, 1.7))}, {"device_slow": {}})


def _slow_loader(rng: Random, job: Job) -> Fault:
    workers = rng.randint(1, 3)
    put_in = {"workers": workers, "loader_ns": round(device_ns(job) * workers * rng.uniform(1.15, 3))}
    return Fault(put_in, {"workers": 4 * workers})


def _loader_on_thread(rng: Random, job: Job) -> Fault:
    # Where nothing is read, the host may hide it.
    put_in = {"workers": 0, "loader_ns": _part(rng, job), "items": max(job.items, rng.choice((0, 1)))}
    return Fault(put_in if job.parallel != "pipeline" else {**put_in, "items": 0}, {"workers": 4})


def _late_loader(rng: Random, job: Job) -> Fault:
    slow = {"workers": 2, "loader_ns": round(device_ns(job) * 2 * rng.uniform(1.2, 2.5))}
    return Fault({**slow, "loader_ranks": (_one_rank(rng, job),)}, {"loader_ranks": ()})


def _pageable(rng: Random, job: Job) -> Fault:
    size = round(_part(rng, job, 0.03, 0.6) * PAGEABLE_RATE)
    return Fault({"copy": "pageable", "copy_bytes": size, "copies": 1}, {"copy": "beside"})


def _large_copies(rng: Random, job: Job) -> Fault:
    return Fault({"copy": "pinned", "copy_bytes": round(_part(rng, job) * PINNED_RATE)}, {"copy": "beside"})


def _reads(rng: Random, job: Job) -> Fault:
    items = rng.randint(max(1, job.layers // 2), job.layers)
    own = round(_part(rng, job, 0.02, 0.6) / items / job.accumulate)
    return Fault({"items": items, "item_own_ns": own}, {"read_late": True})


def _launch_bound(rng: Random, job: Job) -> Fault:
    less = device_ns(job) / launch_ns(job) * _log(rng, 1.2, 4)
    small = {name: round(max(getattr(job, name) / less, 2_000)) for name in ("gemm_ns", "small_ns", "optimizer_ns")}
    tiny = replace(job, **small)
    return Fault({**small, "rate": _rate(tiny, 0.2), "copy_bytes": 0, "loader_ns": 0, "items": 0}, {"graphs": True})


def _named_work(rng: Random, job: Job) -> Fault:
    name = rng.choice(("save_checkpoint", "evaluate", "log_metrics"))
    return Fault({"host_work_ns": _part(rng, job), "host_work": name, "items": max(job.items, 1)}, {"host_work_ns": 0})


def _late_work(rng: Random, job: Job) -> Fault:
    late = {"host_work_ns": _part(rng, job), "host_work_ranks": (_one_rank(rng, job),), "items": max(job.items, 1)}
    return Fault(late, {"host_work_ns": 0})


def _collector(rng: Random, job: Job) -> Fault:
    return Fault({"gc_ns": _part(rng, job), "items": max(job.items, 1)}, {"gc_ns": 0})


def _late_collector(rng: Random, job: Job) -> Fault:
    late = {"gc_ns": _part(rng, job), "gc_ranks": (_one_rank(rng, job),), "items": max(job.items, 1)}
    return Fault(late, {"gc_ns": 0})


def _allocations(rng: Random, job: Job) -> Fault:
    count = rng.randint(1, job.layers)
    own = round(_part(rng, job, 0.05, 0.8) / count / 2 / job.accumulate)
    return Fault({"allocations": count, "allocation_ns": own}, {"allocations": 0})


def _emptied(rng: Random, job: Job) -> Fault:
    count = rng.randint(1, 4)
    own = round(_part(rng, job, 0.05, 0.8) / count / 2)
    return Fault({"empty_cache": count, "allocation_ns": own}, {"empty_cache": 0})


def _given(put_in: Changed, fix: Changed) -> Callable[[Random, Job], Fault]:
    return lambda _rng, _job: Fault(put_in, fix)


_SEVERAL = ("ddp", "fsdp", "tensor")
FAULTS = {
    "slow link": _Kind(_slow_link, _SEVERAL, area="link"),
    "tiny buckets": _Kind(_tiny_buckets, ("ddp",), lambda job: job.layer_bytes < 12 * MIB, "link"),
    "late reduction": _Kind(_late_reduction, ("ddp",), lambda job: not job.graphs, "link"),
    "synced accumulation": _Kind(_synced_accumulation, ("ddp",), lambda job: not job.graphs, "link"),
    "gradient copies": _Kind(_gradient_copies, ("ddp",), lambda job: not job.graphs, "link"),
    "search": _Kind(
        lambda rng, job: Fault({"search_ns": _part(rng, job, 0.03, 0.3)}, {"search_ns": 0}),
        ("ddp",),
        lambda job: job.accumulate == 1,
        "search",
    ),
    "one stream": _Kind(_given({"one_stream": True}, {"one_stream": False}), ("ddp", "fsdp"), area="link"),
    "no prefetch": _Kind(
        lambda rng, job: Fault(
            {"prefetch": 0, "limited": False, "rate": _rate(job, _log(rng, 0.2, 0.9))}, {"prefetch": 1}
        ),
        ("fsdp",),
        area="link",
    ),
    "few micro-batches": _Kind(_given({"micro_batches": 2}, {"micro_batches": 8}), ("pipeline",), area="micro"),
    "uneven stages": _Kind(_stage_slow, ("pipeline",), area="stage"),
    "slow loader": _Kind(_slow_loader, ("single", *_SEVERAL, "pipeline"), area="loader"),
    "loader on the thread": _Kind(_loader_on_thread, ("single", *_SEVERAL, "pipeline"), area="loader"),
    "loader of one rank": _Kind(_late_loader, _SEVERAL, area="loader"),
    "pageable copies": _Kind(_pageable, area="copies"),
    "large copies": _Kind(_large_copies, area="copies"),
    "values read": _Kind(_reads, fits=lambda job: not job.graphs, area="reads"),
    "waits": _Kind(
        lambda rng, job: Fault({"device_syncs": rng.randint(1, job.layers)}, {"device_syncs": 0}),
        fits=lambda job: not job.graphs,
        area="reads",
    ),
    "launching": _Kind(_launch_bound, ("single", "ddp"), lambda job: not job.graphs, "launching"),
    "collector": _Kind(_collector, area="host"),
    "host work": _Kind(_named_work, area="host"),
    "allocations": _Kind(_allocations, fits=lambda job: not job.graphs, area="allocator"),
    "emptied cache": _Kind(_emptied, area="allocator"),
    "slow devices": _Kind(_slow_devices, _SEVERAL, area="ranks"),
    "long batches": _Kind(_long_batches, _SEVERAL, area="ranks"),
    "batches in turn": _Kind(_rotating, _SEVERAL, area="ranks"),
    "collector of one rank": _Kind(_late_collector, _SEVERAL, area="host"),
    "host work of one rank": _Kind(_late_work, _SEVERAL, area="host"),
    "slow host": _Kind(
        lambda rng, job: Fault({"host_slow": {_one_rank(rng, job): rng.uniform(2, 4)}}, {"host_slow": {}}),
        _SEVERAL,
        lambda job: not job.graphs,
        "ranks",
    ),
}
"""By name."""
