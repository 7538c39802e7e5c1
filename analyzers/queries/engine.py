"""Read-only SQL over a run's tables: in a database in memory that can neither be left nor changed.

First the statement is prepared over empty tables. SQLite then tells which columns it reads, and says what is wrong with
it before any file is opened; only these columns are filled in, and the statement runs.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, cached_property
from types import NoneType
from typing import Any, get_args, get_type_hints, is_typeddict

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.run.analysis import SECTIONS
from gpuscope.errors import UsageError
from gpuscope.report.section_tables import did_you_mean
from gpuscope.schema.document import Report
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, SCHEMAS, Column, TableSchema
from gpuscope.trace.table import Array, blocks
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# The tables that SQL can ask: those of the trace and those of the report, in one naming.
#
# Derived from `gpuscope.trace.schema` and `gpuscope.analyzers.run.analysis.SECTIONS`, so that neither is said twice.
# Times are whole ns in columns that end in `_ns`, of nested keys of a report the parts are joined by `_`, and a section
# of the report that is named as a table of the trace has `report_` before its name.

_RESERVED = {"group": "group_name"}
"""Names that SQL keeps for itself."""
_OF_TIME = ("dur", "first_use_after")
"""Whole numbers of the trace's schema that are ns, and whose names do not say so."""


@dataclass(frozen=True)
class QueryColumn:
    """A column: `path` is where its values are in the trace's table, or in a row of the report."""

    name: str
    path: tuple[str, ...]
    doc: str = ""


@dataclass(frozen=True)
class QueryTable:
    """A table: `source` is its name in the trace, or in the report where `of_report`."""

    name: str
    source: str
    of_report: bool
    doc: str
    columns: tuple[QueryColumn, ...]


ROW = QueryColumn("row", (), "number of the row, from 0: what columns such as device_events.launch refer to")
LENGTH = QueryColumn("dur_ns", ("start", "end"), "from start_ns to end_ns")
INSTANCE = QueryColumn("instance", (), "the same number on all ranks of one operation; absent where not matched")


@cache
def tables() -> dict[str, QueryTable]:
    """Every table by its name, those of the trace first."""
    found = {name: _of_trace(schema) for name, schema in SCHEMAS.items()}
    for section, entry in SECTIONS.items():
        name = f"report_{section}" if section in SCHEMAS else section
        doc = " ".join((entry.__doc__ or "").split("\n\n")[0].split())
        columns = (QueryColumn(_RESERVED.get(path[-1], "_".join(path)), path) for path in _leaves(entry))
        found[name] = QueryTable(name, section, True, doc, (ROW, *columns))
    return found


def _of_trace(schema: TableSchema) -> QueryTable:
    columns = [ROW, *(QueryColumn(_named(column), (column.name,), column.doc) for column in schema.columns)]
    names = {column.name for column in columns}
    if {"start_ns", "end_ns"} <= names and "dur_ns" not in names:
        columns.append(LENGTH)
    if schema.name == "collectives":
        columns.append(INSTANCE)
    return QueryTable(schema.name, schema.name, False, schema.doc, tuple(columns))


def _named(column: Column) -> str:
    in_ns = column.dtype == "time" or column.name in _OF_TIME
    name = _RESERVED.get(column.name, column.name)
    return f"{name}_ns" if in_ns and not name.endswith("_ns") else name


