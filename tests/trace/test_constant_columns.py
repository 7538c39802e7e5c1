"""Columns of one value take the room of one, and are read as any other."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpuscope.trace.columns.row_order import order_rows
from gpuscope.trace.columns.table import Table, concatenated, constant, is_constant, picked
from gpuscope.trace.schema import NA, SCHEMAS, Kind


def table(rank: int | list[int], starts: list[int]) -> Table:
    values = {"rank": rank, "start": starts, "end": starts, "kind": Kind.COMPUTE, "name": 0}
    return Table.build(SCHEMAS["device_events"], len(starts), values)


def test_one_value_is_stored_once() -> None:
    built = table(3, [5, 1, 4])
    assert is_constant(built["rank"])
    assert built["rank"].tolist() == [3, 3, 3]
    assert built["stream"].tolist() == [NA] * 3
    with pytest.raises(ValueError, match="read-only"):
        built["rank"][0] = 1


@pytest.mark.parametrize("rows", [np.array([2, 0]), np.array([True, False, True])])
def test_rows_taken_of_one_value(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    column = constant(7, 3, np.int64)
    assert is_constant(picked(column, rows))
    assert picked(column, rows).tolist() == [7, 7]
    assert picked(np.arange(3), rows).tolist() == np.arange(3)[rows].tolist()


def test_columns_joined() -> None:
    same = concatenated([constant(1, 2, np.int64), constant(1, 3, np.int64)])
    assert is_constant(same)
    assert same.tolist() == [1] * 5
    assert concatenated([constant(1, 2, np.int64), constant(2, 1, np.int64)]).tolist() == [1, 1, 2]
    assert concatenated([constant(1, 2, np.int64), np.array([1])]).tolist() == [1, 1, 1]
    assert concatenated([np.empty(0, np.int64), constant(4, 2, np.int64)]).tolist() == [4, 4]
    assert len(concatenated([np.empty(0, np.int64), np.empty(0, np.int64)])) == 0


def test_pickled_as_one_value() -> None:
    built = table(3, list(range(100_000)))
    text = pickle.dumps(built, protocol=5)
    assert len(text) < 3 * 8 * 100_000  # of start and end, and little else
    again = pickle.loads(text)
    assert is_constant(again["rank"])
    assert all(np.array_equal(again[name], built[name]) for name in built.columns)


@pytest.mark.parametrize("rank", [0, [1, 0, 1], [0, 1, 1]])
def test_order_is_the_same_with_and_without(rank: int | list[int]) -> None:
    data = {name: Table.empty(schema) for name, schema in SCHEMAS.items()}
    data["device_events"] = table(rank, [5, 1, 4])
    before = [*zip(np.broadcast_to(rank, 3).tolist(), [5, 1, 4], strict=True)]
    data["collectives"] = Table.build(SCHEMAS["collectives"], 2, {"rank": 0, "event": [0, 2], "op": 0})
    order_rows(data, "device_events")
    device, events = data["device_events"], data["collectives"]["event"]
    after = [*zip(device["rank"].tolist(), device["start"].tolist(), strict=True)]
    assert after == sorted(before)
    assert [after[event] for event in events.tolist()] == [before[0], before[2]]
