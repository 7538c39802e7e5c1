"""Reordering and leaving out rows, with every reference to them carried over."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.table import Array, Table, Times, is_constant, stored
from gpuscope.trace.schema import NA

_ABOUT = {"host_events": ("shapes",), "device_events": ("graph_nodes", "small_grids", "graph_dependencies")}
"""Tables that only say more of some rows of another: they go with these."""


def order_rows(data: dict[str, Table], name: str) -> None:
    """Sort a table by its declared order, and follow in every table that refers to it. The table is used up."""
    table = data[name]
    keys = [table[column] for column in table.schema.sort if not is_constant(table.columns[column])]
    if len(table) and not is_sorted(keys):
        # One key alone takes half the time, most of it in rows that stand in order already.
        order = np.argsort(keys[0], kind="stable") if len(keys) == 1 else np.lexsort(keys[::-1])
        del keys
        if len(order) < 2**31:
            order = order.astype(np.int32)
        length = len(table)
        _move_rows(data, name, order, table.taking(order), length)


def is_sorted(keys: list[Array]) -> bool:
    """Whether rows stand in order of the keys, the first counting most."""
    keys = [key for key in keys if not is_constant(key)]
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
    _move_rows(data, name, rows, data[name].take(rows), len(data[name]))


def _move_rows(data: dict[str, Table], name: str, rows: Times, moved_table: Table, length: int) -> None:
    """`rows` of a table of `length` rows are now `moved_table`."""
    data[name] = moved_table
    moved: Times | None = None
    for other, table in data.items():
        followed: dict[str, Array] = {}
        for column in table.schema.columns:
            if column.refs != name or _refers_to_none(table.columns[column.name]):
                continue
            if moved is None:
                moved = np.full(length, NA, np.int64)
                moved[rows] = np.arange(len(rows))
            followed[column.name] = stored(_follow(table[column.name], moved), column)
        if followed:
            data[other] = Table(table.schema, {**table.columns, **followed})
    for about in _ABOUT.get(name, ()):
        if len(table := data[about]):
            referring = [column.name for column in table.schema.columns if column.refs == name]
            data[about] = table.take(np.all([table[column] != NA for column in referring], axis=0))


def _refers_to_none(column: Array) -> bool:
    return not len(column) or (is_constant(column) and int(column[0]) == NA)


def _follow(old: Times, moved: Times) -> Times:
    return np.where(old == NA, NA, moved[np.where(old == NA, 0, old)]) if len(moved) else old
