"""Changes of each kind to drawn jobs: the predicted step with its range beside the simulated one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from simulator.counterfactuals import ANEW
from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.structures import Changed, draw
from simulator.truth import step_ns

from benchmarks.verdicts.predicted import Outcome
from gpuscope.analyzers import changes as made
from gpuscope.analyzers.changes import Change, Refused
from gpuscope.analyzers.run.runner import analyze

FAULTS_OF: dict[str, tuple[tuple[str, ...], ...]] = {
    "bytes": (("slow link",),),
    "link": (("slow link",),),
    "buckets": (("tiny buckets",), ("tiny buckets",), ("slow link",)),
    "overlap": (("late reduction",), ("late reduction",), ("slow link",)),
    "accumulation": (("synced accumulation",),),
    "prefetch": (("no prefetch",), ("no prefetch",), ("slow link",)),
    "one link": (("slow link",),),
    "pipeline": (("few micro-batches",), ("uneven stages",), ("few micro-batches", "uneven stages")),
    "syncs": (("values read",), ("waits",)),
    "graphs": (("launching",),),
    "host work": (("collector",), ("host work",), ("allocations",), ("emptied cache",)),
    "loader": (("slow loader",), ("loader on the thread",)),
    "copies": (("pageable copies",), ("large copies",)),
    "gradient copies": (("gradient copies",),),
    "ranks": (("slow devices",), ("long batches",), ("batches in turn",), ("collector of one rank",),
              ("host work of one rank",)),
    "combined": (("slow link", "values read"), ("slow link", "collector"), ("slow devices", "slow loader"),
                 ("few micro-batches", "slow loader"), ("allocations", "waits")),
}  # fmt: skip
"""By kind of change, faults of the jobs for it."""
_STRUCTURE = {
    "prefetch": lambda job: job.parallel == "fsdp" and job.layers > 3,
    "one link": lambda job: job.one_link or job.scatter_apart,
}
Asked = tuple[str, tuple[Change, ...], Changed]


def job_for(kind: str, seed: int) -> Job:
    """A drawn job that the kind of change is made for."""
    wanted = Random(seed).choice(FAULTS_OF[kind])
    fits = _STRUCTURE.get(kind, lambda _: True)
    number = seed
    while not fits(job := draw(number, *wanted).job):
        number += 1_000_000
    return replace(job, name=f"{kind}_{seed}".replace(" ", "_"))


def outcomes(kind: str, seed: int, folder: Path) -> Iterator[Outcome]:
    """The job of that kind and seed, with up to three changes of the kind and two of others that fit it; of bytes and
    links, which fit most jobs, there are enough."""
    job, rng = job_for(kind, seed), Random(-seed)
    asked = list(changes_of(job))
    own = [one for one in asked if one[0] == kind]
    others = [one for one in asked if one[0] not in (kind, "bytes", "link")]
    if kind == "combined" or rng.random() < 0.3:
        own += _combined(asked, rng)
    chosen = rng.sample(own, min(len(own), 3)) + rng.sample(others, min(len(others), 2))
    case = Case(job, kind)
    before = step_ns(case.run, case.unlike)
    replayer = analyze(case.write(folder), advice=False, replay=True).replayer
    for number, (family, changed, fields) in enumerate(chosen):
        after = Case(replace(job, seed=job.seed + ANEW + number, **fields), family)
        told = None if replayer is None else replayer.predict(list(changed))
        predicted, why = (None, told.why) if isinstance(told, Refused) else (told, "")
        name = f"{job.name} {' + '.join(map(repr, changed))}"
        yield Outcome(name, family, before, step_ns(after.run, after.unlike), predicted, why)


def changes_of(job: Job) -> Iterator[Asked]:
    """The changes that fit a job, each with what of the job is other then."""
    shared = job.one_link or job.scatter_apart
    for kind, changed, fields in [*_communication(job), *_sharded(job), *_pipeline(job), *_host(job), *_ranks(job)]:
        meets = kind in ("bytes", "overlap", "prefetch")
        yield ("one link" if shared and meets else kind), (changed,), fields


def _combined(asked: Sequence[Asked], rng: Random) -> list[Asked]:
    """Two changes of different kinds at once."""
    found: list[Asked] = []
    for _ in range(2 if len(asked) > 1 else 0):
        (kind, one, fields), (other_kind, other, others) = rng.sample(list(asked), 2)
        if kind != other_kind and not set(fields) & set(others):
            found.append(("combined", tuple(made.in_order((*one, *other))), {**fields, **others}))
    return found


_One = tuple[str, Change, dict[str, Any]]


def _communication(job: Job) -> Iterator[_One]:
    if job.parallel in ("ddp", "fsdp", "tensor"):
        yield "bytes", made.WireBytes(0.5), {"wire": 0.5}
        yield "bytes", made.WireBytes(0.25), {"wire": 0.25}
        yield "link", made.LinkSpeed(bandwidth=2.0), {"rate": job.rate * 2}
        yield "link", made.LinkSpeed(bandwidth=0.5), {"rate": job.rate / 2}
        yield "link", made.LinkSpeed(latency=0.5), {"alpha_ns": job.alpha_ns // 2}
    if job.parallel == "ddp":
        for size in (5 * MIB, 25 * MIB, 100 * MIB):
            if size != job.bucket_bytes and job.overlap:
                yield "buckets", made.BucketSize(size), {"bucket_bytes": size}
        if job.accumulate > 1 and not job.no_sync:
            yield "accumulation", made.AccumulatedGradients(job.accumulate), {"no_sync": True}
        if job.gradient_copies:
            yield "gradient copies", made.GradientViews(), {"gradient_copies": False}
    if job.parallel in ("ddp", "tensor") and job.accumulate == 1 and not job.one_stream:
        yield "overlap", made.Overlap(on=not job.overlap), {"overlap": not job.overlap}


def _sharded(job: Job) -> Iterator[_One]:
    if job.parallel != "fsdp":
        return
    if not job.limited:
        yield "prefetch", made.Prefetch(job.prefetch + 1), {"prefetch": job.prefetch + 1}
    if not job.keep_parameters:
        yield "prefetch", made.KeepParameters(), {"keep_parameters": True}
    if job.layers % 2 == 0 and job.layers > 2:
        joined = {"layers": job.layers // 2, "gemms": job.gemms * 2, "smalls": job.smalls * 2,
                  "layer_bytes": job.layer_bytes * 2}  # fmt: skip
        yield "prefetch", made.GroupModules(2), joined


def _pipeline(job: Job) -> Iterator[_One]:
    if job.parallel != "pipeline":
        return
    for count in (4, 8):
        if count != job.micro_batches:
            yield "pipeline", made.MicroBatches(count), {"micro_batches": count}
    name = "gpipe" if job.one_by_one else "1f1b"
    yield "pipeline", made.Schedule(name), {"one_by_one": not job.one_by_one}
    if job.stage_slow:
        mean = sum(job.stage_slow.get(rank, 1.0) for rank in range(job.ranks)) / job.ranks
        yield "pipeline", made.EvenStages(), {"stage_slow": dict.fromkeys(range(job.ranks), mean)}


def _host(job: Job) -> Iterator[_One]:
    if (job.items or job.device_syncs) and job.copy != "pageable" and not job.limited:
        yield "syncs", made.RemovedSyncs(), {"blocking": False}
        if job.items and not job.device_syncs:
            yield "syncs", made.RemovedSyncs(needed=True), {"read_late": True}
    if job.parallel in ("single", "ddp") and not job.graphs:
        yield "graphs", made.CapturedGraphs(), {"graphs": True}
    if job.gc_ns and job.gc_ranks is None:
        yield "host work", made.NoCollector(), {"gc_ns": 0}
    if job.host_work_ns and job.host_work_ranks is None:
        yield "host work", made.NoHostWork(), {"host_work_ns": 0}
    if job.allocations or job.empty_cache:
        yield "host work", made.NoAllocatorStalls(), {"allocations": 0, "empty_cache": 0}
    if job.loader_ns and job.loader_ranks is None:
        if job.workers:
            yield "loader", made.MoreLoaderWorkers(2.0), {"workers": job.workers * 2}
        else:
            for workers in (1, 2, 4):
                yield "loader", made.LoaderWorkers(workers), {"workers": workers}
    if job.copy_bytes and job.copy in ("pageable", "pinned"):
        change = made.PinnedCopies() if job.copy == "pageable" else made.CopyStream()
        yield "copies", change, {"copy": "beside"}


def _ranks(job: Job) -> Iterator[_One]:
    if len(job.device_slow) == 1:
        yield "ranks", made.ReplacedRank(*job.device_slow), {"device_slow": {}}
    for name in ("gc", "host_work"):
        late = getattr(job, f"{name}_ranks")
        if late is not None and getattr(job, f"{name}_ns"):
            yield "ranks", made.ReplacedRank(*late), {f"{name}_ns": 0}
    if job.data_scale:
        mean = sum(job.data_scale.get(rank, 1.0) for rank in range(job.ranks)) / job.ranks
        yield "ranks", made.SharedWork(*job.data_scale), {"data_scale": dict.fromkeys(range(job.ranks), mean)}
    if job.rotating != 1.0:
        mean = (job.ranks - 1 + job.rotating) / job.ranks
        yield "ranks", made.SharedWork(), {"rotating": 1.0, "data_scale": dict.fromkeys(range(job.ranks), mean)}
