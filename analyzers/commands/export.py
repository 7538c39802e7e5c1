"""`gpuscope export`: a run for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from gpuscope.commands.opening import open_with_progress
from gpuscope.commands.options import inputs


@click.command(short_help="Write a run for Perfetto, on one clock.")
@inputs
@click.option(
    "--perfetto",
    type=click.Path(path_type=Path),
    metavar="OUT.json.gz",
    required=True,
    help="Write a trace that ui.perfetto.dev and chrome://tracing open.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
def command(
    paths: tuple[str, ...], ranks: frozenset[int] | None, partial: bool, nsys: str | None, perfetto: Path, force: bool
) -> None:
    """Merge all ranks of a run on one clock and write them for another tool.

    \b
    gpuscope export run/ --perfetto run.json.gz
    """
    from analyzers.perfetto import write
    from gpuscope import output

    output.check_free([perfetto], force, paths)
    trace = open_with_progress(paths, ranks, partial, nsys)
    output.write(perfetto, lambda temporary: write(trace, temporary))
