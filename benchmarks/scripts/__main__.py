"""`python -m benchmarks.scripts`: scripts that ship in packages, unchanged, plain and under `gpuscope record` in turn.

python -m benchmarks.scripts --work /scratch/scripts               # all of them, three rounds
python -m benchmarks.scripts --work /scratch/scripts --only trl --rounds 1
python -m benchmarks.scripts --work /scratch/scripts --prepare     # the environments and the data alone
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click

from benchmarks.scripts.cases import CASES
from benchmarks.scripts.environments import Place, prepared, versions
from benchmarks.scripts.measured import Measured, measure, ratio

HEADER = (
    "script", "ranks", "steps found / true", "wall, s, plain → recorded (ratio)", "step, ms, plain → recorded (ratio)",
    "traces", "verdict", "right",
)  # fmt: skip


@click.command()
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of environments, data and runs.")
@click.option("--only", default="", help="Scripts whose name contains this.")
@click.option("--rounds", default=3, show_default=True, help="Plain and recorded runs of each, in turn.")
@click.option("--prepare", is_flag=True, help="Make environments and data, and stop.")
@click.option("--save", type=click.Path(path_type=Path), help="Write all runs as JSON.")
def main(work: Path, only: str, rounds: int, prepare: bool, save: Path | None) -> None:
    """Measure them and print the table of docs/recording.md."""
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    cases = [case for case in CASES if only in case.name]
    places = {case.environment: prepared(case.environment, work) for case in cases}
    if prepare:
        return
    before, begun = os.getloadavg()[0], time.monotonic()
    rows = []
    for case in cases:
        try:
            rows.append(measure(case, places[case.environment], rounds))
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            click.echo(f"{case.name}: {error}", err=True)
            continue
        click.echo(_row(rows[-1], places[case.environment]), err=True)
    if save is not None:
        save.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    click.echo("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|")
    for row in rows:
        click.echo(_row(row, places[row.case.environment]))
    click.echo(
        f"\n{len(rows)} of {len(cases)} scripts ran, {rounds} rounds in {time.monotonic() - begun:.0f} s; load of the "
        f"machine {before:.1f} (1 min, before), {os.getloadavg()[2]:.1f} (15 min, after) on {os.cpu_count()} cores"
    )


def _row(row: Measured, place: Place) -> str:
    """A line of the table."""
    case, last = row.case, row.recorded[-1]
    version = versions(place).get(case.distribution.replace("_", "-"), "")
    found = sorted({steps for run in row.recorded for steps in run.steps})
    told = Counter(run.cause for run in row.recorded)
    right = [run.cause in case.right for run in row.recorded]
    cells = [
        f"{case.name} ({case.distribution} {version})",
        str(last.ranks) if last.ranks == case.ranks else f"{last.ranks}, not {case.ranks}",
        f"{', '.join(map(str, found))} / {case.steps}",
        _pair([run.wall_s for run in row.plain], [run.wall_s for run in row.recorded], "{:.1f}"),
        _pair([run.step_ms for run in row.plain], [run.step_ms for run in row.recorded], "{:.1f}"),
        f"{last.trace_bytes / 1e6:.1f} MB",
        "; ".join(f"{name} ×{count}" if len(told) > 1 else name for name, count in told.most_common()),
        "not read"
        if not case.right
        else "yes"
        if all(right)
        else f"{sum(right)} of {len(right)}"
        if any(right)
        else "no",
    ]
    return "| " + " | ".join(cells) + " |"


def _pair(plain: list[float | None], recorded: list[float | None], form: str) -> str:
    """Medians of both, and the median of the rounds' own ratios."""
    known = [[value for value in values if value is not None] for values in (plain, recorded)]
    if not all(known):
        return "–"
    times = ratio(plain, recorded)
    return " → ".join(form.format(median(values)) for values in known) + (f" ({times:.2f})" if times else "")


if __name__ == "__main__":
    main()
