"""Counters of links on the time axis: means and largest values of cells, beside sums made one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.kineto import call, kernel, write
from helpers.link_counters import export

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.counter_tracks import counter_detail, make_counter, tree
from gpuscope.dashboards.data.open_runs import OpenRun, open_run
from gpuscope.dashboards.data.tracks import Window
from gpuscope.dashboards.data.window_columns import window_columns


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    return open_run("1", str(export(tmp_path_factory.mktemp("counters"))), Options())


@pytest.mark.parametrize("seed", range(4))
def test_cells_hold_the_mean_by_time_and_the_largest_sample(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = np.cumsum(random.integers(1, 90, 200)) * 10
    end = start + random.integers(1, 60, 200) * 10
    value = random.integers(0, 1000, 200)
    track = make_counter(0, "GPU 0", "x", "B", start, end, value)
    ends = np.minimum(end, np.append(start[1:], end[-1:]))
    window = Window(int(start[20]), 6, 240)
    found = counter_detail(track, window)
    seen = 0
    for cell in range(window.cells):
        low, high = int(window.edges[cell]), int(window.edges[cell + 1])
        part = np.maximum(np.minimum(ends, high) - np.maximum(start, low), 0)
        place = np.flatnonzero(found.at == cell)
        assert len(place) == (part.sum() > 0)
        if len(place):
            assert found.mean[place[0]] == pytest.approx((part * value).sum() / part.sum())
            assert found.most[place[0]] == value[part > 0].max()
            seen += 1
    assert seen > 20


def test_a_counter_of_a_gpu_is_with_its_rank_and_a_port_by_itself(run: OpenRun) -> None:
    assert run.events is not None
    labels = [(one.of_gpu, one.place, one.label, one.top) for one in run.events.counters]
    assert labels == [
        (True, "GPU 0", "NVLink TX Responses User Data [Throughput %]", 100.0),
        (False, "NIC mlx5_0", "Bytes sent", 4_000_000.0),
    ]
    nodes = tree(run.events.tracks, None, run.events.counters)
    assert [node["label"] for node in nodes] == ["rank 0", "Network ports"]
    assert nodes[0]["children"][-1]["label"] == "Link counters"
    assert nodes[0]["children"][-1]["children"][0]["rows"] == [len(run.events.tracks)]
    assert tree(run.events.tracks, {3}, run.events.counters) == []


def test_a_window_has_the_mean_in_its_cells(run: OpenRun) -> None:
    """Percent are of 100, whatever was reached; a port's value is of its largest."""
    assert run.events is not None
    events = run.events
    first = len(events.tracks)
    data = window_columns(events, [first, first + 1], 12, 0, 2)
    size = int(np.frombuffer(data[:4], "<u4")[0])
    assert f'"tracks":[[{first},0,' in data[4 : 4 + size].decode()
    peaks = [counter_detail(one, Window(events.first, 12, 1024)) for one in events.counters]
    assert [float(one.mean.max()) for one in peaks] == [90, 4_000_000]
    # One cell straddles two samples of 10 and 90 %.
    cell = peaks[0].at.tolist().index(1_000_000 >> 12)
    assert 10 < peaks[0].mean[cell] < 90
    assert peaks[0].most[cell] == 90


def test_a_run_without_counters_has_no_such_rows(pair: OpenRun) -> None:
    assert pair.events is not None
    assert list(pair.events.counters) == []


def test_parts_of_a_unit_are_shown_in_whole_ones(tmp_path: Path) -> None:
    """torch's counters are kept in thousandths: 62.327 % is not 62,327 %."""
    samples = [
        {"ph": "C", "name": "SM Active (%)", "pid": "GPU 0 Counters", "ts": at, "args": {"": 62.327}} for at in (0, 500)
    ]
    path = write(tmp_path / "rank0.json", call(0, 5, 1), kernel(10, 900, 1), *samples)
    events = open_run("1", str(path), Options()).events
    assert events is not None
    (track,) = events.counters
    assert (track.value.tolist(), track.unit, track.top) == ([62.327, 62.327], "%", 100.0)
