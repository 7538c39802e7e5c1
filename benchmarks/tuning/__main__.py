"""`python -m benchmarks.tuning`: what `gpuscope tune` removes from plain scripts, beside what can be removed.

Each script runs as it stands and with its slowness fixed, in turns; then `gpuscope tune` gets it as it stands. The
scripts know nothing of gpuscope. Run it on a quiet machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.tuning.cases import CASES, Case
from benchmarks.tuning.judged import COLUMNS, Row, Truth, totals

LAST = re.compile(r"loss (\S+), (\S+) ms per step")
STEPS = "24"
"""Of a run of the truth, and those that tuning times in each of its own."""
PROGRAM = [sys.executable, "-c", "from gpuscope.cli import main; main()"]


def run(case: Case, *, fixed: bool) -> tuple[str, float]:
    """The last loss and the median step, ms, as the script prints them."""
    done = subprocess.run(
        [*case.command(fixed=fixed), "--steps", STEPS], env=environment(case), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    found = LAST.search(done.stdout)
    if done.returncode or found is None:
        raise SystemExit(f"{case.name}: {done.stderr[-2000:]}")
    return found[1], float(found[2])


def environment(case: Case) -> dict[str, str]:
    """One thread per process, unless the case says otherwise: two processes share few cores here."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **case.environment}


def truth(case: Case, rounds: int) -> Truth:
    """Both variants in turns."""
    losses: set[str] = set()
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for fixed, own in times.items():
            loss, taken = run(case, fixed=fixed)
            own.append(taken)
            losses.add(loss)
    return Truth(times[False], times[True], frozenset(losses))


def tuned(case: Case, budget: str, folder: Path) -> tuple[dict[str, object] | None, str]:
    """The document of `gpuscope tune`, or why there is none."""
    allowed = [word for group in case.allow for word in ("--allow", group)]
    command = [
        *PROGRAM,
        "tune",
        "--json",
        "--budget",
        budget,
        "--steps",
        STEPS,
        "-o",
        str(folder / case.name),
        *allowed,
        "--",
    ]
    done = subprocess.run(
        [*command, *case.command()], env=environment(case), capture_output=True, text=True, check=False, cwd=folder
    )
    (folder / f"{case.name}.log").write_text(done.stderr)
    try:
        return json.loads(done.stdout), ""
    except ValueError:
        return None, f"failed: {done.stderr.strip()[-200:]}"


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join(lines + [f"| {' | '.join(row.cells())} |" for row in rows])


def saved(rows: Sequence[Row], budget: str) -> str:
    """The rows as the table of docs/tuning.md is made from."""
    lines = [f"  {json.dumps(row.cells(), ensure_ascii=False)}," for row in rows]
    head = f"# python -m benchmarks.tuning --budget {budget} --save FILE\n# {totals(rows)}"
    return "\n".join([head, f"columns = {json.dumps(COLUMNS)}", "rows = [", *lines, "]", ""])


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="A script; may be repeated.  [default: all]")
@click.option("--budget", default="12", show_default=True, help="What gpuscope tune may take: runs, or a time.")
@click.option("--rounds", default=3, show_default=True, help="Turns of each variant of a script.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder of the recordings.")
@click.option("--save", type=click.Path(path_type=Path), help="A TOML file for docs/tuning.md.")
def main(only: tuple[str, ...], budget: str, rounds: int, work: Path | None, save: Path | None) -> None:
    """Measure, tune, compare."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            if only and case.name not in only:
                continue
            row = Row(case, truth(case, rounds), *tuned(case, budget, folder))
            rows.append(row)
            click.echo(" | ".join(row.cells()), err=True)
            if save:  # also where a later script ends badly
                save.write_text(saved(rows, budget), encoding="utf-8")
    load = f"load of the machine {os.getloadavg()[2]:.1f} (15 min) on {os.cpu_count()} cores"
    print(f"{table(rows)}\n\n{totals(rows)}\n\n{load}")


if __name__ == "__main__":
    main()
