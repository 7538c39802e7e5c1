"""Reordering and leaving out rows, with every reference to them carried over."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.table import Array, Table, Times, is_constant
from gpuscope.trace.schema import NA

_ABOUT = {"host_events": ("shapes",), "device_events": ("graph_nodes", "graph_dependencies")}
"""Tables that only say more of some rows of another: they go with these."""


def order_rows(data: dict[str, Table], name: str) -> None:
    """Sort a table by its declared order, and follow in every table that refers to it. The table is used up."""
    table = data[name]
    keys = [table[column] for column in table.schema.sort if not is_constant(table[column])]
    if len(table) and not _is_sorted(keys):
        # One key alone takes half the time, most of it in rows that stand in order already.
        order = np.argsort(keys[0], kind="stable") if len(keys) == 1 else np.lexsort(keys[::-1])
        _move_rows(data, name, order, table.taking(order))


def _is_sorted(keys: list[Array]) -> bool:
    """Whether rows stand in order of the keys, the first counting most."""
    if not keys:
        return True
    same = True
    for key in keys[:-1]:
        if bool((key[1:] < key[:-1]).any()):
            return False
        same = same & (key[1:] == key[:-1])
    return not bool((same & (keys[-1][1:] < keys[-1][:-1])).any())


def select_rows(data: dict[str, Table], name: str, rows: Times) -> None:
    """Keep `rows` of a table, in that order; references to a row left out become NA."""
    _move_rows(data, name, rows, data[name].take(rows))


def _move_rows(data: dict[str, Table], name: str, rows: Times, moved_table: Table) -> None:
    moved = np.full(len(data[name]), NA, np.int64)
    moved[rows] = np.arange(len(rows))
    data[name] = moved_table
    for other, table in data.items():
        columns = {column.name: table[column.name] for column in table.schema.columns if column.refs == name}
        followed = {column: _follow(old, moved) for column, old in columns.items()}
        if followed:
            data[other] = Table(table.schema, {**table.columns, **followed})
    for about in _ABOUT.get(name, ()):
        if len(table := data[about]):
            referring = [column.name for column in table.schema.columns if column.refs == name]
            data[about] = table.take(np.all([table[column] != NA for column in referring], axis=0))


def _follow(old: Times, moved: Times) -> Times:
    if not len(moved) or (is_constant(old) and old[0] == NA):
        return old
    return np.where(old == NA, NA, moved[np.where(old == NA, 0, old)])
