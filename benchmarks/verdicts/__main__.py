"""`python -m benchmarks.verdicts`: verdicts and predictions against simulated jobs whose truth is known.

The simulator is tests/simulator; it shares no code with what it judges.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from simulator.catalogue import CASES
from simulator.counterfactuals import COUNTERFACTUALS, varied
from simulator.judged import Case
from simulator.kineto_rows import Profiler
from simulator.variation import varied_case

from benchmarks.outcome import outcome
from benchmarks.verdicts.advised import advice_table, by_code, failures, of_drawn
from benchmarks.verdicts.calibration import KINDS_COLUMNS, by_kind, calibration_table
from benchmarks.verdicts.drawn_changes import of_seeds
from benchmarks.verdicts.labelled import Rates, judge, verdict_summary, verdict_table
from benchmarks.verdicts.predicted import predict, prediction_summary, prediction_table

CATALOGUED = ("verdicts", "predictions", "varied")
console = Console(width=None if sys.stdout.isatty() else 200)


@click.command()
@click.option("--only", type=click.Choice([*CATALOGUED, "advice", "changes"]), help="One of the tables.")
@click.option("--case", "pattern", default="", help="Only jobs whose names hold this.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the recordings in this folder.")
@click.option("--seed", type=int, multiple=True, help="Jobs varied by it (again and again), or drawn from it on.")
@click.option(
    "--jobs", default=100, show_default=True, help="Drawn jobs of `advice`; predictions a kind and seed of `changes`."
)
@click.option("--save", type=click.Path(path_type=Path), help="Write the table of `changes` for the documentation.")
@click.option("--fit/--verify", default=None, help="`changes` to structures that ranges are fitted to, or to others.")
def main(
    only: str | None,
    pattern: str,
    keep: Path | None,
    seed: tuple[int, ...],
    jobs: int,
    save: Path | None,
    fit: bool | None,
) -> None:
    """Analyse every simulated job and set what gpuscope says beside what is so."""
    with TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        drawn = range(seed[0] if seed else 0, (seed[0] if seed else 0) + jobs)
        if only == "advice":
            found = of_drawn(drawn, folder)
            console.print(failures(found), by_code(found), advice_table(found))
        if only == "changes":
            folder.mkdir(parents=True, exist_ok=True)
            told = of_seeds(seed or (0,), jobs, folder, fitted=fit)
            rows = by_kind(told)
            console.print(_kinds(rows), prediction_summary(told))
            if save is not None:
                head = f"# {time.strftime('%Y-%m-%d')}: python -m benchmarks.verdicts {shlex.join(sys.argv[1:])}"
                save.write_text(outcome(head, KINDS_COLUMNS, rows))
        if only in (None, "varied") and seed:
            _varied([varied_case(case, number) for number in seed for case in CASES if pattern in case.name], folder)
        if only in (None, "verdicts"):
            judged = [judge(case, folder) for case in CASES if pattern in case.name]
            console.print(verdict_table(judged), verdict_summary(judged))
        if only in (None, "predictions"):
            chosen = [one for one in COUNTERFACTUALS if pattern in one.name]
            chosen = [varied(one, number) for number in seed for one in chosen] if seed else chosen
            predicted = [predict(one, folder) for one in chosen]
            console.print(prediction_table(predicted), prediction_summary(predicted))
            console.print("Truths held by ranges that are to hold so many:", calibration_table(predicted))


def _kinds(rows: list[list[str]]) -> Table:
    table = Table(*KINDS_COLUMNS)
    for row in rows:
        table.add_row(*row)
    return table


def _varied(cases: list[Case], folder: Path) -> None:
    """What is told of varied jobs, as torch.profiler and as nsys record them: the wrong ones, and rates."""
    rates = {"torch.profiler": Rates(), "nsys": Rates()}
    wrong = []
    for case in cases:
        for name, rate in rates.items():
            # nsys does not record Python's collector, and the others leave out what only torch.profiler records.
            if name == "nsys" and (case.profiler != Profiler() or case.job.gc_ns):
                continue
            one = judge(case, folder, nsys=name == "nsys")
            rate.count(one)
            wrong += [] if one.right else [one]
    console.print("Told wrong:", verdict_table(wrong))
    for name, rate in rates.items():
        console.print(f"{name}: {rate}")


if __name__ == "__main__":
    main()
