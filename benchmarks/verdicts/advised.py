"""Advice on drawn jobs: each suggestion beside what the very change does to the simulated job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from simulator.counterfactuals import ANEW
from simulator.job import Job
from simulator.judged import Case
from simulator.structures import Drawn, draw
from simulator.truth import step_ns

from benchmarks.verdicts.predicted import NOTICED, OVERCLAIM
from gpuscope.analyzers.run.runner import analyze
from gpuscope.report.view import main_finding
from gpuscope.schema.document import Report
from gpuscope.schema.provenance import Prediction

WORTH = 0.1
"""Of the step: a fix that saves more and that no suggestion names is missed."""
Facts = Mapping[str, Any]

NAMED_BY: Mapping[str, tuple[str, ...]] = {
    "slow link": ("wire_bytes", "power_sgd"),
    "tiny buckets": ("bucket_size",),
    "late reduction": ("overlap",),
    "synced accumulation": ("no_sync",),
    "gradient copies": ("gradient_as_bucket_view",),
    "search": ("static_graph",),
    "one stream": ("own_stream",),
    "no prefetch": ("fsdp_prefetch", "backward_prefetch", "fsdp_keep_parameters"),
    "few micro-batches": ("micro_batches",),
    "uneven stages": ("even_stages", "slow_rank"),
    "slow loader": ("loader_workers",),
    "loader on the thread": ("loader_workers",),
    "loader of one rank": ("late_host", "loader_workers"),
    "pageable copies": ("pinned_copies",),
    "large copies": ("copy_stream",),
    "values read": ("remove_syncs",),
    "waits": ("remove_syncs",),
    "launching": ("cuda_graphs",),
    "collector": ("manual_gc",),
    "host work": ("host_work_aside", "asynchronous_checkpoint"),
    "allocations": ("expandable_segments", "caching_allocator"),
    "emptied cache": ("no_empty_cache",),
    "slow devices": ("slow_rank",),
    "long batches": ("even_data",),
    "batches in turn": ("even_data",),
    "collector of one rank": ("late_host", "manual_gc"),
    "host work of one rank": ("late_host", "host_work_aside", "own_work"),
    "slow host": ("late_host",),
}
"""By fault, the suggestions that mend it."""


@dataclass(frozen=True)
class Figure:
    """A suggestion with its predicted step, and the simulated one; times in ns."""

    job: str
    code: str
    before: float
    told_before: int
    told_after: int
    low: int
    high: int
    after: float | None
    """None where the simulator can't make the change."""

    @property
    def inside(self) -> bool:
        return self.after is not None and self.low <= self.after <= self.high

    @property
    def error(self) -> float:
        assert self.after is not None
        return abs(self.told_after / self.after - 1)

    @property
    def overclaims(self) -> bool:
        """Promises more than half as much again as is true, and 2 % of the step."""
        assert self.after is not None
        promised = self.told_before - self.told_after
        return promised > OVERCLAIM * max(self.before - self.after, 0.0) + NOTICED * self.told_before


@dataclass
class Advised:
    """What the report of a drawn job advises."""

    name: str
    faults: tuple[str, ...]
    bound_by: str = ""
    figures: list[Figure] = field(default_factory=list)
    unpredicted: list[str] = field(default_factory=list)
    main: str | None = None
    """The main finding, where there is trouble to answer."""
    answer: str = ""
    """What answers it: `replayed` (alone or in a plan), `bound`, or `none`."""
    tried: bool = False
    """Whether its bound stands beside the figures of what was tried in vain."""
    missed: list[tuple[str, float]] = field(default_factory=list)
    """Fixes that no suggestion names, with the share of the step that they save."""


def step(job: Job) -> float:
    """«The step» of a job, ns."""
    case = Case(job, "")
    return step_ns(case.run, case.unlike)


def _anew(job: Job) -> float:
    """The changed job is another run: its kernels and its host vary by chance anew."""
    return step(replace(job, seed=job.seed + ANEW))


