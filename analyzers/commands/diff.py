"""`gpuscope diff`: is the run after faster than the run before, and what moved."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gpuscope.commands.options import Percent, StepRange, reading
from gpuscope.store.location import store_option


@click.command(short_help="Compare two runs: improvement, regression or noise, and what moved.")
@reading
@click.argument("before")
@click.argument("after")
@click.option("--steps", type=StepRange(), metavar="A-B", help="Only these steps of both, e.g. 3-8.")
@click.option("--threshold", type=Percent(), metavar="N%", help="Smaller changes count as none.  [default: 1%]")
@click.option("--suggestion", metavar="CODE|auto", help="The suggestion of BEFORE that was followed.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON, and nothing else, on stdout.")
def command(
    before: str,
    after: str,
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    steps: tuple[int, int] | None,
    threshold: float | None,
    suggestion: str | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Compare the step time of two runs, with its uncertainty, and say what moved.

    BEFORE and AFTER are each a trace, a folder of ranks or a glob, the JSON of `gpuscope analyze --json`, or
    the number of a run in the run store.

    \b
    gpuscope diff before/ after/
    gpuscope diff 3 after/ --suggestion bucket_size
    gpuscope diff baseline.json after.nsys-rep --json
    """
    from gpuscope.analyzers.comparison.compare import DEFAULT_THRESHOLD
    from gpuscope.analyzers.comparison.comparison import diff, refuse_same

    refuse_same(before, after)
    document = diff(
        before,
        after,
        threshold=DEFAULT_THRESHOLD if threshold is None else threshold,
        suggestion=suggestion,
        ranks=ranks,
        steps=steps,
        partial=partial,
        nsys=nsys,
        store=store,
        workers=os.cpu_count() or 1,
        progress=True,
    ).document
    if as_json:
        import json

        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    from gpuscope.report.terminal.diff_text import render
    from gpuscope.report.terminal.screen import ReportConsole, Writer

    render(document, Writer(ReportConsole()))
