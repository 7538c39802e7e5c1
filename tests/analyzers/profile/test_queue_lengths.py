"""The length of a launch queue over time, against a walk from event to event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.analyzers.profile.launch_queue import BINS, _queue

OPERATIONS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), min_size=2, max_size=40)


def walked(issue: list[int], start: list[int], begin: int, width: int) -> tuple[int, int, list[int]]:
    """The most that is queued, for how long nothing is, and the most in each bin."""
    events = sorted([(at, 1) for at in issue] + [(at, 0) for at in start])
    most = empty = length = 0
    bins = [0] * BINS
    last = events[0][0]
    edges = [begin + width * place for place in range(BINS + 1)]
    states: list[tuple[int, int]] = []
    for at, issued in events:
        empty += (at - last) * (length == 0)
        length += 1 if issued else -1
        most, last = max(most, length), at
        states.append((at, length))
    for place in range(BINS):
        before = [length for at, length in states if at <= edges[place]]
        inside = [length for at, length in states if edges[place] < at <= edges[place + 1]]
        bins[place] = max([before[-1] if before else 0, *inside])
    return most, empty, bins


@given(OPERATIONS)
def test_longest_and_empty(operations: list[tuple[int, int]]) -> None:
    start = sorted(at + waits for at, waits in operations)
    issue = sorted(at for at, _ in operations)
    window = (min(issue), max(start) + 1)
    view: Any = SimpleNamespace(window=window, lane=SimpleNamespace(rank=0, device=0))
    found = _queue(view, 7, np.array(issue, np.int64), np.array(start, np.int64))
    most, empty, bins = walked(issue, start, window[0], found["bin_ns"])
    assert found["max"] == most
    assert found["empty_frac"] == pytest.approx(empty / max(start[-1] - issue[0], 1))
    assert found["max_by_bin"] == bins
