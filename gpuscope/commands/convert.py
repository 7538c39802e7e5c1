"""`gpuscope convert`: a trace as Parquet, for any tool that reads tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscope.commands.options import inputs, open_with_progress
from gpuscope.errors import UsageError, install_hint

if TYPE_CHECKING:
    import pandas as pd

    from gpuscope.trace.trace import Trace

EVENTS = "events"


@click.command(short_help="Write the tables of a trace as Parquet.")
@inputs
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--table", metavar="NAME", default=EVENTS, show_default=True, help="Which table to write into OUT.parquet."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def command(
    paths: tuple[str, ...],
    out: Path,
    ranks: frozenset[int] | None,
    partial: bool,
    nsys: str | None,
    table: str,
    force: bool,
) -> None:
    """Convert traces to Parquet: OUT.parquet holds one table, any other OUT is a folder of all of them.

    The table `events` is every device and host event, ordered by start; `gpuscope info` lists the others.
    Needs the extra gpuscope[arrow].

    \b
    gpuscope convert rank0.json.gz events.parquet
    gpuscope convert run/ tables/
    """
    from gpuscope.output import check_free, say_written, write, write_folder

    _require_pyarrow()
    one = out.suffix == ".parquet"
    check_free([out] if one else [], force, paths, folders=[] if one else [out])
    trace = open_with_progress(paths, ranks, partial, nsys)
    if one:
        write(out, _frame(trace, table).to_parquet)
    else:
        write_folder(out, lambda folder: _write_all(trace, folder))
    say_written(out, "pandas.read_parquet, DuckDB or polars read it")


def _write_all(trace: Trace, folder: Path) -> None:
    for name in trace.tables:
        _frame(trace, name).to_parquet(folder / f"{name}.parquet")


def _frame(trace: Trace, table: str) -> pd.DataFrame:
    import pandas as pd

    if table != EVENTS:
        if table not in trace.tables:
            raise UsageError(f"no table {table!r}", hint=f"there are: events, {', '.join(trace.tables)}")
        return trace.tables[table]
    device = trace.tables["device_events"].assign(table="device_events")
    host = trace.tables["host_events"].assign(table="host_events").astype({"thread": "Int64"})
    frames = [frame.astype({"name": "str"}) for frame in (device, host)]
    return pd.concat(frames, ignore_index=True).sort_values(["start", "rank"], kind="stable", ignore_index=True)


def _require_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError("writing Parquet needs pyarrow", hint=install_hint("arrow")) from None
