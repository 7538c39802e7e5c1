"""Columns kept in 32 bits or as one value are read as any other; so are rows asked for part by part."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from gpuscope.analyzers.base.analyzer import longest
from gpuscope.trace.intervals import Spans, complement, join, union
from gpuscope.trace.schema import NA, SCHEMAS, Kind
from gpuscope.trace.table import (
    Table,
    as_slice,
    concatenated,
    constant,
    is_constant,
    looked_up,
    narrowed,
    order_rows,
    picked,
    rows_of_rank,
    rows_where,
    select_rows,
    stored,
    widened,
)

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


@pytest.mark.parametrize(
    ("rank", "asked", "rows"),
    [(3, 3, (0, 3)), (3, 2, (0, 0)), ([0, 0, 2], 0, (0, 2)), ([0, 0, 2], 2, (2, 3)), ([0, 0, 2], 1, (2, 2))],
)
def test_rows_of_a_rank(rank: int | list[int], asked: int, rows: tuple[int, int]) -> None:
    low, high = rows_of_rank(host([1, 2, 3], [1, 2, 3], rank), asked)
    assert high - low == rows[1] - rows[0]
    assert low == rows[0] or low == high


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([1, -(2**31)], np.int32), ([1, 2**31], np.int64), ([NA, 1], np.int64), ([], np.int64), ([4, 4], np.int32)],
)
def test_narrowed_copies(values: list[int], dtype: type) -> None:
    found = narrowed(np.array(values, np.int64))
    assert found.dtype == dtype
    assert found.tolist() == values


def test_looked_up_by_parts() -> None:
    places = np.arange(200_000, dtype=np.int32) % 7
    assert np.array_equal(looked_up(np.arange(7) * 3, places), (np.arange(7) * 3)[places])


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


MANY = 150_000
"""Rows of several parts."""


def test_rows_that_follow_each_other_are_a_slice() -> None:
    assert as_slice(np.arange(5, MANY)) == slice(5, MANY)


@pytest.mark.parametrize("change", [(7, 8), (65_535, 65_536), (65_536, 0), (MANY - 2, MANY - 1)])
def test_rows_out_of_order_or_twice_are_none(change: tuple[int, int]) -> None:
    rows = np.arange(MANY)
    rows[change[0]] = change[1]
    assert as_slice(rows) is rows


def test_rows_are_found_as_over_the_whole_column() -> None:
    column = np.random.default_rng(1).integers(0, 9, MANY)
    found = rows_where(10, MANY - 10, lambda part: column[part] == 4)
    assert found.tolist() == (10 + np.flatnonzero(column[10:-10] == 4)).tolist()
    assert rows_where(3, 3, lambda part: column[part] == 4).tolist() == []


def test_the_longest_spans_are_those_of_one_sort_over_all() -> None:
    lengths = np.random.default_rng(2).integers(1, 50, MANY)
    lengths[100_000] = 99
    start = np.arange(MANY) * 100
    expected = np.argsort(-lengths, kind="stable")[:7]
    assert longest(Spans(start, start + lengths), 7).tolist() == expected.tolist()


def test_disjoint_spans_and_the_gaps_between_them_are_not_copied() -> None:
    start = np.arange(100) * 10
    spans = union(start, start + 5)
    assert np.shares_memory(spans.start, start)
    gaps = complement(spans, 0, int(spans.end[-1]))
    assert np.shares_memory(gaps.end, start)
    assert [*zip(*map(np.ndarray.tolist, gaps), strict=True)][:2] == [(5, 10), (15, 20)]


def test_touching_spans_are_merged_by_a_join_of_one_set_too() -> None:
    touching = Spans(np.array([0, 5, 20]), np.array([5, 9, 30]))
    assert [side.tolist() for side in join(touching)] == [[0, 20], [9, 30]]
    assert [side.tolist() for side in join()] == [[], []]
