"""Every compiled function gives what its twin in Python gives, also for spans that do not nest; and refuses what is no
column."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import needs
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.native import compiled, core, fallback
from gpuscope.trace.schema import NA, Category

compiled_here = pytest.mark.skipif(core is None, reason=needs.NATIVE_CORE)

Draw = Callable[[st.SearchStrategy[Any]], Any]
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 2), st.booleans()), max_size=25)
ANY_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)
"""Also spans that end before they start."""
APART = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=8)
INSTANTS = st.lists(st.tuples(st.sampled_from([NA, 0, 1, 2, 3]), st.integers(-3, 55)), max_size=15)
DURATION = st.one_of(st.integers(0, 9), st.integers(0, 2**45))


def columns(rows: list[tuple[int, ...]], width: int) -> list[Any]:
    return list(np.array(rows, np.int64).reshape(-1, width).T)


def apart(draw: Draw) -> list[Any]:
    bounds = np.cumsum(np.array(draw(APART), np.int64).reshape(-1))
    return [bounds[::2], bounds[1::2]]


def spans(draw: Draw) -> list[Any]:
    start, length, thread, wanted = columns(draw(SPANS), 4)
    width = draw(st.sampled_from([np.int32, np.int64]))
    return [start, start + length, thread.astype(width), wanted.astype(np.bool_)]


def many_spans(seed: int) -> list[Any]:
    """More than the core takes in one piece, with pauses, in order of start where the seed is even."""
    random = np.random.default_rng(seed)
    start = random.integers(0, 40_000, 30_000)
    start += start // 1_000 * 100
    start = start if seed % 2 else np.sort(start)
    end = start + random.integers(0, 60, len(start))
    return [start, end, random.integers(0, 4, len(start)), random.random(len(start)) < 0.6]


def with_length(found: list[Any]) -> list[Any]:
    start, end, thread, wanted = found
    return [start, end, thread, wanted & (end > start)]


def operations(draw: Draw) -> list[Any]:
    row = st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 2), st.integers(-1, 30))
    drawn = draw(st.lists(row, min_size=1, max_size=25))
    issue, lasts, stream, wait = columns(drawn, 4)
    low = draw(st.integers(0, 10))
    earlier = np.array([draw(st.integers(0, 40)) for _ in range(low)], np.int64)
    waits = np.where(wait < 0, NA, np.minimum(wait, low + np.arange(len(wait)) - 1))  # only for what came before
    waits[waits < 0] = NA
    free = np.array([draw(st.sampled_from([NA, 0, 25])) for _ in range(3)], np.int64)
    return [stream, issue, waits, lasts, np.concatenate((earlier, issue)), free, low, draw(st.integers(0, 40))]


def graphs(draw: Draw) -> list[Any]:
    """Also with nodes that wait for each other."""
    count = draw(st.integers(1, 30))
    node = st.integers(0, count - 1)
    src, dst, lag = columns(draw(st.lists(st.tuples(node, node, st.integers(-50, 500)), max_size=60)), 3)
    if draw(st.booleans()):
        forward = src < dst
        src, dst, lag = src[forward], dst[forward], lag[forward]
    dur, earliest = columns([(draw(st.integers(0, 900)), draw(st.integers(0, 5_000))) for _ in range(count)], 2)
    return [src, dst, lag, dur, earliest]


def launched(draw: Draw) -> tuple[Any, ...]:
    device = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 2)), max_size=15)
    at, lasts, kind = columns(sorted(draw(device)), 3)
    sums = np.zeros((4, len(at) + 1), np.int64)
    each = np.concatenate(((np.arange(3)[:, None] == kind) * lasts, np.ones((1, len(at)), np.int64)))
    sums[:, 1:] = np.cumsum(each, axis=1)
    return at, at + 3, at + 3 + lasts, sums


def launches(draw: Draw) -> list[Any]:
    row = st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 3), st.sampled_from(list(Category)[:3]))
    start, length, name, category = columns(draw(st.lists(row, max_size=25)), 4)
    by = launched(draw)
    of_ranges = launched(draw) if draw(st.booleans()) else by
    host = start, start + length, name.astype(np.int32), category.astype(np.int8)
    parent = fallback.parents(start, start + length, np.zeros_like(start), length > 0)
    into = np.zeros(8, np.int64), np.zeros(8, np.int64), np.zeros((8, 8), np.int64)
    return [host, np.arange(len(start)), parent, int(Category.OP), int(Category.ANNOTATION), by, of_ranges, into]


def sorted_columns(draw: Draw) -> list[Any]:
    values, wanted = (np.array(draw(st.lists(st.integers(-25, 25))), np.int64) for _ in range(2))
    return [np.sort(values), wanted, draw(st.sampled_from(["left", "right"]))]


def in_groups(draw: Draw) -> list[Any]:
    row = st.tuples(DURATION, st.sampled_from([0, 0, 0, 1, 3]))
    return [*columns(draw(st.lists(row, max_size=80)), 2), 5]


def asked_in(draw: Draw) -> list[Any]:
    return [*spans(draw), *columns(draw(INSTANTS), 2)]


ARGUMENTS: dict[str, Callable[[Draw], list[Any]]] = {
    "union": lambda draw: columns(draw(ANY_SPANS), 2),
    "intersect": lambda draw: [*apart(draw), *apart(draw)],
    "places": sorted_columns,
    "group": in_groups,
    "parents": lambda draw: with_length(spans(draw)),
    "innermost": asked_in,
    "in_order": operations,
    "longest_path": graphs,
    "add_launched": launches,
}
NO_RESULT = {"release_memory", "table_columns", "table_pages"}
"""The first has none; the others are against SQLite: tests/sources/nsys/test_bulk_columns.py."""


def public(module: Any) -> set[str]:
    return {
        name
        for name, found in inspect.getmembers(module, inspect.isfunction)
        if found.__module__ == module.__name__ and not name.startswith("_")
    }


def test_every_function_has_a_twin_and_is_compared() -> None:
    assert public(compiled) == set(ARGUMENTS) | NO_RESULT
    assert public(fallback) == public(compiled) | {"group_parts", "note_end", "note_issue"}  # tests/runtime/record/gloo


def answer(module: Any, name: str, arguments: list[Any]) -> Any:
    """What a function gives or adds to, as lists."""
    own = [
        tuple(column.copy() for column in one) if name == "add_launched" and place == 7 else one
        for place, one in enumerate(arguments)
    ]
    found = getattr(module, name)(*own)
    found = own[7] if found is None else found
    return [one if isinstance(one, int) else one.tolist() for one in (found if isinstance(found, tuple) else (found,))]


@compiled_here
@pytest.mark.parametrize("name", ARGUMENTS)
@given(st.data())
def test_twins_agree(name: str, data: st.DataObject) -> None:
    arguments = ARGUMENTS[name](data.draw)
    found, expected = (answer(module, name, arguments) for module in (compiled, fallback))
    if name == "longest_path" and found[-1] < len(arguments[3]):
        found, expected = found[-1:], expected[-1:]  # in a circle there are no times
    assert found == expected


@compiled_here
@pytest.mark.parametrize("seed", [6, 7])
def test_twins_agree_on_tables_of_many_pieces(seed: int) -> None:
    table = many_spans(seed)
    random = np.random.default_rng(seed)
    at = [random.integers(-1, 5, 9_000), random.integers(-5, 44_100, 9_000)]
    late = [at[0], at[1] // 10 + 39_600]  # what ended before is passed over
    for name, arguments in (
        ("innermost", [*table, *at]),
        ("innermost", [*table, *late]),
        ("parents", with_length(table)),
    ):
        assert answer(compiled, name, arguments) == answer(fallback, name, arguments), name


@pytest.mark.parametrize("environment", [{}, {"GPUSCOPE_NATIVE": "0"}], ids=["of other sources", "not wanted"])
def test_a_core_that_does_not_fit_is_left_out(environment: dict[str, str]) -> None:
    program = "import sys, types; sys.modules['gpuscope.native._core'] = types.ModuleType('_core')"
    program += "; from gpuscope import native; print(native.core, native.COMPILED, native.union.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    assert done.stdout.split() == ["None", "False", "gpuscope.native.fallback"]


@compiled_here
def test_what_is_no_column_is_refused() -> None:
    four = np.zeros(4, np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        core.innermost(four, four[:3], four, np.ones(4, np.bool_), 1, four, four)
    for threads, asked in ((four[:3], four), (four[:3].astype(np.int32), four), (four, four[:1].astype(np.int32))):
        with pytest.raises(ValueError, match="differ in length"):
            core.innermost(four, four, threads, np.ones(4, np.bool_), 1, asked, four)
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
    one = four[:1]
    for src, lag in ((one + 1, one), (one - 1, one), (one, one[:0])):
        with pytest.raises(ValueError, match="not there"):
            core.longest_path(src, one, lag, one, one.copy(), one.copy())
    assert (np.frombuffer(core.innermost(four, four, four, np.ones(4, np.bool_), 1, four, four), np.int64) == NA).all()
