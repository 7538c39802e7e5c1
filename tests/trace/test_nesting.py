"""Nested spans, sorted columns, groups, operations in order: the native core and numpy give the same rows and sums,
also where spans do not nest."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from helpers import needs
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.analyzers.device_time.idleness import idle_replay
from gpuscope.analyzers.profile import call_tree, operators_and_ranges
from gpuscope.native import core
from gpuscope.trace import launch_links
from gpuscope.trace.columns import grouped_durations, sorted_search
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import HOST_EVENTS, NA

pytestmark = pytest.mark.skipif(core is None, reason=needs.NATIVE_CORE)

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 2), st.booleans()), max_size=25)
NESTED = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 3), st.sampled_from([0, 1, 2])), max_size=25
)
INSTANTS = st.lists(st.tuples(st.sampled_from([NA, 0, 1, 2, 3]), st.integers(-3, 55)), max_size=15)


def both(module: Any, ask: Any) -> tuple[Any, Any]:
    """The answer with the native core and without."""
    own = ask()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "core", None)
        return own, ask()


def columns(spans: list[tuple[int, int, int, bool]]) -> tuple[Any, ...]:
    start, length, thread, wanted = np.array(spans, np.int64).reshape(-1, 4).T
    return start, start + length, thread, wanted.astype(np.bool_)


@given(SPANS, INSTANTS)
def test_innermost(spans: list[tuple[int, int, int, bool]], instants: list[tuple[int, int]]) -> None:
    start, end, thread, wanted = columns(spans)
    values = {"rank": 0, "thread": thread, "start": start, "end": end, "category": 0, "name": 0}
    host = Table.build(HOST_EVENTS, len(start), values)
    asked, at = np.array(instants, np.int64).reshape(-1, 2).T
    own, expected = both(launch_links, lambda: launch_links.innermost(host, wanted, asked, at))
    assert own.tolist() == expected.tolist()


@given(SPANS)
def test_parents(spans: list[tuple[int, int, int, bool]]) -> None:
    start, end, thread, _ = columns(spans)
    own, expected = both(call_tree, lambda: call_tree.parents(start, end, thread))
    assert own.tolist() == expected.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.integers(0, 2), st.integers(0, 9)), min_size=1),
    st.integers(0, 10),
)
def test_operations_in_order(drawn: list[tuple[int, int, int, int]], low: int) -> None:
    gap, lasts, stream, ahead = np.array(drawn, np.int64).T
    start = np.cumsum(gap)
    nowhere = np.zeros(len(start), np.int64)
    work = idle_replay.Work(start, start + lasts, stream, start - ahead, nowhere, nowhere)
    low = min(low, len(start) - 1)
    waits = idle_replay.inferred_waits(work)
    own, expected = both(
        idle_replay, lambda: idle_replay._run(work, waits, low, len(start), work.issue[low:] - ahead[low:])
    )
    assert [own[0].tolist(), own[1].tolist(), own[2]] == [expected[0].tolist(), expected[1].tolist(), expected[2]]


@pytest.mark.parametrize("in_order", [True, False])
def test_tables_of_many_pieces(in_order: bool) -> None:
    random = np.random.default_rng(7)
    count = 30_000
    start = random.integers(0, 40_000, count)
    start = np.sort(start) if in_order else start
    end, thread, wanted = (
        start + random.integers(0, 60, count),
        random.integers(0, 4, count),
        random.random(count) < 0.6,
    )
    values = {"rank": 0, "thread": thread, "start": start, "end": end, "category": 0, "name": 0}
    host = Table.build(HOST_EVENTS, count, values)
    asked, at = random.integers(-1, 5, 9_000), random.integers(-5, 40_100, 9_000)
    own, expected = both(launch_links, lambda: launch_links.innermost(host, wanted, asked, at))
    assert own.tolist() == expected.tolist()
    own, expected = both(call_tree, lambda: call_tree.parents(start, end, thread, wanted))
    assert own.tolist() == expected.tolist()


@given(
    NESTED, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 2)), max_size=15), st.booleans()
)
def test_sums_over_nested_events(
    spans: list[tuple[int, int, int, int]], launches: list[tuple[int, int, int]], apart: bool
) -> None:
    start, length, name, category = np.array(spans, np.int64).reshape(-1, 4).T
    values = {"rank": 0, "thread": 0, "start": start, "end": start + length, "category": category, "name": name}
    host = Table.build(HOST_EVENTS, len(start), values)
    at, lasts, kind = np.array(sorted(launches), np.int64).reshape(-1, 3).T

    def launched(begin: int) -> call_tree.Launched:
        spent = (np.arange(3)[:, None] == kind) * lasts
        sums = np.zeros((4, len(at) + 1), np.int64)
        sums[:, 1:] = np.cumsum(np.concatenate((spent, np.ones((1, len(at)), np.int64))), axis=1)
        return call_tree.Launched(at, at + begin, at + begin + lasts, sums)

    by = launched(3)
    of_ranges = launched(5) if apart else by
    rows = np.arange(len(start))
    parent = call_tree.parents(start, start + length, np.zeros(len(start), np.int64))

    def added() -> list[Any]:
        sums = operators_and_ranges._Sums(4)
        operators_and_ranges._add_thread(host, sums, rows, parent, by, of_ranges)
        return [column.tolist() for column in sums.columns]

    own, expected = both(operators_and_ranges, added)
    assert own == expected


@given(st.lists(st.integers(-20, 20)), st.lists(st.integers(-25, 25)), st.sampled_from(["left", "right"]))
def test_places_in_a_sorted_column(values: list[int], wanted: list[int], side: Any) -> None:
    column, at = np.sort(np.array(values, np.int64)), np.array(wanted, np.int64)
    own, expected = both(sorted_search, lambda: sorted_search.places(column, at, side))
    assert own.tolist() == expected.tolist() == np.searchsorted(column, at, side).tolist()


@given(
    st.lists(
        st.tuples(st.one_of(st.integers(0, 9), st.integers(0, 2**45)), st.sampled_from([0, 0, 0, 1, 3])), max_size=80
    )
)
def test_statistics_by_group(drawn: list[tuple[int, int]]) -> None:
    durations, group = np.array(drawn, np.int64).reshape(-1, 2).T
    own, expected = both(grouped_durations, lambda: grouped_durations.grouped(durations, group, 5))
    assert [column.tolist() for column in own] == [column.tolist() for column in expected]


def test_a_core_of_other_sources_is_left_out() -> None:
    program = "import sys, types; sys.modules['gpuscope.native._core'] = types.ModuleType('_core')"
    program += "; from gpuscope.native import core; print(core)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None"]


def test_what_is_no_column_is_refused() -> None:
    four = np.zeros(4, np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        core.innermost(four, four[:3], four, np.ones(4, np.bool_), 1, four, four)
    with pytest.raises(ValueError, match="whole items"):
        core.innermost(b"123", four, four, np.ones(4, np.bool_), 1, four, four)
    with pytest.raises(ValueError, match="outside the text"):
        core.shape_texts(b"{}", np.array([[0, 9]], np.uint32))
    with pytest.raises(ValueError, match="on no stream"):
        core.in_order(four + 5, four, four, four, four, four[:1], 0, 0)
    with pytest.raises(ValueError, match="a group is not there"):
        core.group(four, four + 2, np.zeros((5, 2), np.int64))
    host, of = (four, four, four.astype(np.int32), four.astype(np.int8)), (four, four, four, np.zeros(20, np.int64))
    sums = np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(16, np.int64)
    for rows, parent, into in ((four + 4, four, sums), (four, four - 1, sums), (four, four, (*sums[:2], sums[0]))):
        with pytest.raises(ValueError, match="not there"):
            core.add_launched(host, rows, parent, 0, 2, of, of, into)
    with pytest.raises(ValueError, match="four rows of sums"):
        core.add_launched(host, four, four, 0, 2, (*of[:3], four), of, sums)
    assert (np.frombuffer(core.innermost(four, four, four, np.ones(4, np.bool_), 1, four, four), np.int64) == NA).all()
