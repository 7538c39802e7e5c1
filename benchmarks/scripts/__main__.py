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
from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import median

import click

from benchmarks.scripts.cases import CASES
from benchmarks.scripts.environments import Place, prepared, versions
from benchmarks.scripts.measured import Measured, measure, ratio

HEADER = (
    "script", "ranks", "steps found / true", "wall, s, plain → recorded (ratio)", "step, ms, plain → recorded (ratio)",
    "traces", "verdict", "read by hand", "right",
)  # fmt: skip

OUTCOME = Path(__file__).parent / "outcome.toml"
"""From which docs/trust.md has its table."""


@click.command()
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of environments, data and runs.")
@click.option("--only", default="", help="Scripts whose name contains this.")
@click.option("--rounds", default=3, show_default=True, help="Plain and recorded runs of each, in turn.")
@click.option("--prepare", is_flag=True, help="Make environments and data, and stop.")
@click.option("--publish", is_flag=True, help="Keep the table in outcome.toml, for docs/trust.md.")
@click.option("--save", type=click.Path(path_type=Path), help="Write all runs as JSON.")
def main(work: Path, only: str, rounds: int, prepare: bool, publish: bool, save: Path | None) -> None:
    """Measure them and print the table of docs/trust.md."""
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
        click.echo(_line(_cells(rows[-1], places[case.environment])), err=True)
    if save is not None:
        save.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    cells = [_cells(row, places[row.case.environment]) for row in rows]
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|", *map(_line, cells)]
    seconds, after = time.monotonic() - begun, os.getloadavg()[2]
    torch = next((versions(place)["torch"] for place in places.values()), "")
    told = (
        f"{date.today()}, torch {torch}, {os.cpu_count()} cores, {rounds} rounds; "
        f"load of the machine {before:.1f} before (1 min) and {after:.1f} after (15 min)."
    )
    text = "\n".join([*lines, "", told])
    click.echo(f"{text}\n{len(rows)} of {len(cases)} scripts ran, in {seconds:.0f} s")
    if publish:
        texts = [json.dumps(line, ensure_ascii=False) for line in (HEADER, *cells)]  # as TOML writes arrays of strings
        kept = [f"# Written by `python -m benchmarks.scripts --work FOLDER --publish`: {told}",
                "# docs/generate.py makes a table of docs/trust.md from it.",
                f"columns = {texts[0]}", "rows = [", *(f"  {text}," for text in texts[1:]), "]"]  # fmt: skip
        OUTCOME.write_text("\n".join(kept) + "\n")


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(row: Measured, place: Place) -> list[str]:
    """A line of the table."""
    case, last = row.case, row.recorded[-1]
    version = versions(place).get(case.distribution.replace("_", "-"), "")
    found = sorted({steps for run in row.recorded for steps in run.steps})
    return [
        f"{case.name} ({case.distribution} {version})",
        str(last.ranks) if last.ranks == case.ranks else f"{last.ranks}, not {case.ranks}",
        f"{', '.join(map(str, found))} / {case.steps}",
        _pair([run.wall_s for run in row.plain], [run.wall_s for run in row.recorded], "{:.1f}"),
        _pair([run.step_ms for run in row.plain], [run.step_ms for run in row.recorded], "{:.1f}"),
        f"{last.trace_bytes / 1e6:.1f} MB",
        _each(run.cause for run in row.recorded),
        row.recorded[-1].reading,
        _each(run.right for run in row.recorded),
    ]


def _each(words: Iterable[str]) -> str:
    """Each word once, with how often it came if there are several."""
    counts = Counter(words)
    return ", ".join(
        f"{word} ({count} of {counts.total()})" if len(counts) > 1 else word for word, count in counts.items()
    )


def _pair(plain: list[float | None], recorded: list[float | None], form: str) -> str:
    """Medians of both, and the median of the rounds' own ratios."""
    known = [[value for value in values if value is not None] for values in (plain, recorded)]
    if not all(known):
        return "–"
    times = ratio(plain, recorded)
    return " → ".join(form.format(median(values)) for values in known) + (f" ({times:.2f})" if times else "")


if __name__ == "__main__":
    main()
