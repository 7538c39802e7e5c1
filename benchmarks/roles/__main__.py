"""`python -m benchmarks.roles --kind separate`: run the loop with each fault, analyse its log, make the changes that
gpuscope proposes, run it again, and compare what was predicted with what was measured."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import click

import gpuscope
from benchmarks.roles.loop import Job, run
from gpuscope.schema.provenance import RoleGain, RolesSection

BOUND = {
    "slow_rollout": "rollout",
    "long_tail": "rollout",
    "slow_reward": "reward",
    "slow_sync": "weight_sync",
    "slow_update": "update_actor",
    "few_rollout_gpus": "rollout",
}
"""The role that each fault makes the one to blame."""
STEPS = 20
_STEP = re.compile(r"timing_s/step:([\d.e-]+)")


@dataclass(frozen=True)
class Row:
    """A change predicted and measured, ns; or a fault and the role named."""

    kind: str
    fault: str
    what: str
    told: str
    right: bool | None
    error: float | None = None


@click.command()
@click.option("--kind", type=click.Choice(["colocated", "separate"]), multiple=True)
@click.option("--only", default="", help="Faults whose name contains this.")
def main(kind: tuple[str, ...], only: str) -> None:
    """Run the campaign and print a row per verdict and per change."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for one in kind or ("colocated", "separate"):
            for fault in (fault for fault in BOUND if only in fault):
                for row in _run(one, fault, Path(folder)):
                    rows.append(row)
                    click.echo(f"{row.kind} | {row.fault} | {row.what} | {row.told}")
    verdicts = [row.right for row in rows if row.error is None]
    errors = [abs(row.error) for row in rows if row.error is not None]
    held = sum(bool(row.right) for row in rows if row.error is not None)
    click.echo(f"bounding role right in {sum(map(bool, verdicts))} of {len(verdicts)}")
    if errors:
        click.echo(f"predicted step: median error {100 * median(errors):.1f} %, {held} of {len(errors)} in range")


def _run(kind: str, fault: str, folder: Path) -> Iterator[Row]:
    log, job = folder / "loop.log", Job(kind, steps=STEPS).with_fault(fault)
    run(job, log)
    section: RolesSection = gpuscope.analyze(log).report["roles"]
    named = section["bound_by"]
    yield Row(kind, fault, "bounding role", named, named == BOUND[fault])
    before = _step(log)
    for gain in section["gains"]:
        changed, told = _changed(job, fault, gain), gain["predicted"]
        if changed is None or told is None:
            continue
        run(changed, log)
        measured = _step(log)
        after, low, high = (told[key] / 1e9 for key in ("step_ns_after", "low_ns", "high_ns"))
        said = f"{before:.3f} → {after:.3f} s ({low:.3f} to {high:.3f}), measured {measured:.3f} s"
        yield Row(kind, fault, gain["change"], said, low <= measured <= high, after / measured - 1)


def _changed(job: Job, fault: str, gain: RoleGain) -> Job | None:
    """The loop with a change; None where it can't make it, or it says little of this fault."""
    change = gain["change"]
    if change == "overlap" or (change == "split" and gain["gpus_rollout"] == 1):
        return replace(job, kind="separate", overlap=True)
    if change == "reward_beside" and job.kind == "separate" and fault == "slow_reward":
        return replace(job, reward_beside=True)
    if change == "cap" and fault == "long_tail":
        return replace(job, limit=gain["tokens"] or job.limit)
    return None


def _step(log: Path) -> float:
    """The median step after the first two, s."""
    return median([float(found) for found in _STEP.findall(log.read_text(encoding="utf-8"))][2:])


if __name__ == "__main__":
    main()
