"""The tables that SQL can ask: those of the trace and those of the report, in one naming.

Derived from `gpuscope.trace.schema` and `gpuscope.analyzers.run.analysis.SECTIONS`, so that neither is said twice.
Times are whole ns in columns that end in `_ns`, of nested keys of a report the parts are joined by `_`, and a section
of the report that is named as a table of the trace has `report_` before its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints, is_typeddict

from gpuscope.analyzers.run.analysis import SECTIONS
from gpuscope.trace.schema import SCHEMAS, Column, TableSchema
from gpuscope.when_used import dataclass

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
