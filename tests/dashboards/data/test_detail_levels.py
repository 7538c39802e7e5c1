"""Level of detail: a bounded number of marks, no event lost, every event covered."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.dashboards.data.detail_levels import count_in, marks, range_max
from gpuscope.dashboards.data.tracks import Track, _depth, block_max, make_track


def track(*spans: tuple[int, int]) -> Track:
    start, end = (np.array([span[i] for span in spans], np.int64) for i in (0, 1))
    rows = np.arange(100, 100 + len(spans))
    return make_track("t", 0, "streams", "stream 7", "device_events", rows, start, end, np.zeros(len(spans), np.int8))


def test_few_events_are_marks_of_their_own() -> None:
    (found,) = marks([track((0, 10), (20, 30), (40, 50))], (5, 45))
    assert found.start.tolist() == [0, 20, 40]
    assert found.end.tolist() == [10, 30, 50]
    assert found.count.tolist() == [1, 1, 1]


def test_what_only_touches_the_window_is_not_in_it() -> None:
    # [0, 10) ends where the window starts, [40, 50) starts where it ends.
    (found,) = marks([track((0, 10), (20, 30), (40, 50))], (10, 40))
    assert found.start.tolist() == [20]


def test_narrow_neighbours_share_a_mark_and_wide_events_keep_their_own() -> None:
    # 1000 events of 1 ns, one every 2 ns, then one of 500 ns: at most 20 marks for a window of 2500 ns.
    narrow = [(2 * i, 2 * i + 1) for i in range(1000)]
    (found,) = marks([track(*narrow, (2000, 2500))], (0, 2500), limit=20)
    assert len(found) <= 20
    assert found.count.sum() == 1001
    wide = found.end - found.start == 500
    assert found.count[wide].tolist() == [1]
    assert found.place[wide].tolist() == [1000]
    assert found.start[found.count > 1][0] == 0  # a merged mark starts where its first event does


def test_a_merged_mark_names_its_longest_event() -> None:
    (found,) = marks([track((0, 1), (2, 5), (6, 7), (8, 9))], (0, 1_000_000), limit=1)
    assert (found.start.tolist(), found.end.tolist(), found.count.tolist()) == ([0], [9], [4])
    assert found.track.rows[found.place].tolist() == [101]


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_every_event_in_the_window_is_in_one_mark_and_covered_by_it(seed: int, overlapping: bool) -> None:
    random = np.random.default_rng(seed)
    gaps, lengths = random.integers(0, 40, 5000), np.exp(random.normal(2, 2, 5000)).astype(np.int64)
    start = np.cumsum(gaps + (0 if overlapping else np.concatenate(([0], lengths[:-1]))))
    spans = list(zip(start.tolist(), (start + lengths).tolist(), strict=True))
    one = track(*spans)
    for window in ((0, int(one.reach[-1])), (int(start[1000]), int(start[1400])), (int(start[7]) + 1, int(start[9]))):
        inside = [(s, e) for s, e in spans if (e > window[0] or s >= window[0]) and s < window[1]]
        (found,) = marks([one], window, limit=300)
        assert count_in(one, window) == int(found.count.sum()) == len(inside)
        assert len(found) <= 300
        covered = [any(a <= s and e <= b for a, b in zip(found.start, found.end, strict=True)) for s, e in inside[:200]]
        assert all(covered)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 1000])
def test_maxima_by_blocks_are_those_of_the_values(length: int) -> None:
    random = np.random.default_rng(length)
    values = random.integers(0, 10_000, length)
    for cuts in (np.array([0]), np.unique(random.integers(0, length, 9)), np.arange(length)):
        until = [*cuts[1:].tolist(), length]
        expected = [int(values[low:high].max()) for low, high in zip(cuts.tolist(), until, strict=True)]
        assert range_max(values, block_max(values), cuts, length).tolist() == expected


def test_the_limit_holds_over_many_tracks() -> None:
    every = [track(*((10 * i + k, 10 * i + k + 5) for i in range(3000))) for k in range(10)]
    found = marks(every, (0, 30_000), limit=1000)
    assert sum(map(len, found)) <= 1000
    assert [int(one.count.sum()) for one in found] == [3000] * 10


def test_depth_is_how_many_ranges_are_open_around() -> None:
    # outer [0, 100) holds a [0, 40) and b [40, 90); a holds an instant at 10; b ends where nothing else begins.
    start, end = np.array([0, 0, 40, 10, 100]), np.array([100, 40, 90, 10, 120])
    assert _depth(start, end).tolist() == [0, 1, 1, 2, 0]
