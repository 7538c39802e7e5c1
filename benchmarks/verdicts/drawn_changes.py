"""Changes of each kind to drawn jobs: the predicted step with its range beside the simulated one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch
from zlib import crc32

from simulator.counterfactuals import ANEW
from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.structures import Changed, draw
from simulator.truth import step_ns

from benchmarks.verdicts.advised import grouped, late_host
from benchmarks.verdicts.predicted import Outcome
from gpuscope.analyzers import what_if_changes as made
from gpuscope.analyzers.replay import replayer
from gpuscope.analyzers.replay.contention import MEETING
from gpuscope.analyzers.replay.replayer import Replayer
from gpuscope.analyzers.run import file_part, runner
from gpuscope.analyzers.what_if_changes import Change, Refused

ONE_LINK = "two collectives on one link"
COMBINED = "two changes at once"
FAULTS_OF: dict[str, tuple[tuple[str, ...], ...]] = {
    "WireBytes": (("slow link",),),
    "LinkSpeed": (("slow link",),),
    "BucketSize": (("tiny buckets",), ("tiny buckets",), ("slow link",)),
    "Overlap": (("late reduction",), ("late reduction",), ("slow link",)),
    "AccumulatedGradients": (("synced accumulation",),),
    "GradientViews": (("gradient copies",),),
    "Prefetch": (("no prefetch",), ("slow link",)),
    "KeepParameters": (("no prefetch",), ("slow link",)),
    "GroupModules": (("no prefetch",), ("slow link",)),
    ONE_LINK: (("slow link",),),
    "MicroBatches": (("few micro-batches",), ("few micro-batches", "uneven stages")),
    "EarlyMessages": (("uneven stages",), ("few micro-batches",), ()),
    "Schedule": (("few micro-batches",), ("uneven stages",), ("few micro-batches", "uneven stages")),
    "EvenStages": (("uneven stages",), ("few micro-batches", "uneven stages")),
    "RemovedSyncs": (("values read",), ("waits",)),
    "CapturedGraphs": (("launching",),),
    "NoCollector": (("collector",),),
    "NoHostWork": (("host work",),),
    "NoAllocatorStalls": (("allocations",), ("emptied cache",)),
    "LoaderWorkers": (("loader on the thread",),),
    "MoreLoaderWorkers": (("slow loader",),),
    "PinnedCopies": (("pageable copies",),),
    "CopyStream": (("large copies",),),
    "ReplacedRank": (("slow devices",), ("collector of one rank",), ("host work of one rank",)),
    "SharedWork": (("long batches",), ("batches in turn",)),
    COMBINED: (
        ("slow link", "values read"),
        ("slow link", "collector"),
        ("slow devices", "slow loader"),
        ("few micro-batches", "slow loader"),
        ("allocations", "waits"),
    ),
}
"""By kind of change, faults of the jobs for it."""
AT_ONCE = 6
"""Changes asked of one job at most, each of another kind, so that no job weighs much."""


class Asked(NamedTuple):
    """What of a job is other with a change, or with two `of` other kinds."""

    kind: str
    changes: tuple[Change, ...]
    fields: Changed
    of: tuple[str, ...] = ()


def structure(job: Job) -> str:
    """What a job is made of, whatever its times, rates and sizes."""
    counts = (job.parallel, job.ranks, job.layers, job.gemms, job.smalls, job.copy, job.items > 0)
    return repr((*counts, *(value for value in vars(job).values() if isinstance(value, bool))))


def known(job: Job) -> bool:
    """Whether jobs of its structure are those that ranges are fitted to; every other one is."""
    return crc32(structure(job).encode()) % 2 == 0


def of_seeds(seeds: Sequence[int], each: int, folder: Path, *, fitted: bool | None = None) -> list[Outcome]:
    """`of_each_kind` from each of the seeds on, as many at once as there are cores."""
    every = partial(_listed, each=each, folder=folder, fitted=fitted)
    with ProcessPoolExecutor() as pool:
        return [one for told in pool.map(every, seeds) for one in told]


def _listed(seed: int, each: int, folder: Path, fitted: bool | None) -> list[Outcome]:
    """To what is fitted ranges have no margins: it is these that are sought."""
    with patch.object(replayer, "margin", lambda *_: 0.0) if fitted else nullcontext():
        return list(of_each_kind(seed, each, Truths(folder), fitted=fitted))


def of_each_kind(seed: int, each: int, truths: Truths, *, fitted: bool | None = None) -> Iterator[Outcome]:
    """At least `each` predictions of every kind, of jobs drawn by the seeds from `seed` on; `fitted`: only of known, or
    of unknown, structures. Refusals are counted with the predictions of the kind, up to as many."""
    told, asked = Counter[str](), Counter[str]()
    number = seed
    while open_kinds := [kind for kind in FAULTS_OF if told[kind] < each and asked[kind] < 2 * each]:
        kind = min(open_kinds, key=lambda one: told[one])
        job, number = job_for(kind, number, fitted)
        rng = Random(-job.seed)
        own = chosen(job, rng)
        wanted = sorted((one for one in own if one.kind in open_kinds), key=lambda one: told[one.kind])[:AT_ONCE]
        for one in outcomes(job, wanted, truths):
            asked[one.family] += 1
            told[one.family] += one.told is not None
            yield one


def job_for(kind: str, number: int, fitted: bool | None) -> tuple[Job, int]:
    """The first job drawn from a seed on that the kind of change can be made to, and the seed behind its own. Every
    second one has a fault besides: advice is seldom asked of a job with one."""
    while True:
        rng = Random(number)
        wanted = rng.choice(FAULTS_OF[kind])
        drawn = draw(number, *wanted, beside=rng.randint(0, 1) if len(wanted) == 1 else 0)
        job = replace(drawn.job, name=f"{kind}_{number}".replace(" ", "_"))
        number += 1
        if fitted in (None, known(job)) and (kind == COMBINED or any(kind == one.kind for one in changes_of(job))):
            return job, number


def chosen(job: Job, rng: Random) -> list[Asked]:
    """A change of each kind that fits a job, and two of different kinds at once."""
    by_kind: dict[str, list[Asked]] = defaultdict(list)
    asked = list(changes_of(job))
    for one in [*asked, *_combined(asked, rng)]:
        by_kind[one.kind].append(one)
    return [rng.choice(own) for own in by_kind.values()]


def outcomes(job: Job, asked: Sequence[Asked], truths: Truths) -> Iterator[Outcome]:
    """Changes of a job: as predicted from its recording, and as simulated anew."""
    replayed = _replayer(truths.recording(job))
    for number, one in enumerate(asked):
        told = None if replayed is None else replayed.predict(list(one.changes))
        predicted, why = (None, told.why) if isinstance(told, Refused) else (told, "")
        after = truths.step(replace(job, seed=job.seed + ANEW + number, **one.fields))
        name = f"{job.name} {' + '.join(map(repr, one.changes))}"
        yield Outcome(name, one.kind, truths.step(job), after, predicted, why, one.of)


def _replayer(path: Path) -> Replayer | None:
    """A run's replay, without the analyses, a third of the time, of which it needs nothing."""
    with (
        patch.object(runner, "analyzers_of", lambda _: ()),
        patch.object(file_part, "analyzers_of", lambda _: ()),
    ):
        return runner.analyze(path, advice=False, replay=True).replayer


