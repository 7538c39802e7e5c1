"""`gpuscope runs`: what was analysed before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuscope.commands.options import print_report, report_options
from gpuscope.store.location import located, store_option

if TYPE_CHECKING:
    from gpuscope.report.terminal.hang_text import Shown
    from gpuscope.report.terminal.screen import Writer

DAY = len("2026-01-31 12:00")
CLASSES = ("cpu", "communication", "memory", "compute")


@click.group(invoke_without_command=True, short_help="List, show and delete the runs that were analysed.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Show at most this many, the latest.")
@click.option("--bound-by", type=click.Choice(CLASSES), help="Only these verdicts.")
@click.option("--cause", metavar="CAUSE", help="Only verdicts with this cause, e.g. straggler.")
@click.option("--path", "path", metavar="TEXT", help="Only runs whose paths contain this text.")
@click.option("--label", metavar="TEXT", help="Only runs whose label contains this text.")
@click.pass_context
def command(
    ctx: click.Context,
    store: Path | None,
    as_json: bool,
    limit: int | None,
    bound_by: str | None,
    cause: str | None,
    path: str | None,
    label: str | None,
) -> None:
    """List what `gpuscope analyze` kept in the run store, the last analysed first.

    \b
    gpuscope runs
    gpuscope runs --cause straggler --json
    gpuscope runs show 3
    gpuscope runs delete 3
    """
    ctx.obj = store
    if ctx.invoked_subcommand is not None:
        return
    from gpuscope.store.store import opened

    asked = {"bound_by = ?": bound_by, "cause = ?": cause, "instr(paths, ?)": path, "instr(label, ?)": label}
    given = {sql: value for sql, value in asked.items() if value is not None}
    with opened(located(store)) as open_store:
        rows = open_store.runs(" AND ".join(given) or "1", list(given.values()), limit)
    if as_json:
        import json

        click.echo(json.dumps(rows, indent=2))
        return
    from gpuscope.report.terminal.screen import ReportConsole, Writer

    _list(rows, Writer(ReportConsole()))


@command.command(short_help="Show the report of a run.")
@click.argument("run", type=int)
@store_option
@report_options
@click.option("--json", "as_json", is_flag=True, help="Print the stored report as JSON.")
@click.pass_context
def show(
    ctx: click.Context,
    run: int,
    store: Path | None,
    full: bool,
    top: int | None,
    by: Shown | None,
    why: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Show the report of the run of that number, as `gpuscope analyze` showed it."""
    from gpuscope.store.store import opened

    with opened(located(store or ctx.obj)) as open_store:
        report = open_store.report(run)
    if as_json:
        from gpuscope.report.read_report import dumps

        click.echo(dumps(report))
        return
    print_report(report, full, top, quiet, by, why)


@command.command(short_help="Delete runs.")
@click.argument("runs", type=int, nargs=-1, required=True, metavar="RUN...")
@store_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@click.pass_context
def delete(ctx: click.Context, runs: tuple[int, ...], store: Path | None, yes: bool) -> None:
    """Delete the runs of these numbers from the store; the traces themselves are not touched."""
    from gpuscope.store.store import opened

    with opened(located(store or ctx.obj), write=True) as open_store:
        for run in runs:
            open_store.report(run)  # all are known, or none is deleted
        if not yes:
            click.confirm(f"Delete run {', '.join(map(str, runs))} from {open_store.path}?", abort=True, err=True)
        for run in dict.fromkeys(runs):
            open_store.delete(run)


def _list(rows: list[dict[str, Any]], writer: Writer) -> None:
    from gpuscope.words import units, vocabulary

    if not rows:
        writer.line("No such run.")
        return
    cells = []
    for row in rows:
        bound, cause = "no verdict", units.NONE
        if not row["abstained"]:
            bound = _with_share(vocabulary.CLASSES.get(row["bound_by"], units.NONE), row["share_frac"])
            cause = _with_share(row["cause"] or units.NONE, row["cause_share_frac"])
        names = [row["label"]] if row["label"] else []
        cells.append(
            (
                str(row["id"]),
                row["analysed_at"][:DAY].replace("T", " "),
                bound,
                cause,
                units.duration(row["step_ns"]),
                str(row["ranks_present"]),
                writer.path("  ".join([*names, *row["paths"]])),
            )
        )
    writer.rows((">run", "<analysed (UTC)", "<bound by", "<cause", ">step", ">ranks", "~label, path"), cells)


def _with_share(word: str, frac: float | None) -> str:
    """`communication 68.5 %`: a class and its cause have shares of their own."""
    from gpuscope.words import units

    return word if frac is None else f"{word} {units.share(frac)}"
