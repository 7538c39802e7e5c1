"""`python -m benchmarks.communication_bound`: advice and bounds on jobs bound by communication that no framework marks.

The jobs are tests/communication_jobs, which shares no code with what it judges, nor with tests/simulator.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from communication_jobs.engine import at_best, run, step_ns
from communication_jobs.jobs import MIB, Job, draw
from communication_jobs.recordings import write

from gpuscope.analyzers.run.runner import analyze
from gpuscope.report.view import main_finding

TRANSFERS = ("latency", "bandwidth", "exposed_communication")
OVERCLAIM, NOTICED = 1.5, 0.02
"""A promise is too large where it is more than so many times the true saving, and this share of the step besides."""
LOOSE = 0.02
"""Of the step by which a bound may lie above what was found to be possible."""


@dataclass
class Judged:
    """What is told of a job."""

    job: Job
    before: float
    main: str = ""
    """The finding that the first line names."""
    figure: str = ""
    """The change that the first lines name with a figure; empty without one."""
    bound: bool = False
    too_high: list[str] = field(default_factory=list)
    """Parts of the bound that the job can beat."""
    promises: list[tuple[str, float, float, bool]] = field(default_factory=list)
    """By suggestion the promised saving and the true one, as shares of the step, and whether the range holds."""

    @property
    def right(self) -> bool:
        return self.main in TRANSFERS

    @property
    def overclaims(self) -> list[str]:
        return [
            f"{code} {told:.0%}, true {true:.0%}"
            for code, told, true, _ in self.promises
            if told > OVERCLAIM * max(true, 0.0) + NOTICED
        ]


def carried_out(code: str, facts: Mapping[str, Any], job: Job) -> Job | None:
    """The job with a suggestion followed; None where it has no such change."""
    by_hand = job.structure == "behind"
    if code == "bucket_size":
        return replace(job, message_bytes=facts["bytes"])
    if code == "one_reduction" and by_hand:
        return replace(job, message_bytes=1 << 50)
    if code == "overlap" and by_hand:
        return replace(job, early=True, message_bytes=25 * MIB)
    if code == "wire_bytes" and job.element == 4:
        return replace(job, wire=0.5)
    if code == "fsdp_prefetch" and job.structure == "sharded":
        return replace(job, ahead=facts["modules"])
    return None


def judge(seed: int, folder: Path) -> Judged:
    """Analyse the job of a seed, and follow what is suggested."""
    job = draw(seed)
    ranks = run(job)
    report = analyze(write(folder, job, ranks)).report
    found = Judged(job, step_ns(job, ranks))
    main = main_finding.main_finding(report)
    found.main = "" if main is None else main["code"]
    first = main_finding.first_answer(report)
    found.figure = "" if first is None or first["finding"] not in (*TRANSFERS, "separate_reductions") else first["code"]
    bounds = {one["finding"]: one["bound"] for one in report["advice"].get("at_best", [])}
    found.bound = found.main in bounds
    if found.bound:
        truth = at_best(job)
        for part, told in bounds[found.main].get("parts", {}).items():
            if isinstance(told, int) and told > truth[part] + LOOSE * found.before:
                found.too_high.append(f"{part} {told / 1e6:.2f} ms, possible {truth[part] / 1e6:.2f} ms")
    for one in report["suggestions"]:
        changed = carried_out(one["code"], one.get("facts", {}), job)
        if changed is not None:
            told, after = one["predicted"], step_ns(changed)
            saved = 1 - told["step_ns_after"] / told["step_ns_before"]
            inside = told["low_ns"] <= after <= told["high_ns"]
            found.promises.append((one["code"], saved, 1 - after / found.before, inside))
    return found


def judge_all(seeds: Iterable[int]) -> list[Judged]:
    """The jobs of all seeds."""
    with TemporaryDirectory(prefix="gpuscope-communication-") as folder:
        return [judge(seed, Path(folder)) for seed in seeds]


def table(judged: Sequence[Judged]) -> Table:
    """By structure and cause: jobs, those told to be bound by transfers, figures, bounds, promises."""
    columns = Table(
        "structure",
        "cause",
        "jobs",
        "told as transfers",
        "with a figure",
        "or a bound",
        "bounds too high",
        "promises",
        "in range",
        "too large",
    )
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for one in judged:
        groups[one.job.structure, one.job.cause].append(one)
    for (structure, cause), own in [*sorted(groups.items()), (("all", ""), list(judged))]:
        promises = [promise for one in own for promise in one.promises]
        counts = (
            len(own),
            sum(one.right for one in own),
            sum(bool(one.figure) for one in own),
            sum(bool(one.figure) or one.bound for one in own),
            sum(bool(one.too_high) for one in own),
            len(promises),
            sum(inside for *_, inside in promises),
            sum(len(one.overclaims) for one in own),
        )
        columns.add_row(structure, cause, *map(str, counts))
    return columns


@click.command()
@click.option("--first", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=int, default=36, show_default=True, help="How many jobs are drawn.")
@click.option("--details", is_flag=True, help="List what is told wrongly.")
def main(first: int, jobs: int, details: bool) -> None:
    """Set what gpuscope says of drawn jobs beside what is so."""
    judged = judge_all(range(first, first + jobs))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(judged))
    for one in judged if details else []:
        wrong = [*one.too_high, *one.overclaims, *([] if one.right else [f"told as {one.main or 'nothing'}"])]
        wrong += [] if one.figure else ["no figure"]
        if wrong:
            console.print(f"{one.job.name} ({one.job.recorder}): {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