class Truths:
    """Simulated jobs in a folder, each simulated once: only what is told of them changes with gpuscope."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def recording(self, job: Job) -> Path:
        path = self.folder / job.name
        if not path.exists():
            case = Case(job, "")
            self._keep(job, case)
            case.write(self.folder)
        return path

    def step(self, job: Job) -> float:
        """ns of its step."""
        kept = self._kept(job)
        if not kept.exists():
            self._keep(job, Case(job, ""))
        return float(kept.read_text())

    def _keep(self, job: Job, case: Case) -> None:
        self._kept(job).write_text(str(step_ns(case.run, case.unlike)))

    def _kept(self, job: Job) -> Path:
        return self.folder / f"step_{sha256(repr(job).encode()).hexdigest()}"


def changes_of(job: Job) -> Iterator[Asked]:
    """The changes that fit a job, each with what of the job is other then."""
    shared = job.one_link or job.scatter_apart
    for changed, fields in [*_communication(job), *_sharded(job), *_pipeline(job), *_host(job), *_ranks(job)]:
        kind = type(changed).__name__
        yield Asked(ONE_LINK if shared and isinstance(changed, MEETING) else kind, (changed,), fields)


def _combined(asked: Sequence[Asked], rng: Random) -> list[Asked]:
    """Two changes of different kinds at once."""
    found: list[Asked] = []
    for _ in range(2 if len(asked) > 1 else 0):
        one, other = rng.sample(list(asked), 2)
        if one.kind != other.kind and not set(one.fields) & set(other.fields):
            both = tuple(made.in_order((*one.changes, *other.changes)))
            found.append(Asked(COMBINED, both, {**one.fields, **other.fields}, (one.kind, other.kind)))
    return found


_One = tuple[Change, dict[str, Any]]


def _communication(job: Job) -> Iterator[_One]:
    if job.parallel in ("ddp", "fsdp", "tensor"):
        yield made.WireBytes(0.5), {"wire": 0.5}
        yield made.WireBytes(0.25), {"wire": 0.25}
        yield made.LinkSpeed(bandwidth=2.0), {"rate": job.rate * 2}
        yield made.LinkSpeed(bandwidth=0.5), {"rate": job.rate / 2}
        yield made.LinkSpeed(latency=0.5), {"alpha_ns": job.alpha_ns // 2}
    if job.parallel == "ddp":
        for size in (5 * MIB, 25 * MIB, 100 * MIB):
            if size != job.bucket_bytes and job.overlap:
                yield made.BucketSize(size), {"bucket_bytes": size}
        if job.accumulate > 1 and not job.no_sync:
            yield made.AccumulatedGradients(job.accumulate), {"no_sync": True}
        if job.gradient_copies:
            yield made.GradientViews(), {"gradient_copies": False}
    if job.parallel in ("ddp", "tensor") and job.accumulate == 1 and not job.one_stream:
        yield made.Overlap(on=not job.overlap), {"overlap": not job.overlap}


def _sharded(job: Job) -> Iterator[_One]:
    if job.parallel != "fsdp":
        return
    if not job.limited and job.layers > job.prefetch + 1:
        yield made.Prefetch(job.prefetch + 1), {"prefetch": job.prefetch + 1}
    if not job.keep_parameters:
        yield made.KeepParameters(), {"keep_parameters": True}
    if job.layers > 2 and (joined := grouped({"layers": 2}, job)):
        yield made.GroupModules(2), joined


def _pipeline(job: Job) -> Iterator[_One]:
    if job.parallel != "pipeline":
        return
    for count in (4, 8):
        if count != job.micro_batches:
            yield made.MicroBatches(count), {"micro_batches": count}
    yield made.EarlyMessages(), {"ahead": True}
    name = "gpipe" if job.one_by_one else "1f1b"
    yield made.Schedule(name), {"one_by_one": not job.one_by_one}
    if job.stage_slow:
        mean = sum(job.stage_slow.get(rank, 1.0) for rank in range(job.ranks)) / job.ranks
        yield made.EvenStages(), {"stage_slow": dict.fromkeys(range(job.ranks), mean)}


def _host(job: Job) -> Iterator[_One]:
    if (job.items or job.device_syncs) and job.copy != "pageable" and not job.limited:
        yield made.RemovedSyncs(), {"blocking": False}
        if job.items and not job.device_syncs:
            yield made.RemovedSyncs(needed=True), {"read_late": True}
    if job.parallel in ("single", "ddp") and not job.graphs:
        yield made.CapturedGraphs(), {"graphs": True}
    if job.gc_ns and job.gc_ranks is None:
        yield made.NoCollector(), {"gc_ns": 0}
    if job.host_work_ns and job.host_work_ranks is None:
        yield made.NoHostWork(), {"host_work_ns": 0}
    if job.allocations or job.empty_cache:
        yield made.NoAllocatorStalls(), {"allocations": 0, "empty_cache": 0}
    if job.loader_ns and job.loader_ranks is None:
        if job.workers:
            yield made.MoreLoaderWorkers(2.0), {"workers": job.workers * 2}
        else:
            for workers in (1, 2, 4):
                yield made.LoaderWorkers(workers), {"workers": workers}
    if job.copy_bytes and job.copy in ("pageable", "pinned"):
        change = made.PinnedCopies() if job.copy == "pageable" else made.CopyStream()
        yield change, {"copy": "beside"}


def _ranks(job: Job) -> Iterator[_One]:
    late = set(job.device_slow).union(*(getattr(job, f"{name}_ranks") or () for name in ("gc", "host_work")))
    if len(late) == 1:  # with all that this rank alone does
        yield made.ReplacedRank(*late), {"device_slow": {}, **(late_host({"rank": min(late)}, job) or {})}
    if job.data_scale:
        mean = sum(job.data_scale.get(rank, 1.0) for rank in range(job.ranks)) / job.ranks
        yield made.SharedWork(*job.data_scale), {"data_scale": dict.fromkeys(range(job.ranks), mean)}
    if job.rotating != 1.0:
        mean = (job.ranks - 1 + job.rotating) / job.ranks
        yield made.SharedWork(), {"rotating": 1.0, "data_scale": dict.fromkeys(range(job.ranks), mean)}
