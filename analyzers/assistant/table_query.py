"""Read-only SQL over the tables of a Trace: in a database in memory that can neither be left nor changed."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.errors import UsageError
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.trace import Trace

MOST_ROWS = 200
MOST_TABLE_ROWS = 3_000_000
"""Rows of the tables that a query reads, together; of more, open fewer ranks."""
SECONDS = 5.0
HEAP = 2 << 30
"""Bytes that SQLite may take in this process."""
_TEXT = 100_000
"""Bytes of the longest text or blob that a query may make."""
_STEPS = 10_000
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_NO_FUNCTION = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


@dataclass(frozen=True)
class Rows:
    """The answer of a query; `more` says that there were more rows than asked for."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: bool


def query(trace: Trace, sql: str, limit: int = 50) -> Rows:
    """Run one SELECT over the tables of `trace` (`gpuscope.trace.schema`); names and enums are text, absent is NULL.

    Raises `UsageError` for SQL that is wrong, writes, reaches outside the tables, or takes too much time or memory.
    """
    limit = max(1, min(limit, MOST_ROWS))
    used = [name for name in SCHEMAS if name in {word.lower() for word in _WORD.findall(sql)}]
    rows = sum(len(trace[name]) for name in used)
    if rows > MOST_TABLE_ROWS:
        raise UsageError(
            f"{' and '.join(used)} of this run have {rows:,} rows, more than the {MOST_TABLE_ROWS:,} of a query",
            hint="open the run with fewer ranks",
        )
    with closing(sqlite3.connect(":memory:", cached_statements=0)) as database:
        database.execute(f"PRAGMA hard_heap_limit={HEAP}")
        for name in used:
            _fill(database, trace, name)
        _lock(database)
        try:
            cursor = database.execute(sql)
            found = cursor.fetchmany(limit + 1)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _refused(error) from None
        except MemoryError:
            raise UsageError("the query needs too much memory", hint="ask for less") from None
        if cursor.description is None:
            raise UsageError("this is no SELECT", hint="only SELECT is possible")
        return Rows([column[0] for column in cursor.description], found[:limit], len(found) > limit)


def _fill(database: sqlite3.Connection, trace: Trace, name: str) -> None:
    table = trace[name]
    columns = [column.name for column in table.schema.columns]
    quoted = ", ".join(f'"{column}"' for column in columns)
    database.execute(f'CREATE TABLE "{name}" ({quoted})')
    values = zip(*(_values(trace, table, column) for column in columns), strict=True)
    database.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})', values)


def _values(trace: Trace, table: Table, name: str) -> list[Any]:
    """A column as SQLite takes it."""
    column, array = table.schema.column(name), table[name]
    if column.dtype == "name":
        used, places = np.unique(array, return_inverse=True)
        texts = [None if code == NO_NAME else _text(trace.names[code]) for code in used.tolist()]
        return [texts[place] for place in places.tolist()]
    if column.enum is not None:
        labels = [member.name.lower() for member in column.enum]
        return [labels[code] for code in array.tolist()]
    return [None if value == NA else value for value in array.tolist()]


def _text(name: str) -> str:
    return name.encode("utf-8", "replace").decode()  # a lone surrogate is no text to SQLite


def _lock(database: sqlite3.Connection) -> None:
    """From here on: nothing but reading, within bounds."""
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _TEXT)
    database.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10_000)
    database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    database.set_authorizer(_authorized)
    ends = time.monotonic() + SECONDS
    database.set_progress_handler(lambda: int(time.monotonic() > ends), _STEPS)


def _authorized(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    function = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _NO_FUNCTION
    del first
    return sqlite3.SQLITE_OK if action in _ALLOWED and not function else sqlite3.SQLITE_DENY


def _refused(error: Exception) -> UsageError:
    said = str(error)
    if "interrupted" in said:
        return UsageError(f"the query took longer than {SECONDS:g} s", hint="read fewer rows, or aggregate less")
    if "not authorized" in said or "prohibited" in said:
        return UsageError("only SELECT over the tables of the run is possible", hint="no ATTACH, PRAGMA or writing")
    if "out of memory" in said or "too big" in said:
        return UsageError("the query needs too much memory", hint="aggregate, or limit its rows")
    return UsageError(f"SQL: {said}", hint="an empty query lists the tables and their columns")
