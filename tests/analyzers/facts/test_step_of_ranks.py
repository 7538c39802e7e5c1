"""«The step» of ranks that take turns being late: from each step's earliest begin on any rank to the next one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.collectives import collective
from helpers.kineto import Event, call, kernel, note, write
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope.analyzers.comparison.moved import series, step
from gpuscope.schema.document import Report
from gpuscope.welch import lower_median

STEP, STEPS = 1_000, 9


def run_of_ranks(
    folder: Path,
    late: Callable[[int, int], int],
    ranks: int = 2,
    joined: Callable[[int], bool] = lambda _: True,
    every: Sequence[int] = (STEP,) * STEPS,
    clock: Sequence[int] = (0, 0, 0, 0),
) -> Report:
    """Ranks that begin to compute so late in each step and meet in an all-reduce at its end, µs."""
    for rank in range(ranks):
        events: list[Event] = []
        begin = 0
        for number, lasts in enumerate(every):
            at, first, second = begin + clock[rank], 10 * number + 1, 10 * number + 2
            first_kernel = at + 100 + late(rank, number)
            events += [
                note(at, lasts, f"ProfilerStep#{number}"),
                call(at + 5, 2, first),
                kernel(first_kernel, 200, first),
                call(at + 10, 2, second),
            ]
            if joined(number):
                start = first_kernel + 210
                events.append(collective(start, at + lasts - 20 - start, 4_096, number, ranks, launch=second))
            begin += lasts
        info = {"backend": "nccl", "rank": rank, "world_size": ranks}
        write(folder / f"rank{rank}.json", *events, rank=None, distributedInfo=info)
    return gpuscope.analyze(folder).report


def turns(rank: int, number: int, by: int = 300, ranks: int = 2) -> int:
    return by if number % ranks == rank else 0


def told(report: Report) -> tuple[int, bool]:
    """«The step» (µs), and whether it goes from begin to begin."""
    assert report["step_time"] is not None
    return report["step_time"]["median_ns"] // 1000, "of_run_ns" in report["step_time"]


def test_ranks_that_take_turns(tmp_path: Path) -> None:
    """Each rank's own steps last 700 and 1300, the largest always 1300; the run needs 1000 for one."""
    report = run_of_ranks(tmp_path, turns)
    assert told(report) == (1000, True)
    (waiting,) = [one for one in report["findings"] if one["code"] == "straggler"]
    assert waiting["per_step_ns"] == round(waiting["share_frac"] * 1_000_000)
    assert all(one["predicted"]["step_ns_before"] == 1_000_000 for one in report["suggestions"])
    assert step(series(report)) == 1_000_000
    assert series(report).durations[1:] == [1_000_000.0] * 7


def test_three_ranks_on_clocks_of_their_own(tmp_path: Path) -> None:
    """Ahead by 5 ms, behind by 7: what counts is the common clock."""
    report = run_of_ranks(tmp_path, lambda rank, k: turns(rank, k, ranks=3), 3, clock=(0, 5_000, -7_000, 0))
    assert told(report) == (1000, True)


def test_a_rank_that_is_always_late_changes_nothing(tmp_path: Path) -> None:
    assert told(run_of_ranks(tmp_path, lambda rank, _: 300 * rank)) == (1000, False)


def test_one_rank_changes_nothing(tmp_path: Path) -> None:
    """Half of its steps last 700, half 1300: of an even number the lower one counts."""
    assert told(run_of_ranks(tmp_path, turns, 1)) == (700, False)


def test_steps_that_no_collective_joins_are_each_rank_s_own(tmp_path: Path) -> None:
    """Without one in a judged step ranks may drift apart, and the slowest one's step counts."""
    assert told(run_of_ranks(tmp_path, turns, joined=lambda number: number != 4)) == (1300, False)


def test_of_an_even_number_of_steps_the_lower_one(tmp_path: Path) -> None:
    report = run_of_ranks(tmp_path, lambda *_: 0, every=(1000, 1000, 1200, 1200, 1000))
    assert told(report) == (1000, False)


@settings(max_examples=15, deadline=None)
@given(late=st.lists(st.tuples(*[st.integers(0, 400)] * 2), min_size=STEPS, max_size=STEPS))
def test_steps_never_exceed_what_was_recorded(
    late: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whoever is late when: the step is at most the median of the largest durations, and all steps from begin to begin
    add up to the window."""
    report = run_of_ranks(tmp_path_factory.mktemp("late"), lambda rank, k: late[k][rank])
    spread = report["step_time"]
    assert spread is not None
    steady = sorted({one["step"] for one in report["steps"] if one["role"] == "steady"} - {None})
    largest = {k: max(one["dur_ns"] for one in report["steps"] if one["step"] == k) for k in steady}
    assert spread["median_ns"] <= lower_median(largest.values())
    if "of_run_ns" in spread:
        inner = [spread["of_run_ns"][str(k)] for k in range(1, STEPS - 1)]
        begin = {k: min(one["start_ns"] for one in report["steps"] if one["step"] == k) for k in (1, STEPS - 1)}
        assert sum(inner) == begin[STEPS - 1] - begin[1]
    for entry in report["ranks"]:
        assert sum(entry["breakdown_ns"].values()) == entry["window_ns"]