def _leaves(entry: type, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths to what has no named parts of its own: numbers, texts, and lists and maps, which become JSON."""
    for key, hint in get_type_hints(entry).items():
        nested = next((one for one in (hint, *_options(hint)) if is_typeddict(one)), None)
        yield from _leaves(nested, (*above, key)) if nested is not None else [(*above, key)]


def _options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of `X | None`."""
    return get_args(hint) if NoneType in get_args(hint) else ()


MOST_ROWS = 100_000
"""Rows of an answer."""
MOST_ANSWER = 64 << 20
"""Characters of all texts of an answer."""
MOST_CELLS = 30_000_000
"""Cells of the columns that a query reads, together: read fewer columns, or fewer ranks."""
SECONDS = 10.0
"""Within which an answer must be there, once the columns are."""
HEAP = 2 << 30
"""Bytes that SQLite may take in this process."""
_TEXT = 100_000
"""Bytes of the longest text or blob that a query may make."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _TEXT,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
}
_STEPS = 100
"""Steps of SQLite's machine between two looks at the clock: one step may be a search through a long text."""
Values = Callable[[slice], Sequence[Any]]
"""The values of a column in some of its rows."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_NO_FUNCTION = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


@dataclass(frozen=True)
class Rows:
    """The answer of a query; `more` says that there were more rows than asked for."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: bool


@dataclass(frozen=True)
class RunData:
    """What a query reads of a run: its trace and its report, each made when a query first asks for it."""

    open_trace: Callable[[], Trace]
    make_report: Callable[[], Report]

    @cached_property
    def trace(self) -> Trace:
        """All events."""
        return self.open_trace()

    @cached_property
    def report(self) -> Report:
        """What the analysis found."""
        return self.make_report()

    @cached_property
    def facts(self) -> RunFacts:
        """Which collectives are one operation, and the ranks' clocks."""
        return RunFacts(self.trace, ())


def query(run: RunData, sql: str, limit: int = MOST_ROWS) -> Rows:
    """Run one SELECT over `tables()` of `run`; names and enums are text, lists are JSON, absent is NULL.

    Raises `UsageError` for SQL that is wrong, writes, reaches outside the tables, or takes too much time or memory.
    """
    limit = max(1, min(limit, MOST_ROWS))
    with closing(sqlite3.connect(":memory:", cached_statements=0)) as database:
        for pragma in (f"hard_heap_limit={HEAP}", "temp_store=MEMORY"):  # a large sort would go to a file
            database.execute(f"PRAGMA {pragma}")
        for statement in _empty_tables():
            database.execute(statement)
        for which, most in _LIMITS.items():
            database.setlimit(which, most)
        try:
            for name, columns in _filled(run, _read_by(database, sql)).items():
                _insert(database, name, columns, _length(run, tables()[name]))
            return _answer(database, sql, limit)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _refused(error, database, sql) from None
        except MemoryError:
            raise _too_large("more memory than a query may take") from None


@cache
def _empty_tables() -> tuple[str, ...]:
    def columns(table: QueryTable) -> str:
        return ", ".join(f'"{one.name}"' + " INTEGER PRIMARY KEY" * (one is ROW) for one in table.columns)

    return tuple(f'CREATE TABLE "{table.name}" ({columns(table)})' for table in tables().values())


def _read_by(database: sqlite3.Connection, sql: str) -> dict[str, set[str]]:
    """The columns that a statement reads, by table."""
    read: dict[str, set[str]] = {}

    def noted(action: int, first: str | None, second: str | None, *rest: str | None) -> int:
        if action == sqlite3.SQLITE_READ and first in tables():
            read.setdefault(first, {ROW.name}).add(second or ROW.name)
        return _authorized(action, first, second, *rest)

    database.set_authorizer(noted)
    database.execute(f"EXPLAIN {sql}").close()
    database.set_authorizer(None)
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    if words & {"using", "natural"}:  # of what these compare SQLite does not tell
        for name in words & set(tables()):
            columns = {one.name for one in tables()[name].columns}
            read.setdefault(name, {ROW.name}).update(columns if "natural" in words else columns & words)
    return read


def _filled(run: RunData, read: Mapping[str, set[str]]) -> dict[str, dict[str, Values]]:
    """The columns that are read, by table and name."""
    chosen = {
        name: [one for one in tables()[name].columns if one.name in columns] for name, columns in sorted(read.items())
    }
    cells = {name: len(columns) * _length(run, tables()[name]) for name, columns in chosen.items()}
    if sum(cells.values()) > MOST_CELLS:
        largest = max(cells, key=lambda name: cells[name])
        raise _too_large(f"{sum(cells.values()):,} values, most of them of {largest}, where {MOST_CELLS:,} may be read")
    return {name: {one.name: _column(run, tables()[name], one) for one in columns} for name, columns in chosen.items()}


def _length(run: RunData, table: QueryTable) -> int:
    return len(run.report.get(table.source, ())) if table.of_report else len(run.trace[table.source])  # type: ignore[arg-type]


def _column(run: RunData, table: QueryTable, column: QueryColumn) -> Values:
    if column is ROW:
        rows = range(_length(run, table))
        return lambda block: rows[block]
    if table.of_report:
        found = _of_report(run, table, column)
        return lambda block: found[block]
    own = run.trace[table.source]
    if column is INSTANCE:
        return _numbers(run.facts.matched.of_row)
    if column is LENGTH:
        known = (own["end"] != NA) & (own["start"] != NA)
        return _numbers(np.where(known, own["end"] - own["start"], NA))
    declared = own.schema.column(column.path[0])
    values = own[declared.name]
    if declared.dtype == "name":
        return _texts(run.trace, values)
    if declared.enum is not None:
        labels = [member.name.lower() for member in declared.enum]
        return lambda block: [labels[code] for code in values[block].tolist()]
    if declared.name in ("start", "end") and {"rank", "start"} <= set(own.columns) and len(run.trace.ranks) > 1:
        values = np.where(values == NA, NA, run.facts.clocks.common(own["rank"], values))
    return _numbers(values)


def _numbers(values: Array) -> Values:
    if not (values == NA).any():
        return lambda block: values[block].tolist()
    return lambda block: [None if value == NA else value for value in values[block].tolist()]


def _texts(trace: Trace, codes: Array) -> Values:
    used, places = np.unique(codes, return_inverse=True)
    # A lone surrogate is no text to SQLite.
    found = [
        None if code == NO_NAME else trace.names[code].encode("utf-8", "replace").decode()[: _TEXT // 4]
        for code in used.tolist()
    ]
    return lambda block: [found[place] for place in places[block].tolist()]


def _of_report(run: RunData, table: QueryTable, column: QueryColumn) -> list[Any]:
    """A column of a section of the report; its times on the run's clock, as those of events are."""
    entries: Sequence[Mapping[str, Any]] = run.report.get(table.source, ())  # type: ignore[assignment]
    found = [_plain(_at(entry, column.path)) for entry in entries]
    ranked = column.name == "start_ns" and any(one.name == "rank" for one in table.columns)
    if ranked and len(run.report["trace"]["ranks_present"]) > 1:
        known = [place for place, value in enumerate(found) if value is not None]
        ranks = np.array([entries[place]["rank"] for place in known], np.int64)
        times = run.facts.clocks.common(ranks, np.array([found[place] for place in known], np.int64))
        for place, time_ in zip(known, times.tolist(), strict=True):
            found[place] = time_
    return found


def _at(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()[: _TEXT // 4]
    if value is None or isinstance(value, int | float):
        return value
    text = json.dumps(value, default=lambda one: one.item())
    return text if len(text) < _TEXT else None


def _insert(database: sqlite3.Connection, table: str, columns: Mapping[str, Values], length: int) -> None:
    names = ", ".join(f'"{name}"' for name in columns)
    places = ", ".join("?" * len(columns))
    for block in blocks(0, length):  # Python's numbers of all rows would take more memory than SQLite's
        rows = zip(*(values(block) for values in columns.values()), strict=True)
        database.executemany(f'INSERT INTO "{table}" ({names}) VALUES ({places})', rows)


def _answer(database: sqlite3.Connection, sql: str, limit: int) -> Rows:
    """From here on: nothing but reading, within bounds."""
    database.set_authorizer(_authorized)
    ends = time.monotonic() + SECONDS
    database.set_progress_handler(lambda: int(time.monotonic() > ends), _STEPS)
    cursor = database.execute(sql)
    if cursor.description is None:
        raise UsageError("this is no SELECT", hint="only SELECT is possible")
    names = [column[0] for column in cursor.description]
    found: list[Sequence[Any]] = []
    size = 0
    for row in cursor:
        if len(found) == limit:
            return Rows(names, found, True)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if size > MOST_ANSWER:
            raise _too_large(f"an answer of more than {MOST_ANSWER >> 20} MiB")
        found.append([value.hex() if isinstance(value, bytes) else value for value in row])
    return Rows(names, found, False)


def _authorized(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    denied = (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _NO_FUNCTION) or (
        action == sqlite3.SQLITE_READ and (first or "").startswith("pragma_")
    )
    return sqlite3.SQLITE_OK if action in _ALLOWED and not denied else sqlite3.SQLITE_DENY


def _too_large(what: str) -> UsageError:
    return UsageError(
        f"the query needs too much memory: {what}",
        hint="name the columns instead of *, aggregate, limit its rows, or open fewer ranks",
    )


def _refused(error: Exception, database: sqlite3.Connection, sql: str) -> UsageError:
    said = str(error)
    if "interrupted" in said:
        return UsageError(
            f"the query took longer than {SECONDS:g} s",
            hint="join on row numbers or equal columns, read fewer rows, or aggregate less",
        )
    if "not authorized" in said or "prohibited" in said:
        return UsageError("only SELECT over the tables of the run is possible", hint="no ATTACH, PRAGMA or writing")
    if "out of memory" in said or "too big" in said:
        return _too_large(said)
    place, hint = _place(said, database, sql)
    return UsageError(f"SQL{place}: {said}", hint=hint or "without SQL, the tables and their columns are listed")


_NAMED = when_used.pattern(
    r'(?:no such (?P<kind>\w+)|ambiguous column name): (?:\w+\.)?(?P<name>\w+)|near "(?P<near>[^"]+)"'
)


def _place(said: str, database: sqlite3.Connection, sql: str) -> tuple[str, str]:
    """Where in the statement an error is, as `, line 1, column 8`, and what was probably meant."""
    named = _NAMED.match(said)
    if named is None:
        return "", ""
    if named["near"] is not None:
        at = next(
            (
                one.start()
                for one in re.finditer(re.escape(named["near"]), sql)
                if _says(database, sql[: one.end()]) == said
            ),
            -1,
        )
        hint = ""
    else:
        found = re.search(rf"\b{re.escape(named['name'])}\b", sql)
        at = found.start() if found else -1
        hint = did_you_mean(named["name"], _known(named["kind"], sql)).removeprefix(": ")
    if at < 0:
        return "", hint
    return f", line {sql.count(chr(10), 0, at) + 1}, column {at - sql.rfind(chr(10), 0, at)}", hint


def _known(kind: str | None, sql: str) -> set[str]:
    """What a wrong name may have been meant to be: a table, or a column of those that the statement names."""
    if kind != "column":
        return set(tables()) if kind == "table" else set()
    words = set(re.findall(r"\w+", sql)) & set(tables()) or set(tables())
    return {one.name for word in words for one in tables()[word].columns}


def _says(database: sqlite3.Connection, sql: str) -> str:
    """What SQLite says of a statement that it only prepares."""
    try:
        database.execute(f"EXPLAIN {sql}").close()
    except (sqlite3.Error, sqlite3.Warning) as error:
        return str(error)
    return ""
