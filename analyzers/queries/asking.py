"""`gpuscope.query`: SQL over whatever a command takes as a run."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpuscope.analyzers.comparison.compare import Side
from gpuscope.analyzers.comparison.comparison import Reading, Run, finished, load
from gpuscope.analyzers.queries import engine
from gpuscope.commands.options import open_with_progress
from gpuscope.sources.opening import PathLike, inputs, open_trace
from gpuscope.store.location import located
from gpuscope.store.store import opened
from gpuscope.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


def query(
    run: Run,
    sql: str,
    *,
    limit: int = engine.MOST_ROWS,
    ranks: Collection[int] | None = None,
    partial: bool = False,
    nsys: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Ask the tables of a run with one SELECT in SQLite's SQL; docs/query.md has the tables.

    `run` is a trace (a file, a folder of ranks or a glob), a report's JSON, a number in the run store, or an
    `Analysis`. Only what the statement names is read: a trace is analysed for the report's tables alone. At most
    `limit` rows are returned. Times are int ns, absent values are missing.

    Raises `UsageError` for SQL that is wrong or too costly, `InputError` for what is missing or can't be read.
    """
    import pandas as pd

    reading = Reading(ranks, partial=partial, nsys=nsys, store=Path(store) if store is not None else None)
    found = engine.query(run_data(run, reading), sql, limit)
    columns = zip(*found.rows, strict=True) if found.rows else ((),) * len(found.columns)
    data = [pd.Series(values, dtype=_dtype(values)) for values in columns]
    frame = pd.concat(data, axis=1) if data else pd.DataFrame()
    frame.columns = pd.Index(found.columns)
    return frame


def _dtype(values: tuple[object, ...]) -> str | None:
    """Whole numbers stay whole where some are missing."""
    known = {type(value) for value in values if value is not None}
    return ("Int64" if None in values else "int64") if known == {int} else None


def run_data(run: Run, reading: Reading) -> engine.RunData:
    """What a query reads of a run; nothing is opened before it is asked for."""
    return engine.RunData(lambda: _trace(run, reading), lambda: load(run, reading).report)


def check_there(run: Run, reading: Reading) -> None:
    """Raise as a query would where there is no such run; nothing is analysed."""
    if finished(run, reading) is None:
        inputs((os.fspath(cast(PathLike, run)),), reading.ranks)


def _trace(run: Run, reading: Reading) -> Trace:
    """All events of a run; of a finished report those of the files it was made from, where these are still there."""
    found = finished(run, reading)
    paths = (os.fspath(cast(PathLike, run)),) if found is None else _files(found, reading)
    if reading.progress:
        ranks = None if reading.ranks is None else frozenset(reading.ranks)
        return open_with_progress(paths, ranks, reading.partial, reading.nsys)
    return open_trace(*paths, ranks=reading.ranks, partial=reading.partial, nsys=reading.nsys)


def _files(found: Side, reading: Reading) -> tuple[str, ...]:
    if found.run is None:
        return tuple(source["path"] for source in found.report["trace"]["sources"])
    with opened(located(reading.store)) as store:
        return tuple(store.runs("id = ?", [found.run])[0]["paths"])
