"""Rows of small tables as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuscope.trace.names import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

Row = Mapping[str, Any]
"""Names as strings, None where absent."""


def plain_rows(trace: Trace, name: str) -> list[Row]:
    """A table's rows as plain values."""
    table, names = trace[name], trace.names
    columns: dict[str, list[Any]] = {}
    for column in table.schema.columns:
        values = table[column.name].tolist()
        if column.dtype == "name":
            columns[column.name] = [None if value == NO_NAME else names[value] for value in values]
        else:
            columns[column.name] = [None if value == NA else value for value in values]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
