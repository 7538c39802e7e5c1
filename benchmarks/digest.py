"""What a digest costs, and whether it leads to the verdict of the full trace.

    python -m benchmarks.digest switched --work /tmp/switched # five scripts, turned on and off within each
    python -m benchmarks.digest cost --work /tmp/cost         # five scripts with and without, in turn
    python -m benchmarks.digest faults --work /tmp/faults     # the faults of benchmarks.faults, traced and digested

Both go on where they were stopped: what is in the folder is not run again. `--seconds` ends the running after so long.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import gpuscope
from benchmarks.faults.cases import FAULTS, HEALTHY, Case
from benchmarks.faults.judged import judge
from gpuscope.analyzers.collectives.recurrence import student
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions

SCRIPT = Path(__file__).with_name("digest_script.py")
KINDS = ("DDP", "FSDP2", "tensor parallel", "ZeRO-1", "convolutions, DDP")
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
GPUSCOPE = [sys.executable, "-c", "from gpuscope.cli import main; main()"]


@click.group()
def main() -> None:
    """Cost and verdicts of digests."""


@main.command()
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--rounds", default=6, show_default=True)
@click.option("--length", default=8, show_default=True, help="Seconds that a script trains.")
@click.option("--seconds", default=0, help="Begin no run after so many seconds.")
def cost(work: Path, rounds: int, length: int, seconds: int) -> None:
    """Five scripts with and without `record --always`, in turn."""
    work.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds if seconds else float("inf")
    for turn in range(rounds):
        for kind in KINDS:
            for way in ("plain", "always") if turn % 2 else ("always", "plain"):
                out = work / f"{kind}-{turn}-{way}.json"
                if not out.exists() and time.monotonic() < until:
                    _train(kind, length, out, work / f"{kind}-{turn}" if way == "always" else None)
    click.echo("| script | pairs | step, ms | cost, wall | cost, CPU | bytes per rank and step, median and largest |")
    click.echo("|---|---|---|---|---|---|")
    for kind in KINDS:
        _cost_row(kind, work)


def _train(kind: str, length: int, out: Path, folder: Path | None) -> None:
    command = [*LAUNCH, "2", str(SCRIPT), kind, str(length), str(out)]
    if folder is not None:
        command = [*GPUSCOPE, "record", "--always", "-o", str(folder), "--", *command]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        click.echo(f"{kind}: {done.stderr[-600:]}", err=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _cost_row(kind: str, work: Path) -> None:
    pairs = [
        [json.loads((work / f"{kind}-{turn}-{way}.json").read_text())[0] for way in ("plain", "always")]
        for turn in range(100)
        if all((work / f"{kind}-{turn}-{way}.json").exists() for way in ("plain", "always"))
    ]
    if not pairs:
        return
    told = [_difference([[step[which] for step in run] for run in pair] for pair in pairs) for which in (0, 1)]
    step = statistics.median(statistics.median(one[0] for one in plain) for plain, _ in pairs) / 1e6
    click.echo(f"| {kind} | {len(pairs)} | {step:.1f} | {told[0]} | {told[1]} | {_bytes(work, f'{kind}-*')} |")


def _bytes(work: Path, runs: str) -> str:
    paths = work.glob(f"{runs}/digest/*.digest")
    lines = [len(one) for path in paths for one in path.read_bytes().splitlines() if one.startswith(b'{"step"')]
    return f"{statistics.median(lines):.0f}, {max(lines)}" if lines else "–"


def _difference(pairs: Any) -> str:
    """The median step with beside that without: mean over the pairs, with its range (nine times in ten)."""
    ratios = [100 * (statistics.median(always) / statistics.median(plain) - 1) for plain, always in pairs]
    return _mean_and_range(ratios)


def _mean_and_range(percents: Sequence[float]) -> str:
    """The mean of the middle half, and the range in which it lies nine times in ten: by the spread of all with what was
    cut moved to the cut (Tukey and McLaughlin)."""
    ordered, cut = sorted(percents), len(percents) // 4
    middle = ordered[cut : len(ordered) - cut]
    mean = statistics.fmean(middle)
    if len(middle) < 2:
        return f"{mean:+.2f} %"
    moved = [min(max(one, middle[0]), middle[-1]) for one in ordered]
    error = standard_error(moved) * len(ordered) / len(middle)
    return f"{mean:+.2f} ± {student(0.05, len(middle) - 1) * error:.2f} %"


def standard_error(values: Sequence[float]) -> float:
    """Of a mean."""
    return statistics.stdev(values) / len(values) ** 0.5


@main.command()
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--only", default="", help="Scripts whose name contains this.")
@click.option("--length", default=120, show_default=True, help="Seconds that a script trains.")
@click.option("--seconds", default=0, help="Begin no run after so many seconds.")
def switched(work: Path, only: str, length: int, seconds: int) -> None:
    """Five scripts whose digest is turned on and off every other step, steps of an eighth of the rows: the difference
    between neighbours, and the CPU time of gpuscope's own calls, in percent of a whole step."""
    work.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds if seconds else float("inf")
    click.echo("| script | steps | whole step, ms | wall, % | CPU, % | own calls, % | bytes, median and most |")
    click.echo("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        if only not in kind:
            continue
        out = work / f"{kind}-switched.json"
        if not out.exists() and time.monotonic() < until:
            command = [*LAUNCH, "2", str(SCRIPT), kind, str(length), str(out), str(work / f"{kind}-run")]
            done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
            if done.returncode:
                click.echo(f"{kind}: {done.stderr[-600:]}", err=True)
        if out.exists():
            click.echo(f"| {kind} | {_switched_row(json.loads(out.read_text()))} | {_bytes(work, f'{kind}-run')} |")


def _switched_row(ranks: Sequence[Any]) -> str:
    """By the mean over both ranks: what slows one holds up the other."""
    whole = next(place for place, one in enumerate(ranks[0]) if one[2]) // 4 * 4
    step = statistics.median(one[0] for rank in ranks for one in rank[:whole])
    steps = [[statistics.fmean(of) for of in zip(*both, strict=True)] for both in zip(*ranks, strict=True)][whole:]
    fours = [steps[at : at + 4] for at in range(0, len(steps) - 3, 4)]
    told = [
        _mean_and_range([50 * sum(one[which] * (1 if one[2] else -1) for one in four) / step for four in fours])
        for which in (0, 1)
    ]
    own = _mean_and_range([100 * one[3] / step for one in steps if one[2]])
    return " | ".join([str(len(steps)), f"{step / 1e6:.0f}", *told, own])


@main.command()
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--only", default="", help="Cases whose name contains this.")
@click.option("--healthy", is_flag=True, help="The healthy runs instead of the faults.")
@click.option("--rounds", default=1, show_default=True)
@click.option("--seconds", default=0, help="Begin no run after so many seconds, and judge nothing.")
def faults(work: Path, only: str, healthy: bool, rounds: int, seconds: int) -> None:
    """Each fault once traced and once digested: are cause and ranks the same?"""
    until = time.monotonic() + seconds if seconds else float("inf")
    chosen = [(case, turn) for turn in range(rounds) for case in (HEALTHY if healthy else FAULTS) if only in case.name]
    for case, turn in chosen:
        for way in ("trace", "digest"):
            out = _folder(work, case, turn, way)
            if not (out / "manifest.json").exists() and time.monotonic() < until:
                _run(case, out, way)
    if seconds:
        return
    same = total = 0
    click.echo("| run | truth | full trace | digest | the same |")
    click.echo("|---|---|---|---|---|")
    for case, turn in chosen:
        folders = [_folder(work, case, turn, way) for way in ("trace", "digest")]
        if not all((folder / "manifest.json").exists() for folder in folders):
            continue
        traced, digested = (_judged(case, folder) for folder in folders)
        alike = traced["cause"] == digested["cause"] and traced["named"] == digested["named"]
        total, same = total + 1, same + alike
        told = [
            f"{one['verdict']}, ranks {one['named'] or '–'}" + (f" ({one['wrong']})" if one["wrong"] else "")
            for one in (traced, digested)
        ]
        click.echo(f"| {case.name} | {traced['truth']} | {' | '.join(told)} | {'yes' if alike else 'no'} |")
    click.echo(f"\n{same} of {total} the same")


def _folder(work: Path, case: Case, turn: int, way: str) -> Path:
    return work / f"{case.name.replace(' ', '_').replace(',', '')}-{turn}-{way}"


def _run(case: Case, out: Path, way: str) -> None:
    command = [*GPUSCOPE, "train", *case.words, "--out", str(out)]
    options = RecordOptions(always=True).to_environment() if way == "digest" else {}
    done = subprocess.run(command, env=_environment() | options, capture_output=True, text=True, check=False)
    if done.returncode:
        click.echo(f"{case.name}, {way}: {done.stderr[-400:]}", err=True)


def _judged(case: Case, folder: Path) -> Mapping[str, Any]:
    report = gpuscope.analyze(folder).report
    row = judge(case, folder, report)
    verdict = report["verdict"]
    wrong = [word for word in row.wrong if not word.startswith("no finding")]
    return {
        "truth": row.truth,
        "verdict": row.verdict,
        "named": row.named,
        "wrong": "; ".join(wrong),
        "cause": (verdict["bound_by"], verdict["cause"]),
    }


if __name__ == "__main__":
    main()
