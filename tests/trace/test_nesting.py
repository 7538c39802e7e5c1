"""Nested spans and operations in order: the native core and numpy give the same rows, also where spans do not nest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.analyzers.device_time.idleness import idle_replay
from gpuscope.analyzers.profile import call_tree
from gpuscope.native import core
from gpuscope.trace import launch_links
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import HOST_EVENTS, NA

pytestmark = pytest.mark.skipif(core is None, reason="no native core: python hatch_build.py compiles it")

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 2), st.booleans()), max_size=25)
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
    assert (np.frombuffer(core.innermost(four, four, four, np.ones(4, np.bool_), 1, four, four), np.int64) == NA).all()
