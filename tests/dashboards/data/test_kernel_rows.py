"""Kernels by ranks, steps and window; sequences that a stream repeats; memory by what allocated it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.kineto import call, kernel, write
from helpers.pair import SCRIPT

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.counter_tracks import memory_over_time
from gpuscope.dashboards.data.events import kernel_times, sequences
from gpuscope.dashboards.data.open_runs import OpenRun, kernel_rows, open_run
from gpuscope.dashboards.state import parse


def test_rows_of_ranks_and_steps(pair: OpenRun) -> None:
    """300 µs on rank 0 and 400 on rank 1, in each of two steps."""
    whole, one = (
        next(row for row in kernel_rows(pair, parse(query)) if row["name"] == SCRIPT)
        for query in ("", "?ranks=1&steps=1")
    )
    assert [whole[key] for key in ("count", "dur_ns", "min_ns", "median_ns", "max_ns")] == [
        4,
        1_400_000,
        300_000,
        400_000,
        400_000,
    ]
    assert [one[key] for key in ("count", "dur_ns", "min_ns", "median_ns", "max_ns")] == [1, *[400_000] * 4]
    assert one["category"] == whole["category"]
    assert kernel_rows(pair, parse("?ranks=7")) == []


def test_each_ranks_part(pair: OpenRun) -> None:
    row = next(row for row in kernel_rows(pair, parse("")) if row["name"] == SCRIPT)
    assert row["by_rank"] == {0: 600_000, 1: 800_000}
    assert all(sum(one["by_rank"].values()) == one["dur_ns"] for one in kernel_rows(pair, parse("?steps=1")))


def test_rows_of_a_window(pair: OpenRun) -> None:
    """What starts in it counts, whole; the window alone, without its switch, changes nothing."""
    assert pair.events is not None
    track = next(one for one in pair.events.tracks if one.group == "streams" and one.rank == 1)
    low, high = int(track.start[1]), int(track.start[2]) + 1
    rows = kernel_rows(pair, parse(f"?ranks=1&from={low}&to={high}&within=window"))
    streams = [one for one in pair.events.tracks if one.group == "streams" and one.rank == 1]
    starting = sum(int(((one.start >= low) & (one.start < high)).sum()) for one in streams)
    assert sum(row["count"] for row in rows) == starting > 0
    assert kernel_rows(pair, parse(f"?from={low}&to={high}")) == kernel_rows(pair, parse(""))


def test_times_by_name_and_rank() -> None:
    """Against sums made one by one."""
    random = np.random.default_rng(3)
    names, lengths, ranks = random.integers(0, 9, 500), random.integers(1, 1000, 500), random.integers(0, 4, 500) * 3
    found = kernel_times(names, lengths, ranks)
    for place, code in enumerate(found.codes.tolist()):
        own = np.sort(lengths[names == code])
        assert [found.count[place], found.total[place], found.least[place], found.median[place], found.most[place]] == [
            len(own),
            own.sum(),
            own[0],
            own[len(own) // 2],
            own[-1],
        ]
        for rank, total in found.by_rank.items():
            assert total[place] == lengths[(names == code) & (ranks == rank)].sum()
    assert len(kernel_times(names[:0], lengths[:0], ranks[:0]).codes) == 0


def test_a_layer_that_repeats_and_what_lies_between(tmp_path: Path) -> None:
    """x a b c a b c y d d: the layer «a b c» twice, 2 × 60 µs; «d d» is once, and part of it no sequence of two."""
    events = []
    for place, (name, lasts) in enumerate(
        [("x", 5), *2 * [("a", 10), ("b", 20), ("c", 30)], ("y", 5), ("d", 1), ("d", 1)]
    ):
        events += [call(1000 + 50 * place, 5, place + 1), kernel(1010 + 50 * place, lasts, place + 1, name)]
    events.append(kernel(3000, 500, 99, "ncclDevKernel_AllReduce_Sum_f32", stream=20))
    write(tmp_path / "rank0.json", *events, rank=0, world_size=1)
    run = open_run("1", str(tmp_path), Options())
    assert run.events is not None
    (found,) = sequences(run.events, 0)
    assert (found.names, found.count, found.time) == (("a", "b", "c"), 2, 120_000)
    assert found.share == 120 / 132
    assert sequences(run.events, 7) == []


def test_the_kinds_sum_to_what_is_allocated(shared_traces: Path) -> None:
    run = open_run("1", str(shared_traces / "memory" / "wedsonlin_medium_128_training.pickle"), Options())
    assert run.trace is not None
    (entry,) = run.report["memory"]
    found = memory_over_time(run.trace, entry)
    assert found is not None
    assert found.timed
    assert {"forward", "optimizer", "before the recording"} <= set(found.used)
    peak = int(np.sum(list(found.used.values()), axis=0).max())
    # Requests are rounded up to 512 bytes.
    assert entry["peak_allocated_bytes"] is not None
    assert peak == pytest.approx(entry["peak_allocated_bytes"], rel=0.005)
