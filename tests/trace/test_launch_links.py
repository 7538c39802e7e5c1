"""Launches found by a list of ids, and by sorting where ids are shared or lie far apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.trace import launch_links
from gpuscope.trace.columns.row_order import order_rows
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import NA, SCHEMAS, Category, Kind

IDS = st.one_of(st.integers(1, 12), st.just(NA))
CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), IDS, st.booleans()), max_size=20)
KERNELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), IDS), max_size=20)


def tables(
    calls: list[tuple[int, int, int, bool]], kernels: list[tuple[int, int, int]], scale: int
) -> tuple[Table, Table]:
    data = {name: Table.empty(schema) for name, schema in SCHEMAS.items()}

    def spread(ids: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([one if one == NA else one * scale for one in ids], np.int64)

    start = [own[1] for own in calls]
    data["host_events"] = Table.build(SCHEMAS["host_events"], len(calls), {
        "rank": [own[0] for own in calls], "thread": 0, "start": start, "end": start, "name": 0,
        "category": [Category.RUNTIME if own[3] else Category.OP for own in calls],
        "correlation": spread([own[2] for own in calls]),
    })  # fmt: skip
    start = [own[1] for own in kernels]
    data["device_events"] = Table.build(SCHEMAS["device_events"], len(kernels), {
        "rank": [own[0] for own in kernels], "start": start, "end": start, "kind": Kind.COMPUTE, "name": 0,
        "correlation": spread([own[2] for own in kernels]),
    })  # fmt: skip
    order_rows(data, "host_events")
    order_rows(data, "device_events")
    return data["device_events"], data["host_events"]


@given(CALLS, KERNELS, st.sampled_from([1, 2**20, 2**40]))
def test_both_ways_find_the_same(
    calls: list[tuple[int, int, int, bool]], kernels: list[tuple[int, int, int]], scale: int
) -> None:
    device, host = tables(calls, kernels, scale)
    found, shared = launch_links.launches(device, host)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_links, "_listed_launches", lambda *_: None)
        sorted_found, sorted_shared = launch_links.launches(device, host)
    assert found.tolist() == sorted_found.tolist()
    assert shared == sorted_shared


def test_ids_of_one_recording_are_listed() -> None:
    device, host = tables([(0, at, at, True) for at in range(1, 9)], [(0, at, 9 - at) for at in range(1, 9)], 1)
    assert launch_links._listed_launches(device, host) is not None
    assert launch_links.launches(device, host)[0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
