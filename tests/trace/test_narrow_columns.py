"""Whole numbers kept in 32 bits are given out as if they had 64."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from gpuscope.trace.columns.row_order import order_rows, select_rows
from gpuscope.trace.columns.table import (
    Table,
    concatenated,
    constant,
    looked_up,
    narrowed,
    rows_of_rank,
    stored,
    widened,
)
from gpuscope.trace.schema import NA, SCHEMAS, Kind

OPTIONAL = SCHEMAS["host_events"].column("correlation")
NEEDED = SCHEMAS["host_events"].column("thread")
WIDE = SCHEMAS["device_events"].column("bytes")
MOST = 2**32 - 2


@pytest.mark.parametrize("values", [[0], [1, 2, 3], [NA, 0, MOST], [NA, NA], [MOST, MOST - 1]])
def test_what_fits_is_kept_in_32_bits(values: list[int]) -> None:
    kept = stored(np.array(values, np.int64), OPTIONAL)
    assert kept.dtype == np.uint32
    assert widened(kept).dtype == np.int64
    assert widened(kept).tolist() == values


@pytest.mark.parametrize("values", [[MOST + 1], [-1, 5], [NA, -1], [NA, MOST + 1], [2**40, 1], [NA + 1, 0]])
def test_what_does_not_fit_stays(values: list[int]) -> None:
    kept = stored(np.array(values, np.int64), OPTIONAL)
    assert kept.dtype == np.int64
    assert kept.tolist() == values


def test_what_is_never_absent_is_given_out_as_it_is_kept() -> None:
    assert stored(np.array([-(2**31), 2**31 - 1]), NEEDED).dtype == np.int32
    assert stored(np.array([2**31, 0]), NEEDED).dtype == np.int64


def test_only_columns_declared_so_are_narrow() -> None:
    assert stored(np.array([1, 2]), WIDE).dtype == np.int64


@pytest.mark.parametrize(
    "parts",
    [
        [np.array([1, 2]), constant(NA, 2, np.int64)],
        [np.array([1, NA]), np.array([3, 4])],
        [constant(7, 2, np.int64), np.array([1, NA])],
        [np.array([1, 2]), np.array([-5, 2])],
        [np.array([1, 2]), constant(-1, 1, np.int64), constant(NA, 1, np.int64)],
        [np.array([1, 2]), np.array([2**40, 2])],
    ],
)
def test_joined_with_columns_of_another_width(parts: list[Any]) -> None:
    joined = concatenated([stored(part, OPTIONAL) for part in parts])
    assert widened(joined).tolist() == np.concatenate(parts).tolist()


def host(correlation: list[int], starts: list[int], rank: int | list[int] = 0) -> Table:
    values = {
        "rank": rank,
        "thread": list(range(len(starts))),
        "start": starts,
        "end": starts,
        "category": 1,
        "name": 0,
    }
    return Table.build(SCHEMAS["host_events"], len(starts), {**values, "correlation": np.array(correlation)})


def test_a_table_gives_out_what_was_put_in() -> None:
    built = host([5, NA, 7], [3, 1, 2])
    built.check()
    assert built.columns["correlation"].dtype == np.uint32
    assert built["correlation"].tolist() == [5, NA, 7]
    assert built.at("correlation", np.array([2, 1])).tolist() == [7, NA]
    assert built.at("correlation", slice(1, 3)).tolist() == [NA, 7]
    assert built.known("correlation").tolist() == [True, False, True]
    assert built.take(np.array([1, 2]))["correlation"].tolist() == [NA, 7]
    again = pickle.loads(pickle.dumps(built))
    assert again["correlation"].tolist() == [5, NA, 7]


def test_order_and_references_are_followed() -> None:
    data = {name: Table.empty(schema) for name, schema in SCHEMAS.items()}
    data["host_events"] = host([5, NA, 7], [3, 1, 2])
    device = {"rank": 0, "start": [1, 2, 3], "end": [2, 3, 4], "kind": Kind.COMPUTE, "name": 0}
    data["device_events"] = Table.build(SCHEMAS["device_events"], 3, {**device, "launch": np.array([0, NA, 2])})
    order_rows(data, "host_events")
    assert data["host_events"]["correlation"].tolist() == [NA, 7, 5]
    assert data["device_events"]["launch"].tolist() == [2, NA, 1]
    select_rows(data, "host_events", np.array([2]))
    assert data["device_events"]["launch"].tolist() == [0, NA, NA]
    data["device_events"].check()


@pytest.mark.parametrize(("rank", "asked", "rows"), [(3, 3, (0, 3)), (3, 2, (0, 0)), ([0, 0, 2], 0, (0, 2)),
                                                     ([0, 0, 2], 2, (2, 3)), ([0, 0, 2], 1, (2, 2))])  # fmt: skip
def test_rows_of_a_rank(rank: int | list[int], asked: int, rows: tuple[int, int]) -> None:
    low, high = rows_of_rank(host([1, 2, 3], [1, 2, 3], rank), asked)
    assert high - low == rows[1] - rows[0]
    assert low == rows[0] or low == high


@pytest.mark.parametrize(("values", "dtype"), [([1, -(2**31)], np.int32), ([1, 2**31], np.int64), ([NA, 1], np.int64),
                                               ([], np.int64), ([4, 4], np.int32)])  # fmt: skip
def test_narrowed_copies(values: list[int], dtype: type) -> None:
    found = narrowed(np.array(values, np.int64))
    assert found.dtype == dtype
    assert found.tolist() == values


def test_looked_up_by_parts() -> None:
    places = np.arange(200_000, dtype=np.int32) % 7
    assert np.array_equal(looked_up(np.arange(7) * 3, places), (np.arange(7) * 3)[places])
