"""Statistics by group: at once and part by part, against a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.trace.table import Grouped, grouped, grouped_parts

ROWS = st.lists(
    st.tuples(st.one_of(st.integers(0, 20), st.integers(2**28, 2**29 - 1), st.integers(0, 2**61)), st.integers(0, 3)),
    max_size=30,
)
GROUPS = 4


def plain(rows: list[tuple[int, int]]) -> list[tuple[int, int, int, int, int]]:
    found = []
    for group in range(GROUPS):
        own = sorted(duration for duration, of in rows if of == group)
        low, high = (own[(len(own) - 1) // 2], own[len(own) // 2]) if own else (0, 0)
        wrapped = int((np.array([low]) + np.array([high]))[0]) // 2
        total = int(np.sum(np.array(own, np.int64)))
        found.append((len(own), total, own[0] if own else 0, wrapped, own[-1] if own else 0))
    return found


def rows_of(found: Grouped) -> list[tuple[int, ...]]:
    return [tuple(row) for row in np.stack(found, axis=1).tolist()]


@given(ROWS, st.integers(0, 30))
def test_every_statistic(rows: list[tuple[int, int]], cut: int) -> None:
    durations, group = np.array(rows, np.int64).reshape(-1, 2).T
    pieces = [(durations[:cut], group[:cut]), (durations[cut:], group[cut:])]
    assert rows_of(grouped(durations, group, GROUPS)) == plain(rows)
    assert rows_of(grouped_parts(lambda: pieces, GROUPS)) == plain(rows)
