"""`python -m benchmarks.roles.drawn --first 1000 --jobs 200`: jobs drawn by tests/simulator/rl_jobs.py, their logs
analysed, the role that bounds each and every predicted step held against the simulator's own."""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import click

import gpuscope
from gpuscope.schema.provenance import RoleGain, RolesSection

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from simulator import rl_jobs

FRESH = 1_000_000
"""What is added to a seed for the run with the change: other lengths, other noise."""
STEPS = 60
TIE = 0.05
"""Roles whose halving saves within this part of the step of each other bound it alike."""


@dataclass(frozen=True)
class Outcome:
    """One change: predicted and true step, s."""

    change: str
    predicted: float | None
    low: float
    high: float
    true: float


def judged(seed: int, folder: Path) -> tuple[rl_jobs.Job, bool, list[Outcome]]:
    """A job, whether its bounding role is right, and its changes."""
    job, log = rl_jobs.drawn(seed), folder / "job.log"
    log.write_text(rl_jobs.logged(job), encoding="utf-8")
    section: RolesSection = gpuscope.analyze(log).report["roles"]
    truth = rl_jobs.bounding(job)
    most = max(truth.values())
    right = most - truth.get(section["bound_by"], 0.0) <= TIE * rl_jobs.step_s(job)
    return job, right, list(_outcomes(job, section))


def _outcomes(job: rl_jobs.Job, section: RolesSection) -> Iterator[Outcome]:
    for gain in section["gains"]:
        if gain["change"] not in ("asynchronous", "weight_sync"):
            true = rl_jobs.step_s(_changed(job, gain), seed=job.seed + FRESH)
            told = gain["predicted"]
            if told is None:
                yield Outcome(gain["change"], None, (gain["at_least_ns"] or 0) / 1e9, float("inf"), true)
            else:
                after, low, high = (told[key] / 1e9 for key in ("step_ns_after", "low_ns", "high_ns"))
                yield Outcome(gain["change"], after, low, high, true)


def _changed(job: rl_jobs.Job, gain: RoleGain) -> rl_jobs.Job:
    job = replace(job, steps=STEPS)
    if gain["change"] == "reward_beside":
        return replace(job, reward_beside=True)
    if gain["change"] == "cap":
        return replace(job, limit=min(job.limit, gain["tokens"] or job.limit))
    if gain["change"] == "overlap":
        return replace(job, beside=True)
    own = replace(job, rollout_gpus=gain["gpus_rollout"] or 1, trainer_gpus=gain["gpus_trainer"] or 1)
    return replace(own, beside=job.beside or gain["change"] == "split")


@click.command()
@click.option("--first", default=1000, show_default=True, help="The first seed.")
@click.option("--jobs", default=200, show_default=True, help="Jobs to draw.")
def main(first: int, jobs: int) -> None:
    """Print what was right, by fault and by change."""
    by_fault: dict[str, list[bool]] = defaultdict(list)
    by_change: dict[str, list[Outcome]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + jobs):
            job, right, outcomes = judged(seed, Path(folder))
            by_fault[f"{job.fault}, {job.kind}"].append(right)
            for one in outcomes:
                by_change[one.change].append(one)
    for name, found in sorted(by_fault.items()):
        click.echo(f"{name}: bounding role right in {sum(found)} of {len(found)}")
    for change, some in (*sorted(by_change.items()), ("all", [one for own in by_change.values() for one in own])):
        errors = [abs(one.predicted / one.true - 1) for one in some if one.predicted is not None]
        held = sum(one.low <= one.true <= one.high for one in some if one.predicted is not None)
        bounds = [one for one in some if one.predicted is None]
        kept = sum(one.true >= one.low * 0.98 for one in bounds)
        middle = f"median error {100 * median(errors):.1f} %" if errors else "no figure"
        click.echo(f"{change}: {middle}, {held} of {len(errors)} in range, {kept} of {len(bounds)} bounds kept")
    everything = [right for found in by_fault.values() for right in found]
    click.echo(f"bounding role right in {sum(everything)} of {len(everything)}")


if __name__ == "__main__":
    main()
