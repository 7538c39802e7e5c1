"""`gpuscope export`: a run for other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscope.commands.options import inputs, open_with_progress
from gpuscope.errors import UsageError

if TYPE_CHECKING:
    from gpuscope.trace.trace import Trace


@click.command(short_help="Write a run for Perfetto, speedscope or NCCL's tuner.")
@inputs
@click.option(
    "--perfetto",
    type=click.Path(path_type=Path),
    metavar="OUT.json.gz|OUT.pftrace",
    help="Write a trace that ui.perfetto.dev opens: JSON (chrome://tracing opens it too), or Perfetto's own format.",
)
@click.option(
    "--nccl-tuner",
    type=click.Path(path_type=Path),
    metavar="OUT.csv",
    help="Write what NCCL should choose by size, for its example tuner plugin; nothing where no choice would gain.",
)
@click.option(
    "--speedscope",
    type=click.Path(path_type=Path),
    metavar="OUT.json",
    help="Write time by place of the program for speedscope.app.",
)
@click.option(
    "--collapsed",
    type=click.Path(path_type=Path),
    metavar="OUT.txt",
    help="Write the same as collapsed stacks, for flamegraph.pl and its like.",
)
@click.option(
    "--channels", type=click.IntRange(1, 64), help="NCCL's channels, for --nccl-tuner, where its log lacks them."
)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
def command(
    paths: tuple[str, ...],
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    perfetto: Path | None,
    nccl_tuner: Path | None,
    speedscope: Path | None,
    collapsed: Path | None,
    channels: int | None,
    force: bool,
) -> None:
    """Write a run for another tool: all ranks merged on one clock, time by place of
    the program, or NCCL's choices improved.

    \b
    gpuscope export run/ --perfetto run.json.gz
    gpuscope export run/ --perfetto run.pftrace
    gpuscope export run/ --speedscope run.speedscope.json
    gpuscope export run/ nccl.log --nccl-tuner tuner.csv
    """
    from gpuscope import output

    wanted = [path for path in (perfetto, nccl_tuner, speedscope, collapsed) if path is not None]
    if not wanted:
        raise UsageError("nothing to write", hint="pass --perfetto, --speedscope, --collapsed or --nccl-tuner")
    output.check_free(wanted, force, paths)
    trace = open_with_progress(paths, ranks, partial, nsys)
    if perfetto is not None:
        output.write(perfetto, _writer(trace, perfetto))
        output.say_written(perfetto, "open it at https://ui.perfetto.dev")
    _write_stacks(trace, speedscope, collapsed)
    if nccl_tuner is not None:
        _write_tuner(trace, nccl_tuner, channels)


def _writer(trace: Trace, path: Path) -> Callable[[Path], None]:
    from gpuscope.analyzers.run import perfetto_export, set_apart

    native = path.name.endswith((".pftrace", ".pftrace.gz", ".perfetto-trace"))
    write = perfetto_export.write if native else set_apart.write
    return lambda temporary: write(trace, temporary)


def _write_stacks(trace: Trace, speedscope: Path | None, collapsed: Path | None) -> None:
    if speedscope is None and collapsed is None:
        return
    from gpuscope import output
    from gpuscope.analyzers.run import set_apart

    found = set_apart.entries(trace)
    if speedscope is not None:
        output.write(speedscope, lambda temporary: set_apart.write_speedscope(found, temporary))
        output.say_written(speedscope, "open it at https://www.speedscope.app")
    if collapsed is not None:
        output.write(collapsed, lambda temporary: set_apart.write_collapsed(found, temporary))
        output.say_written(collapsed)


def _write_tuner(trace: Trace, path: Path, channels: int | None) -> None:
    from gpuscope.analyzers.nccl.predicted_cost import check, tuning
    from gpuscope.output import say_written, write_text

    found = tuning(trace, channels)
    if not found.changes:
        click.echo(
            f"No other choice is certain to gain: {path} is not written, NCCL chooses better by itself.", err=True
        )
        return
    check(found.rows)
    write_text(path, found.text())
    say_written(path)
    click.echo(f"{len(found.changes)} choices changed. Any not in the log become ring with Simple.", err=True)
    if found.without_ll128:
        click.echo(
            f"{found.without_ll128} of NCCL's choices were LL128: they become Simple, since the plugin would force "
            "LL128 also where it corrupts data.",
            err=True,
        )
