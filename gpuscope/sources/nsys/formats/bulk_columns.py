"""Integer columns of an SQLite table in bulk: by the native core through SQLite's own C interface, on all cores.

Python's `sqlite3` makes an object of every value, which takes ten times as long as reading it. The library is the one
that Python's module has loaded already; each thread has a connection of its own and a range of rowids.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module

import numpy as np

from gpuscope.native import core
from gpuscope.trace.columns.table import Array

_FUNCTIONS = (
    "open_v2", "close", "busy_timeout", "prepare_v2", "step", "column_type", "column_int64", "column_count", "finalize",
)  # fmt: skip
_ROWS_PER_THREAD = 100_000
"""Fewer are not worth a thread."""


@cache
def _library() -> tuple[int, ...] | None:
    """The addresses of SQLite's functions in the library behind `sqlite3`; None where it shows none."""
    if core is None:
        return None
    import ctypes

    try:
        library = ctypes.CDLL(str(import_module("_sqlite3").__file__))
        found = [ctypes.cast(library[f"sqlite3_{name}"], ctypes.c_void_p).value for name in _FUNCTIONS]
    except (AttributeError, ImportError, OSError):  # linked into Python itself, without its names
        return None
    return tuple(address or 0 for address in found) if all(found) else None


def bulk(uri: str, table: str, columns: list[str], first: int, last: int) -> Array | None:
    """Columns (SQL expressions) of the rows with rowids from `first` to `last`, shape (columns, rows), in that order.

    None where the native core can't read them: `sqlite3` then can, or says why not.
    """
    functions = _library()
    if functions is None or last < first:
        return None
    span = last - first + 1
    if span > 1 << 33:
        return None
    # Rowids that are missing leave room at the end, which is never touched.
    whole = np.empty((len(columns), span), np.int64)
    threads = max(1, min(_cores(), span // _ROWS_PER_THREAD))
    bounds = [span * place // threads for place in range(threads + 1)]

    def read(place: int) -> int:
        low, high = bounds[place], bounds[place + 1]
        query = f"SELECT {','.join(columns)} FROM {table} WHERE rowid BETWEEN {first + low} AND {first + high - 1}"
        query += " ORDER BY rowid"
        found: int = core.sqlite_columns(functions, uri, query, whole, len(columns), low, high - low)
        return found

    with ThreadPoolExecutor(threads) as pool:
        counts = list(pool.map(read, range(threads)))
    if min(counts) < 0:
        return None
    if sum(counts) == span:
        return whole
    parts = [whole[:, low : low + count] for low, count in zip(bounds, counts, strict=False)]
    return np.concatenate(parts, axis=1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
