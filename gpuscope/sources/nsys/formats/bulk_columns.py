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

from gpuscope import native
from gpuscope.trace.columns.table import Array, concatenated, is_constant, narrowed

_FUNCTIONS = (
    "open_v2", "close", "busy_timeout", "prepare_v2", "step", "column_type", "column_int64", "column_count", "finalize",
)  # fmt: skip
_ROWS_PER_THREAD = 100_000
"""Fewer are not worth a thread."""
_ROWS_AT_ONCE = 1 << 17
"""Rows of a query: of so many, one takes less than the rows, and all columns at full width little memory."""


@cache
def _library() -> tuple[int, ...] | None:
    """The addresses of SQLite's functions in the library behind `sqlite3`; None where it shows none."""
    import ctypes

    try:
        library = ctypes.CDLL(str(import_module("_sqlite3").__file__))
        found = [ctypes.cast(library[f"sqlite3_{name}"], ctypes.c_void_p).value for name in _FUNCTIONS]
    except (AttributeError, ImportError, OSError):  # linked into Python itself, without its names
        return None
    return tuple(address or 0 for address in found) if all(found) else None


def bulk(uri: str, table: str, columns: list[str], first: int, last: int) -> list[Array] | None:
    """Columns (SQL expressions) of the rows with rowids from `first` to `last`, in that order, as `narrowed`.

    None where the native core can't read them: `sqlite3` then can, or says why not.
    """
    functions = _library()
    if functions is None or last < first:
        return None
    span = last - first + 1
    if span > 1 << 31:
        return None
    threads = max(1, min(_cores(), span // _ROWS_PER_THREAD))
    size = min(_ROWS_AT_ONCE, -(-span // threads))
    parts = -(-span // size)
    whole = [_Column(span, size) for _ in columns]

    def read(thread: int) -> bool:
        rows = np.empty((len(columns), size), np.int64)
        for part in range(parts * thread // threads, parts * (thread + 1) // threads):
            low = first + part * size
            query = f"SELECT {','.join(columns)} FROM {table} WHERE rowid BETWEEN {low} AND {min(low + size - 1, last)}"
            found = native.sqlite_columns(functions, uri, f"{query} ORDER BY rowid", rows, len(columns), 0, size)
            if found < 0:
                return False
            for column, values in zip(whole, rows, strict=True):
                column.put(part, values[:found])
        return True

    if threads == 1:
        done = read(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            done = all(pool.map(read, range(threads)))
    return [column.whole() for column in whole] if done else None


class _Column:
    """A column that is read part by part, as narrow as its values allow. Room that is never used takes no memory."""

    def __init__(self, length: int, size: int) -> None:
        self._size = size
        self._narrow, self._wide = np.empty(length, np.int32), np.empty(length, np.int64)
        self._parts: dict[int, Array] = {}
        """By number: where the part lies, or as `constant`."""

    def put(self, part: int, values: Array) -> None:
        """Take a part, which may have fewer rows than there is room for."""
        if not len(values):
            return
        found = narrowed(values)
        if not is_constant(found):
            into = self._narrow if found.dtype == np.int32 else self._wide
            place = into[part * self._size : part * self._size + len(values)]
            place[:] = found
            found = place
        self._parts[part] = found

    def whole(self) -> Array:
        """All parts one after another."""
        parts = [self._parts[part] for part in sorted(self._parts)]
        if all(map(is_constant, parts)):
            return concatenated(parts) if parts else np.empty(0, np.int64)
        into = self._wide if any(part.dtype == np.int64 for part in parts) else self._narrow
        filled = 0
        for part in parts:
            place = into[filled : filled + len(part)]
            if place.ctypes.data != part.ctypes.data:
                place[:] = part
            filled += len(part)
        return into[:filled]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
