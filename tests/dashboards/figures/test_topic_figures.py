"""Figures of communication, pipeline, memory, advice and history: what is drawn, worked out by hand."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("plotly")

from helpers.analysed import report

from gpuscope.analyzers.comparison.compare import StoredRun, TrendPoint, trend
from gpuscope.analyzers.what_if_changes import BucketSize, LinkSpeed, RemovedSyncs, ReplacedRank
from gpuscope.dashboards.data.counter_tracks import Segment
from gpuscope.dashboards.data.events import chosen
from gpuscope.dashboards.figures import gains_figure, of_results, steps_figure
from gpuscope.schema.document import CollectiveEntry
from gpuscope.schema.nccl_sections import BandwidthEntry, FitEntry, TrafficEntry
from gpuscope.schema.provenance import PipelineComputation

SCRIPT = "<script>alert(1)</script>"


def measured(nbytes: int, busbw: float, **more: Any) -> BandwidthEntry:
    row = {
        "tool": "trace",
        "op": "all_reduce",
        "group": None,
        "bytes": nbytes,
        "group_size": 2,
        "variant": None,
        "count": 3,
        "dur_ns": 1000,
        "algbw_gbps": busbw,
        "busbw_gbps": busbw,
        "lower_bound": False,
        "algorithm": None,
        "protocol": None,
        "channels": None,
        "peak_gbps": None,
        "link": None,
        "peak_basis": "",
        "efficiency_frac": None,
        "wrong": None,
        "size_basis": None,
    }
    return cast(BandwidthEntry, row | more)


def test_bandwidth_with_its_fit_and_the_peak() -> None:
    """α = 1000 ns and B = 10 GB/s: 10 000 B take 2000 ns, 5 GB/s (the factor of two ranks is 1)."""
    fit = cast(
        FitEntry,
        {
            "tool": "trace",
            "op": "all_reduce",
            "group": None,
            "group_size": 2,
            "sizes": 2,
            "alpha_ns": 1000.0,
            "alpha_error_ns": 1.0,
            "busbw_gbps": 10.0,
            "busbw_error_gbps": 1.0,
            "error_frac": 0.0,
            "why": "",
        },
    )
    rows = [measured(10_000, 5.0, peak_gbps=25.0, link="PCIe"), measured(100, 0.1, lower_bound=True)]
    fig = gains_figure.against_size(rows, [fit], dark=False)
    points, curve, peak = fig.data
    assert list(points.x) == [100, 10_000]
    assert [symbol >= gains_figure.OPEN for symbol in points.marker.symbol] == [True, False]
    assert curve.y[-1] == pytest.approx(5.0)
    assert list(peak.y) == [25.0, 25.0]


def test_names_are_text() -> None:
    figures = [
        gains_figure.against_size([measured(1, 1.0, group=SCRIPT)], [], dark=True),
        of_results.bars([collective(group=SCRIPT)], dark=True),
        gains_figure.steps(5, [gains_figure.Step(SCRIPT, 4, 3, 5)], dark=True),
        gains_figure.segments([Segment("1", [(1, 0, SCRIPT)])], dark=True),
    ]
    for fig in figures:
        assert "<script" not in str(fig.to_plotly_json())
        assert "&lt;script" in str(fig.to_plotly_json())


def collective(**more: Any) -> CollectiveEntry:
    row = {
        "op": "all_reduce",
        "group": None,
        "count": 1,
        "bytes": 1,
        "dur_ns": 300,
        "wait_ns": 200,
        "transfer_ns": 50,
        "algbw_gbps": None,
        "busbw_gbps": None,
    }
    return cast(CollectiveEntry, row | more)


def test_waiting_beside_transferring() -> None:
    """What is not matched is neither: it stands alone."""
    fig = of_results.bars([collective(), collective(op="send", wait_ns=None, dur_ns=70)], dark=False)
    assert {bar.name.split(":")[0]: list(bar.x) for bar in fig.data} == {
        "transfer": [100, 0],
        "wait for the last rank": [200, 0],
        "not matched": [0, 70],
    }


@pytest.mark.parametrize(("sizes", "cells"), [((8, 16), [[None, 8], [16, None]]), ((8, None), [[None, 1], [2, None]])])
def test_traffic_by_bytes_or_where_these_are_missing_by_time(sizes: Any, cells: Any) -> None:
    rows = [
        cast(TrafficEntry, {"rank": 0, "peer": 5, "count": 1, "bytes": sizes[0], "dur_ns": 1}),
        cast(TrafficEntry, {"rank": 5, "peer": 0, "count": 1, "bytes": sizes[1], "dur_ns": 2}),
    ]
    [heat] = of_results.matrix(rows, dark=False).data
    assert [list(row) for row in heat.z] == cells
    assert list(heat.x) == ["0", "5"]


def test_a_computation_stands_where_it_ran() -> None:
    own = {"rank": 0, "micro_batch": 0, "model_chunk": 0}
    computations = [
        cast(PipelineComputation, {"stage": 0, "kind": "forward", "start_ns": 1000, "dur_ns": 300, **own}),
        cast(PipelineComputation, {"stage": 1, "kind": "backward", "start_ns": 1500, "dur_ns": 400, **own}),
    ]
    fig = of_results.schedule(computations, 900, dark=False)
    assert [(bar.name, list(bar.base), list(bar.x), list(bar.y)) for bar in fig.data] == [
        ("forward", [0], [300], ["stage 0"]),
        ("backward", [500], [400], ["stage 1"]),
    ]


def test_holes_of_a_segment() -> None:
    """2 MiB used, 1 MiB free, 1 MiB used: the hole is at 2."""
    mib = 1 << 20
    blocks = [(2 * mib, 0, "f"), (mib, 2, ""), (mib, 0, "g")]
    used, free = gains_figure.segments([Segment("1", blocks)], dark=False).data
    assert (list(used.base), list(used.x)) == ([0, 3], [2, 1])
    assert (free.name, list(free.base), list(free.x)) == ("free", [2], [1])


def test_switches_of_the_address() -> None:
    state = {"bucket": "3", "link": "2", "workers": "0", "micro": "99", "without": "syncs,nonsense", "replaced": "7"}
    assert [change for _, change in chosen(state)] == [
        BucketSize(25 << 20, 25 << 20),
        LinkSpeed(bandwidth=2),
        RemovedSyncs(),
        ReplacedRank(7),
    ]


def test_a_regression_is_marked_in_the_history(healthy_and_slow: tuple[Any, Any]) -> None:
    good, bad = healthy_and_slow
    runs = [StoredRun(n, f"2026-01-0{n}T00:00:00+00:00", one) for n, one in enumerate((good, good, bad, good), 1)]
    points = trend(runs)
    assert [point.result for point in points] == [None, "neutral", "regression", "improvement"]
    fig = steps_figure.trend(points, dark=False)
    marked = {trace.name: list(trace.x) for trace in fig.data if trace.mode == "markers"}
    assert marked == {"regression": [2], "improvement": [3], "neutral": [1], "first": [0]}


@pytest.fixture
def healthy_and_slow(samples: Any) -> tuple[Any, Any]:

    return tuple(report(samples / name) for name in ("ddp_healthy", "ddp_slow_rank"))  # type: ignore[return-value]


def test_intervals_of_the_history() -> None:
    fig = steps_figure.trend([TrendPoint(4, "2026-01-01T00:00:00", 100, 90, 130, None, None)], dark=False)
    marks = fig.data[1]
    assert (marks.error_y.array[0], marks.error_y.arrayminus[0]) == (30, 10)
    assert np.isclose(marks.y[0], 100)
