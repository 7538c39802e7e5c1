"""Reordering and leaving out rows, with every reference to them carried over."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.schema import NA

_ABOUT = {"host_events": "shapes", "device_events": "graph_nodes"}
"""Tables that only say more of some rows of another: they go with these."""


def order_rows(data: dict[str, Table], name: str) -> None:
    """Sort a table by its declared order, and follow in every table that refers to it."""
    table = data[name]
    if len(table):
        order = np.lexsort([table[column] for column in reversed(table.schema.sort)])
        if not np.array_equal(order, np.arange(len(order))):
            select_rows(data, name, order)


def select_rows(data: dict[str, Table], name: str, rows: Times) -> None:
    """Keep `rows` of a table, in that order; references to a row left out become NA."""
    moved = np.full(len(data[name]), NA, np.int64)
    moved[rows] = np.arange(len(rows))
    data[name] = data[name].take(rows)
    for other, table in data.items():
        columns = {column.name: table[column.name] for column in table.schema.columns if column.refs == name}
        followed = {column: _follow(old, moved) for column, old in columns.items()}
        if followed:
            data[other] = Table(table.schema, {**table.columns, **followed})
    about = _ABOUT.get(name)
    if about is not None and len(table := data[about]):
        data[about] = table.take(table["event"] != NA)


def _follow(old: Times, moved: Times) -> Times:
    if not len(moved):
        return old
    return np.where(old == NA, NA, moved[np.where(old == NA, 0, old)])
