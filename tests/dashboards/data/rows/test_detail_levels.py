"""Level of detail: cells tell exactly how busy they are, wide events are sent by themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gpuscope.dashboards.data.counter_tracks import tree
from gpuscope.dashboards.data.event_details import range_statistics
from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.data.tracks import Track, Window, _depth, block_max, detail, make_track, range_max
from gpuscope.dashboards.data.window_columns import COLUMNS, TILE, window_columns
from gpuscope.trace.intervals import clip, measure_within, union


def track(*spans: tuple[int, int]) -> Track:
    start, end = (np.array([span[i] for span in spans], np.int64) for i in (0, 1))
    rows = np.arange(100, 100 + len(spans))
    return make_track("t", 0, "streams", "stream 7", "device_events", rows, start, end, np.zeros(len(spans), np.int8))


def random_track(seed: int, overlapping: bool) -> Track:
    random = np.random.default_rng(seed)
    gaps, lengths = random.integers(0, 40, 5000), np.exp(random.normal(2, 2, 5000)).astype(np.int64)
    start = np.cumsum(gaps + (0 if overlapping else np.concatenate(([0], lengths[:-1]))))
    return track(*zip(start.tolist(), (start + lengths).tolist(), strict=True))


def test_few_events_are_sent_by_themselves() -> None:
    found = detail(track((0, 10), (20, 30), (40, 50)), Window(5, 0, 40))
    assert found.wide.tolist() == [0, 1, 2]
    assert not len(found.at)


def test_what_only_touches_the_window_is_not_in_it() -> None:
    one = track((0, 10), (20, 30), (40, 50))
    assert detail(one, Window(10, 0, 30)).wide.tolist() == [1]


def test_narrow_events_are_merged_and_a_wide_one_stays() -> None:
    # 1000 events of 1 ns, one every 2 ns, then one of 500 ns; cells of 32 ns: 16 of them run in each cell.
    one = track(*[(2 * i, 2 * i + 1) for i in range(1000)], (2000, 2500))
    found = detail(one, Window(0, 5, 128))
    assert found.wide.tolist() == [1000]
    assert found.at.tolist() == list(range(63))
    assert found.busy.tolist() == [16] * 62 + [8]
    assert found.count.tolist() == [16] * 62 + [9]  # the wide one starts in the last


def test_a_cell_names_its_longest_event() -> None:
    spans = [(100 * i + k * 10, 100 * i + k * 10 + 1 + (k == 3)) for i in range(100) for k in range(5)]
    found = detail(track(*spans), Window(0, 7, 128))
    assert set((found.place % 5).tolist()) == {3}


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_busy_time_is_exact_to_the_nanosecond(seed: int, overlapping: bool) -> None:
    """Against unions of all events: what the wide ones cover and what the cells add is what runs, in every cell."""
    one = random_track(seed, overlapping)
    every = union(one.start, one.end)
    whole = int(one.reach[-1])
    for origin, level, cells in (
        (0, (whole // 300).bit_length(), 512),
        (whole // 3, 5, 512),
        (whole // 2 + 7, 2, 2048),
    ):
        window = Window(origin, level, cells)
        edges = window.edges
        found = detail(one, window)
        wide = union(one.start[found.wide], one.end[found.wide])
        total = measure_within(wide, edges[:-1], edges[1:])
        total[found.at] += found.busy
        assert total.tolist() == measure_within(every, edges[:-1], edges[1:]).tolist()
        assert one.busy(window.span) == measure_within(clip(every, *window.span), *np.array(window.span)[:, None])[0]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 1000])
def test_maxima_by_blocks_are_those_of_the_values(length: int) -> None:
    random = np.random.default_rng(length)
    values = random.integers(0, 10_000, length)
    for cuts in (np.array([0]), np.unique(random.integers(0, length, 9)), np.arange(length)):
        until = np.append(cuts[1:], length)
        expected = [int(values[low:high].max()) for low, high in zip(cuts.tolist(), until.tolist(), strict=True)]
        assert range_max(values, block_max(values), cuts, until).tolist() == expected


def test_depth_is_how_many_ranges_are_open_around() -> None:
    # outer [0, 100) holds a [0, 40) and b [40, 90); a holds an instant at 10; b ends where nothing else begins.
    start, end = np.array([0, 0, 40, 10, 100]), np.array([100, 40, 90, 10, 120])
    assert _depth(start, end).tolist() == [0, 1, 1, 2, 0]


def test_columns_hold_what_their_header_says(pair: OpenRun) -> None:
    events = pair.events
    assert events is not None
    level = 12
    width = TILE << level
    last = (events.last - events.first) // width + 1
    data = window_columns(events, range(len(events.tracks)), level, -1, last)
    size = int(np.frombuffer(data, "<u4", 1)[0])
    header = json.loads(data[4 : 4 + size])
    at = 4 + size
    assert at % 8 == 0
    columns = {}
    for name, kind in COLUMNS:
        length = sum(one[1 if name in ("start", "end", "row", "name", "look") else 2] for one in header["tracks"])
        columns[name] = np.frombuffer(data, kind, length, at)
        at += -(-columns[name].nbytes // 8) * 8
    assert at == len(data)
    # The run is small: every event is sent by itself.
    assert len(columns["start"]) == sum(map(len, events.tracks))
    assert columns["start"].min() == events.first - events.origin
    assert {header["names"][str(code)] for code in columns["name"]} >= {"aten::mm", "step 0", "step 1"}


def test_the_tree_holds_each_track_once(pair: OpenRun, slow_rank: OpenRun) -> None:
    for run in (pair, slow_rank):
        assert run.events is not None
        nodes = tree(run.events.tracks, None)
        seen: list[int] = []
        while nodes:
            node = nodes.pop()
            seen += node["rows"]
            nodes += node["children"]
        assert sorted(seen) == list(range(len(run.events.tracks)))


def test_a_closed_rank_shows_its_two_busiest_streams(pair: OpenRun, slow_rank: OpenRun) -> None:
    for run in (pair, slow_rank):
        assert run.events is not None
        tracks = run.events.tracks
        for node in (one for one in tree(tracks, None) if one["id"].startswith("r")):
            own = [
                place
                for place, track in enumerate(tracks)
                if track.group == "streams" and f"r{track.rank}" == node["id"]
            ]
            busiest = sorted(own, key=lambda place: -int(tracks[place].covered[-1]))
            assert [node["summary"], node["beside"]] == [*busiest, -1][:2]


def test_a_range_is_broken_down_by_the_definitions(pair: OpenRun) -> None:
    events = pair.events
    assert events is not None
    # The first step on rank 0: compute 300 µs, all-reduce 200 µs, 120 µs nothing, compute 50 µs of [50, 770).
    found = range_statistics(events, (events.first + 50_000, events.first + 770_000), {0})
    ((rank, parts),) = found.ranks
    assert rank == 0
    assert (parts.compute, parts.exposed_communication, parts.exposed_memory, parts.idle) == (
        350_000,
        200_000,
        0,
        170_000,
    )
    assert [(one.count, one.time) for one in found.kernels] == [(1, 300_000), (1, 200_000), (1, 50_000)]
    assert range_statistics(events, (events.last + 1, events.last + 9), None).events == 0
