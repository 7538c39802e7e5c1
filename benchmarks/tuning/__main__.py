"""`python -m benchmarks.tuning`: what `gpuscope tune` removes from plain scripts, beside what can be removed.

`gpuscope tune` gets each script as it stands, once per budget; then the script runs as it stands, with its slowness
fixed, and with what each session kept, in turns. The scripts know nothing of gpuscope. Run it on a quiet machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.outcome import outcome
from benchmarks.tuning.cases import CASES, Case
from benchmarks.tuning.judged import COLUMNS, Row, Truth, totals
from gpuscope.instrumented_runtime.tune.measured import TIMED

LAST = re.compile(r"loss (\S+), (\S+) ms per step")
STEPS, TURN = "24", "40"
"""Steps that tuning times in each of its runs; and those of a run of the truth, warm-up included."""
ATTEMPTS = 3
"""At a run of the truth: torch aborts some processes of gloo as they end (pytorch issue 38228)."""
PROGRAM = [sys.executable, "-c", "from gpuscope.cli import main; main()"]


Kept = Sequence[str]
"""Changes that a session kept, as `gpuscope record --set` takes them."""


def run(case: Case, kept: Kept | None, *, fixed: bool = False) -> tuple[str, float]:
    """The last loss and the mean step, ms, as the script prints them; with settings where there are some."""
    words = [*case.command(fixed=fixed), "--steps", TURN]
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            command = words
            if kept:
                groups = [word for group in case.allow for word in ("--allow", group)]
                sets = [word for one in kept for word in ("--set", one)]
                command = [*PROGRAM, "record", "-o", f"{folder}/run", *TIMED, *sets, *groups, "--", *words]
            done = subprocess.run(command, env=environment(case), capture_output=True, text=True, check=False)
        if found := LAST.search(done.stdout):
            return found[1], float(found[2])
    raise SystemExit(f"{case.name}: {done.stderr[-2000:]}")


def environment(case: Case) -> dict[str, str]:
    """One thread per process, unless the case says otherwise: two processes share few cores here."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **case.environment}


def truths(case: Case, rounds: int, sessions: Sequence[Kept]) -> list[Truth]:
    """All variants in turns; a truth per session."""
    slow, fixed, tuned = list[float](), list[float](), [list[float]() for _ in sessions]
    losses: set[str] = set()
    for _ in range(rounds):
        for times, is_fixed in ((slow, False), (fixed, True)):
            loss, taken = run(case, None, fixed=is_fixed)
            times.append(taken)
            losses.add(loss)
        for times, kept in zip(tuned, sessions, strict=True):
            if kept:
                times.append(run(case, kept)[1])
    return [Truth(slow, fixed, times, frozenset(losses)) for times in tuned]


def kept_of(document: Mapping[str, Any] | None) -> Kept:
    """The last value of each knob that was kept."""
    changes = document["changes"] if document else []
    made = {own["name"]: own["value"] for one in changes if one["kept"] for own in one["changes"]}
    return [f"{name}={value}" for name, value in made.items()]


def tuned(case: Case, budget: str, folder: Path) -> tuple[dict[str, Any] | None, str]:
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
        str(folder / f"{case.name}-{budget}"),
        *allowed,
        "--",
    ]
    done = subprocess.run(
        [*command, *case.command()], env=environment(case), capture_output=True, text=True, check=False, cwd=folder
    )
    (folder / f"{case.name}-{budget}.log").write_text(done.stderr)
    try:
        return json.loads(done.stdout), ""
    except ValueError:
        return None, f"failed: {done.stderr.strip()[-200:]}"


def told(rows: Sequence[Row]) -> str:
    """What is asked of tuning, per budget."""
    budgets = dict.fromkeys(row.budget for row in rows)
    return "\n".join(f"--budget {one}: {totals([row for row in rows if row.budget == one])}" for one in budgets)


def saved(rows: Sequence[Row]) -> str:
    """The rows as the table of docs/tuning.md is made from."""
    head = "\n".join(f"# {line}" for line in ["python -m benchmarks.tuning --save FILE", *told(rows).splitlines()])
    return outcome(head, COLUMNS, [row.cells() for row in rows])


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="A script; may be repeated.  [default: all]")
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    default=("4", "8"),
    show_default=True,
    help="Runs that gpuscope tune may take; a session for each.",
)
@click.option("--rounds", default=2, show_default=True, help="Turns of each variant of a script.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder of the recordings.")
@click.option("--save", type=click.Path(path_type=Path), help="A TOML file for docs/tuning.md.")
def main(only: tuple[str, ...], budgets: tuple[str, ...], rounds: int, work: Path | None, save: Path | None) -> None:
    """Tune, measure, compare."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            if only and case.name not in only:
                continue
            documents = [tuned(case, budget, folder) for budget in budgets]
            of_sessions = truths(case, rounds, [kept_of(document) for document, _ in documents])
            for budget, truth, document in zip(budgets, of_sessions, documents, strict=True):
                rows.append(Row(case, budget, truth, *document))
                click.echo(" | ".join(rows[-1].cells()), err=True)
            if save:  # also where a later script ends badly
                save.write_text(saved(rows), encoding="utf-8")
    print(told(rows))
    print(f"load of the machine {os.getloadavg()[2]:.1f} (15 min) on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