def of_drawn(numbers: Sequence[int], folder: Path) -> list[Advised]:
    """`advised` of the jobs that the numbers draw, as many at once as there are cores."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(partial(_of_number, folder=folder), numbers))


def _of_number(number: int, folder: Path) -> Advised:
    return advised(draw(number), folder)


def advised(drawn: Drawn, folder: Path) -> Advised:
    """Analyse a drawn job, and make each change that is suggested."""
    case = Case(drawn.job, "")
    report = analyze(case.write(folder)).report
    before = step_ns(case.run, case.unlike)
    found = Advised(drawn.job.name, tuple(drawn.fixes), report["verdict"]["bound_by"] or "")
    for one in report["suggestions"]:
        changed = counterpart(one["code"], one.get("facts", {}), drawn.job)
        found.figures.append(_figure(one["code"], before, one["predicted"], changed, drawn.job.name))
    if (plan := report["advice"].get("plan")) is not None:
        changed: Job | None = drawn.job
        for one in plan["steps"]:
            changed = changed and counterpart(one["code"], one.get("facts", {}), changed)
        found.figures.append(_figure("plan", before, plan["predicted"], changed, drawn.job.name))
    found.unpredicted = [one["code"] for one in report["advice"]["unpredicted"]]
    _main(report, found)
    named = {one.code for one in found.figures} | set(found.unpredicted)
    for fault in drawn.fixes:
        if not named.intersection(NAMED_BY[fault]):
            saved = 1 - _anew(drawn.fixed(fault)) / _anew(drawn.job)  # by the fix alone, not by chance as well
            found.missed += [(fault, saved)] if saved > WORTH else []
    return found


def _figure(code: str, before: float, told: Prediction, changed: Job | None, name: str) -> Figure:
    after = None if changed is None else _anew(changed)
    return Figure(
        name, code, before, told["step_ns_before"], told["step_ns_after"], told["low_ns"], told["high_ns"], after
    )


def _main(report: Report, found: Advised) -> None:
    """Whether what is wrong above all has advice with a figure."""
    main = main_finding.main_finding(report)
    if main is None or report["verdict"]["abstained"] or report["verdict"]["bound_by"] == "compute":
        return
    found.main = main["code"]
    advice = report["advice"]
    with_figures = [*report["suggestions"], *advice.get("plan", {"steps": []})["steps"]]
    vain = [one for one in advice["nothing_gains"] if one["finding"] == main["code"]]
    found.tried = bool(vain)
    if any(main_finding.answers(report, one) for one in with_figures):
        found.answer = "replayed"
    elif any("bound" in one for one in (*vain, *filter(partial(main_finding.answers, report), advice["unpredicted"]))):
        found.answer = "bound"
    else:
        found.answer = "none"


# What a suggestion does to the job.

Made = dict[str, Any] | None


def counterpart(code: str, facts: Facts, job: Job) -> Job | None:
    """The job with a suggestion carried out; None where the simulator can't."""
    make = _MADE.get(code)
    changed = make(facts, job) if make is not None else None
    return None if changed is None else replace(job, **changed)


def _bucket(facts: Facts, _: Job) -> Made:
    first = facts["first_bytes"]
    return {"bucket_bytes": facts["bytes"], "first_bucket": first if first != facts["bytes"] else 0}


