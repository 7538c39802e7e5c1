"""`python -m benchmarks.faults`: inject every fault, run every parallelism healthily, and compare the verdicts.

python -m benchmarks.faults --work /tmp/faults                # all faults once, every parallelism five times
python -m benchmarks.faults --only FSDP --rounds 2 --markdown
python -m benchmarks.faults --work /tmp/faults                # the second time: analyses the same recordings again
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import gpuscope
from benchmarks.faults.cases import FAULTS, HEALTHY, Case
from benchmarks.faults.judged import Row, judge

console = Console(width=None if sys.stdout.isatty() else 220)


@click.command()
@click.option("--work", type=click.Path(path_type=Path), help="Folder of the recordings; it may hold some already.")
@click.option("--only", default="", help="Cases whose name contains this.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each healthy case.")
@click.option("--markdown", is_flag=True, help="Tables for the documentation.")
def main(work: Path | None, only: str, rounds: int, markdown: bool) -> None:
    """Run the campaign and print its two tables, with the load of the machine."""
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as temporary:
        folder = work or Path(temporary)
        faults = [case for case in FAULTS if only in case.name]
        healthy = [case for case in HEALTHY if only in case.name]
        rows = [row for case in faults if (row := _run(case, folder, 0)) is not None]
        turns = [(case, turn) for turn in range(rounds) for case in healthy]
        rounds_of = [row for case, turn in turns if (row := _run(case, folder, turn)) is not None]
    for table in (_faults(rows), _healthy(rounds_of)):
        click.echo(_markdown(table) + "\n") if markdown else console.print(table)
    wrong = [row for row in [*rows, *rounds_of] if row.wrong]
    loads = [f"{load:.1f}" for load in (before[0], os.getloadavg()[2])]
    click.echo(
        f"{len(rows) + len(rounds_of) - len(wrong)} of {len(rows) + len(rounds_of)} right; load of the machine "
        f"{loads[0]} (1 min, before) and {loads[1]} (15 min, after) on {os.cpu_count()} cores"
    )


def _run(case: Case, folder: Path, turn: int) -> Row | None:
    """Record a case, analyse it and judge it; None where it can't be run here."""
    out = folder / f"{case.name.replace(' ', '_').replace(',', '')}-{turn}"
    if not (out / "manifest.json").is_file():
        if case.needs_root and os.geteuid() != 0:
            click.echo(f"{case.name}: skipped, a slow link needs root", err=True)
            return None
        train = [sys.executable, "-c", "from gpuscope.cli import main; main()", "train", *case.words, "--out", str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(train, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            click.echo(f"{case.name}: failed with {done.returncode}: {done.stderr[-400:]}", err=True)
            return None
    row = judge(case, out, gpuscope.analyze(out).report)
    click.echo(f"{case.name}: {row.verdict}; {'; '.join(row.wrong) or 'right'}", err=True)
    return row


def _faults(rows: Sequence[Row]) -> Table:
    table = Table(
        "fault",
        "truth",
        "verdict",
        "rank named",
        "ms per step, injected / reported",
        "no core",
        "first advice",
        "right",
    )
    for row in rows:
        table.add_row(
            row.case,
            row.truth,
            row.verdict,
            ", ".join(map(str, row.named)) or "–",
            row.cost,
            _share(row.without_core),
            row.advice[0] if row.advice else "–",
            "no: " + ", ".join(row.wrong) if row.wrong else "yes",
        )
    return table


def _healthy(rows: Sequence[Row]) -> Table:
    table = Table("healthy", "runs", "verdicts", "no core", "false accusations")
    for name in dict.fromkeys(row.case for row in rows):
        own = [row for row in rows if row.case == name]
        verdicts = Counter(row.verdict.rpartition(" ")[0].rpartition(" ")[0] for row in own)
        wrong = [word for row in own for word in row.wrong]
        shares = [row.without_core or 0.0 for row in own]
        table.add_row(
            name,
            str(len(own)),
            ", ".join(f"{count} × {verdict}" for verdict, count in verdicts.most_common()),
            f"{_share(min(shares))}–{_share(max(shares))}",
            ", ".join(wrong) or "none",
        )
    return table


def _share(share: float | None) -> str:
    return f"{100 * (share or 0.0):.0f} %"


def _markdown(table: Table) -> str:
    names = [str(column.header) for column in table.columns]
    cells = [list(column.cells) for column in table.columns]
    rows = [[str(column[place]) for column in cells] for place in range(table.row_count)]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
