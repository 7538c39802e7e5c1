"""`gpuscope query`: SQL over a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuscope.commands.options import reading
from gpuscope.store.location import store_option

if TYPE_CHECKING:
    from gpuscope.analyzers.queries.engine import Rows
    from gpuscope.schema.plan_document import QueryDocument

SHOWN = 1_000
"""Rows printed unless `--limit` says otherwise."""
WIDEST = 60
"""Cells of a text in the aligned table; --json and --csv have all of it."""


@click.command(short_help="Ask a run's events and findings with SQL.")
@reading
@click.argument("run")
@click.argument("sql", required=False)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=SHOWN, show_default=True, help="At most so many rows."
)
@click.option("--json", "as_json", is_flag=True, help="Print columns and rows as JSON, and nothing else, on stdout.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV.")
@store_option
def command(
    run: str,
    sql: str | None,
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    limit: int,
    as_json: bool,
    as_csv: bool,
    store: Path | None,
) -> None:
    """Ask the tables of a run with one SELECT; without SQL, list the tables and some examples.

    RUN is a trace, a folder of ranks or a glob, the JSON of `gpuscope analyze --json`, or the number of a run in the
    run store. Times are ns; on all ranks on one clock.

    \b
    gpuscope query run/ "SELECT name, sum(dur_ns) FROM device_events GROUP BY name ORDER BY 2 DESC LIMIT 9"
    gpuscope query 3 "SELECT code, cost_ns FROM findings" --json
    gpuscope query run/
    """
    from gpuscope.analyzers.comparison.comparison import Reading
    from gpuscope.analyzers.queries import engine
    from gpuscope.analyzers.queries.asking import check_there, run_data

    how = Reading(ranks, partial=partial, nsys=nsys, store=store, progress=True)
    if sql is None:
        check_there(run, how)
        click.echo("\n".join(_listed()))
        return
    asked = run_data(run, how)
    found = engine.query(asked, sql, limit)
    if as_json:
        document: QueryDocument = {
            "columns": list(found.columns),
            "rows": [list(row) for row in found.rows],
            "more": found.more,
        }
        import json

        click.echo(json.dumps(document, indent=2))
    elif as_csv:
        _print_csv(found)
    else:
        click.echo("\n".join(_aligned(found)))
    if found.more and not as_json:
        click.echo(f"There are more than {limit} rows: aggregate, or pass --limit.", err=True)


def _listed() -> Iterator[str]:
    """The tables with their columns, and examples."""
    from gpuscope.analyzers.queries.engine import tables
    from gpuscope.analyzers.queries.examples import EXAMPLES

    for table in tables().values():
        yield f"{table.name}: {', '.join(column.name for column in table.columns)}"
    for example in EXAMPLES:
        yield f"\n-- {example.question}\n{example.sql}"


def _print_csv(found: Rows) -> None:
    import csv
    from io import StringIO

    made = StringIO()
    csv.writer(made, lineterminator="\n").writerows([found.columns, *found.rows])
    click.echo(made.getvalue(), nl=False)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1e6 else f"{value:.6g}"


def _aligned(found: Rows) -> Iterator[str]:
    """The rows under their columns, numbers to the right; texts cropped, and cleaned of control characters."""
    from rich.cells import cell_len

    from gpuscope.report.terminal.screen import ReportConsole, Writer
    from gpuscope.words import units

    writer = Writer(ReportConsole())

    def shown(value: Any) -> str:
        text = "" if value is None else _number(value) if isinstance(value, float) else str(value)
        return units.crop(writer.safe(text), WIDEST, writer.ellipsis)

    cells = [[shown(name) for name in found.columns], *([shown(value) for value in row] for row in found.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    right = [
        all(value is None or isinstance(value, int | float) for value in column)
        for column in zip(*found.rows, strict=True)
    ] or [False] * len(widths)
    for line in cells:
        padded = [
            " " * (width - cell_len(text)) + text if number else text + " " * (width - cell_len(text))
            for text, width, number in zip(line, widths, right, strict=True)
        ]
        yield "  ".join(padded).rstrip()