def grouped(facts: Facts, job: Job) -> Made:
    """Modules gathered together. None where it would change how often a step allocates or reads, which hangs on its
    layers in the simulator alone."""
    count = facts["layers"]
    layers = job.layers // count
    reads = [own // max(1, own // job.items) if job.items else 0 for own in (job.layers, layers)]
    if job.layers % count or job.first_bytes or job.allocations > layers or reads[0] != reads[1]:
        return None
    return {
        "layers": layers,
        "gemms": job.gemms * count,
        "smalls": job.smalls * count,
        "layer_bytes": job.layer_bytes * count,
    }


def _ranks(facts: Facts) -> set[int]:
    return {facts["rank"], *facts.get("ranks", ())}


def _device(facts: Facts, job: Job) -> Made:
    slow = {rank: factor for rank, factor in job.device_slow.items() if rank not in _ranks(facts)}
    if job.parallel == "pipeline":
        return None
    return {"device_slow": slow} if slow != job.device_slow else None


def late_host(facts: Facts, job: Job) -> Made:
    """The rank's host as the others' are: without all that it alone does."""
    late = _ranks(facts)
    changed: dict[str, Any] = {}
    for name, cost in (("gc_ranks", "gc_ns"), ("host_work_ranks", "host_work_ns"), ("loader_ranks", "loader_ns")):
        own = getattr(job, name)
        if own is not None and getattr(job, cost) and late & set(own):
            changed[name] = tuple(rank for rank in own if rank not in late)
    if late & set(job.host_slow):
        changed["host_slow"] = {rank: factor for rank, factor in job.host_slow.items() if rank not in late}
    return changed or None


def _even_data(facts: Facts, job: Job) -> Made:
    if "rank" not in facts:
        if job.rotating == 1.0:
            return None
        mean = (job.ranks - 1 + job.rotating) / job.ranks
        return {"rotating": 1.0, "data_scale": {r: mean * job.data_scale.get(r, 1.0) for r in range(job.ranks)}}
    if not _ranks(facts) & set(job.data_scale):
        return None
    mean = sum(job.data_scale.get(rank, 1.0) for rank in range(job.ranks)) / job.ranks
    return {"data_scale": dict.fromkeys(range(job.ranks), mean)}


def _even_stages(_: Facts, job: Job) -> Made:
    mean = sum(job.stage_slow.get(rank, 1.0) for rank in range(job.ranks)) / job.ranks
    return {"stage_slow": dict.fromkeys(range(job.ranks), mean)}


def _schedule(facts: Facts, _: Job) -> Made:
    known = {"Schedule1F1B": True, "ScheduleGPipe": False}
    return {"one_by_one": known[facts["schedule"]]} if facts["schedule"] in known else None


def _workers(facts: Facts, job: Job) -> Made:
    more = facts["workers"] if "workers" in facts else round(job.workers * facts["times"])
    return {"workers": more}


def _without_waits(facts: Facts, _: Job) -> Made:
    """Values are read behind the step's last launch; calls that only wait are gone."""
    changed: dict[str, Any] = {}
    for place in facts["places"]:
        told = " ".join(str(value) for value in place.values())
        if "DtoH" in told or "item" in told:
            changed["read_late"] = True
        elif "HtoD" in told:
            changed["copy"] = "beside"
        else:
            changed["device_syncs"] = 0
    return changed or None


def _graphs(facts: Facts, job: Job) -> Made:
    free = _without_waits(facts, job) if "places" in facts else {}
    return {"graphs": True, **(free or {})}


def _always(**changed: Any) -> Callable[[Facts, Job], Made]:
    return lambda _facts, _job: dict(changed)


_MADE: Mapping[str, Callable[[Facts, Job], Made]] = {
    "bucket_size": _bucket,
    "wire_bytes": _always(wire=0.5),
    "no_sync": _always(no_sync=True),
    "gradient_as_bucket_view": _always(gradient_copies=False),
    "overlap": _always(overlap=True),
    "fsdp_prefetch": lambda facts, _: {"prefetch": facts["modules"]},
    "backward_prefetch": _always(prefetch=1),
    "fsdp_keep_parameters": _always(keep_parameters=True),
    "fsdp_group_modules": grouped,
    "limit_all_gathers": _always(limited=False),
    "slow_rank": _device,
    "late_host": late_host,
    "even_data": _even_data,
    "micro_batches": lambda facts, _: {"micro_batches": facts["count"]},
    "overlapped_messages": _always(ahead=True),
    "pipeline_schedule": _schedule,
    "even_stages": _even_stages,
    "loader_workers": _workers,
    "manual_gc": _always(gc_ns=0),
    "host_work_aside": _always(host_work_ns=0),
    "remove_syncs": _without_waits,
    "cuda_graphs": _graphs,
    "pinned_copies": _always(copy="beside"),
    "copy_stream": _always(copy="beside"),
    "expandable_segments": _always(allocations=0),
    "caching_allocator": _always(allocations=0, empty_cache=0),
    "no_empty_cache": _always(empty_cache=0),
}


# What is printed.


def advice_table(found: Sequence[Advised]) -> Table:
    """One row per measure."""
    figures = [one for job in found for one in job.figures]
    made = [one for one in figures if one.after is not None]
    troubled = [job for job in found if job.main is not None]
    worth = sum(len(job.faults) for job in found)
    table = Table("measure", "is", "of", "share")

    def row(what: str, part: int, whole: int) -> None:
        table.add_row(what, str(part), str(whole), f"{part / whole:.1%}" if whole else "–")

    row("main cause: advice with a replayed figure", sum(job.answer == "replayed" for job in troubled), len(troubled))
    row("main cause: a figure or a bound", sum(job.answer in ("replayed", "bound") for job in troubled), len(troubled))
    row(
        "… of these bounds beside figures of what gains nothing",
        sum(job.answer == "bound" and job.tried for job in troubled),
        len(troubled),
    )
    row("figures whose change the simulator makes", len(made), len(figures))
    row("truth within the range", sum(one.inside for one in made), len(made))
    row("promises above 1.5 times the truth and 2 % of the step", sum(one.overclaims for one in made), len(made))
    row("fixes worth over 10 % that nothing names", sum(len(job.missed) for job in found), worth)
    error = median(one.error for one in made) if made else 0.0
    table.add_row("median error of the predicted step", f"{error:.2%}", str(len(made)), "")
    return table


def by_code(found: Iterable[Advised]) -> Table:
    """Per suggestion: how often it has a figure, how often its range holds."""
    table = Table("suggestion", "figures", "made", "median error", "range holds", "overclaims", "without a figure")
    jobs = list(found)
    without = Counter(code for job in jobs for code in job.unpredicted)
    figures = [one for job in jobs for one in job.figures]
    for code in sorted({one.code for one in figures} | set(without)):
        own = [one for one in figures if one.code == code]
        made = [one for one in own if one.after is not None]
        error = f"{median(one.error for one in made):.2%}" if made else ""
        table.add_row(
            code,
            str(len(own)),
            str(len(made)),
            error,
            str(sum(one.inside for one in made)),
            str(sum(one.overclaims for one in made)),
            str(without[code]),
        )
    return table


def failures(found: Iterable[Advised]) -> Table:
    """What went wrong, job by job."""
    table = Table("job", "faults", "what", "told before → after (low–high)", "is before → after")
    for job in found:
        faults = ", ".join(job.faults)
        if job.answer == "none":
            table.add_row(job.name, faults, f"neither figure nor bound for {job.main}", "", "")
        for fault, saved in job.missed:
            table.add_row(job.name, faults, f"missed: {fault}, {saved:.0%}", "", "")
        for one in job.figures:
            if one.after is None or (one.inside and not one.overclaims):
                continue
            what = "OVERCLAIM" if one.overclaims else "outside"
            told = f"{_ms(one.told_before)} → {_ms(one.told_after)} ({_ms(one.low)}–{_ms(one.high)})"
            table.add_row(job.name, faults, f"{what}: {one.code}", told, f"{_ms(one.before)} → {_ms(one.after)}")
    return table


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"
