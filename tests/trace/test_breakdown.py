"""The four parts, against counting every nanosecond, and by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.kineto import copy, kernel, write
from hypothesis import given
from hypothesis import strategies as st

import gpuscope
from gpuscope.trace.intervals import Breakdown, Spans, break_down, split, union

span = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
spans = st.lists(span, max_size=10)
Pairs = list[tuple[int, int]]


def merge(pairs: Pairs) -> Spans:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


def by_instant(c: Pairs, n: Pairs, m: Pairs, low: int, high: int) -> Breakdown:
    parts = {"compute": 0, "exposed_communication": 0, "exposed_memory": 0, "idle": 0}
    communication = overlapped = 0
    for at in range(low, high):
        computing, communicating, copying = (any(s <= at < e for s, e in pairs) for pairs in (c, n, m))
        communication += communicating
        overlapped += communicating and computing
        chosen = (computing, communicating, copying, True).index(True)
        parts[list(parts)[chosen]] += 1
    return Breakdown(high - low, *parts.values(), communication, overlapped)


@given(spans, spans, spans, st.integers(0, 40), st.integers(1, 40))
def test_exact_against_brute_force(c: Pairs, n: Pairs, m: Pairs, low: int, length: int) -> None:
    window = (low, low + length)
    (found,) = break_down(merge(c), merge(n), merge(m), [window])
    assert found == by_instant(c, n, m, *window)
    found.check()
    parts = split(merge(c), merge(n), merge(m), window)
    assert [p.total for p in (parts.compute, parts.exposed_communication, parts.exposed_memory, parts.idle)] == list(
        found.parts.values()
    )


def test_by_hand(tmp_path: Path) -> None:
    #      0    10   20   30   40   50   60   70
    # s7   [gemm    ]              [gemm]
    # s13       [nccl     ]
    # copy                [copy]
    path = write(
        tmp_path / "rank0.json",
        kernel(0, 20),
        kernel(10, 20, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", stream=13),
        copy(28, 12, 9),
        kernel(50, 20),
    )
    trace = gpuscope.open_trace(path)
    (lane,) = trace.lanes()
    found = trace.breakdown(lane.rows)
    assert found.window == 70_000
    assert found.parts == {"compute": 40_000, "exposed_communication": 10_000, "exposed_memory": 10_000, "idle": 10_000}
    assert (found.communication, found.overlapped_communication) == (20_000, 10_000)


def test_check_finds_a_wrong_sum() -> None:
    with pytest.raises(ValueError, match="does not sum"):
        Breakdown(10, 5, 1, 1, 1, 1, 0).check()
