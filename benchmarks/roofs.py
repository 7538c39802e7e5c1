"""`python -m benchmarks.roofs`: operators below their roofs, against jobs of one kernel whose truth is by formula.

The jobs are those of tests/simulator/kernel_faults.py, which shares no code with what it judges.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from simulator.kernel_faults import Case, cases

from gpuscope.analyzers.base.lanes import COMPUTE, views
from gpuscope.analyzers.device_time import compute_work
from gpuscope.analyzers.device_time.compute_findings import below_roof_findings
from gpuscope.schema.call_tree_section import ComputeEntry
from gpuscope.schema.document import FindingEntry
from gpuscope.sources.opening import open_trace

RATE_ERROR = 0.05


@dataclass(frozen=True)
class Judged:
    """What was said of a job."""

    case: Case
    finding: FindingEntry | None

    @property
    def named(self) -> bool:
        """Whether the operator is told of, alone."""
        return self.finding is not None and self.finding["facts"]["operator"] == self.case.operator.name

    @property
    def silent(self) -> bool:
        return self.finding is None

    @property
    def rated(self) -> bool:
        """Whether its share of the roof is right."""
        if self.finding is None:
            return False
        return bool(abs(self.finding["facts"]["rate"] / self.case.rate - 1) <= RATE_ERROR)

    @property
    def explained(self) -> bool:
        """Whether the reason is right."""
        return self.finding is not None and self.finding["facts"]["reason"] == self.case.reason


def judge(case: Case, folder: Path) -> Judged:
    """Ask the analysis of one job."""
    trace = open_trace(case.write(folder))
    result = compute_work.ANALYZER.run(trace, views(trace))
    entries: list[ComputeEntry] = result.sections[COMPUTE]
    found = list(below_roof_findings(entries))
    return Judged(case, found[0] if found else None)


def judge_all(seeds: Iterable[int] = (0,)) -> list[Judged]:
    """Ask it of all jobs, with sizes and rates drawn by each seed."""
    with TemporaryDirectory(prefix="gpuscope-roofs-") as folder:
        return [judge(case, Path(folder)) for seed in seeds for case in cases(seed)]


@click.command()
@click.option("--seeds", type=int, default=1, show_default=True, help="How often sizes and rates are drawn.")
@click.option("--details", is_flag=True, help="List each job that is told wrongly.")
def main(seeds: int, details: bool) -> None:
    """Print how many operators are named, rated and explained, by reason, and how often healthy ones are left alone."""
    judged = judge_all(range(seeds))
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("reason", "jobs", "operator named", "rate within 5 %", "reason right")
    by_reason: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        if not one.case.healthy:
            by_reason[one.case.reason or "none"].append(one)
    faulty = [one for own in by_reason.values() for one in own]
    for reason, own in [*by_reason.items(), ("all", faulty)]:
        table.add_row(reason, str(len(own)), *(f"{sum(how)}" for how in _counts(own)))
    console.print(table)
    healthy = [one for one in judged if one.case.healthy]
    console.print(f"healthy: {sum(one.silent for one in healthy)} of {len(healthy)} left alone")
    if details:
        for one in judged:
            if not (one.silent if one.case.healthy else one.named and one.rated and one.explained):
                facts = one.finding["facts"] if one.finding else {}
                console.print(
                    f"{one.case.name}: rate {one.case.rate:.3f}, told {facts.get('rate')}, {facts.get('reason')!r}"
                )


def _counts(own: list[Judged]) -> tuple[list[bool], list[bool], list[bool]]:
    return [one.named for one in own], [one.rated for one in own], [one.explained for one in own]


if __name__ == "__main__":
    main()
