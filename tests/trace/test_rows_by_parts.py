"""Rows asked for part by part, rows that follow each other as a slice, and what that spares."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.analyzers.base.analyzer import longest
from gpuscope.trace.columns.table import as_slice, rows_where
from gpuscope.trace.intervals import Spans, complement, join, union

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
