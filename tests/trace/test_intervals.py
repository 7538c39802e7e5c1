"""Interval algebra against sets of instants: every function, on generated spans."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.trace import intervals
from gpuscope.trace.intervals import Spans

LIMIT = 40
pairs = st.lists(st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)).map(sorted), max_size=8)


def instants(spans: list[list[int]] | Spans) -> set[int]:
    bounds = zip(*spans, strict=True) if isinstance(spans, Spans) else spans
    return {at for start, end in bounds for at in range(start, end)}


def as_set(spans: list[list[int]]) -> Spans:
    array = np.array(spans, np.int64).reshape(-1, 2)
    return intervals.union(array[:, 0], array[:, 1])


def check(spans: Spans, expected: set[int]) -> None:
    assert instants(spans) == expected
    assert spans.total == len(expected)
    assert (spans.end > spans.start).all()
    assert (spans.start[1:] >= spans.end[:-1]).all()


@given(pairs)
def test_union(a: list[list[int]]) -> None:
    check(as_set(a), instants(a))


@given(pairs, pairs)
def test_intersect_and_subtract_and_join(a: list[list[int]], b: list[list[int]]) -> None:
    check(intervals.intersect(as_set(a), as_set(b)), instants(a) & instants(b))
    check(intervals.subtract(as_set(a), as_set(b)), instants(a) - instants(b))
    check(intervals.join(as_set(a), as_set(b)), instants(a) | instants(b))


@given(pairs, st.integers(0, LIMIT), st.integers(0, LIMIT))
def test_clip_complement_and_measure(a: list[list[int]], x: int, y: int) -> None:
    low, high = sorted((x, y))
    window = set(range(low, high))
    check(intervals.clip(as_set(a), low, high), instants(a) & window)
    check(intervals.complement(as_set(a), low, high), window - instants(a))
    measured = intervals.measure_within(as_set(a), np.array([low]), np.array([high]))
    assert measured.tolist() == [len(instants(a) & window)]


def test_touching_spans_merge() -> None:
    assert as_set([[0, 5], [5, 9]]).start.tolist() == [0]


def test_spans_of_another_integer_type_are_spans() -> None:
    found = intervals.union(np.array([0, 2], np.int32), np.array([2, 3], np.int32))
    assert [column.tolist() for column in found] == [[0], [3]]
    assert found.start.dtype == np.int64
