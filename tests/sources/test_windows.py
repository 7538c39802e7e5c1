"""Folders of several recordings of the same ranks, as torchtitan's profiler makes them: windows of one run, or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.kineto import call, kernel, note, write

import gpuscope
from gpuscope.errors import UsageError
from gpuscope.plugins import COMMANDS, load


def recorded(path: Path, rank: int, first: int, kernel_us: int) -> None:
    """Three steps of 1 ms with one kernel each, the first of that number."""
    events = []
    for step in range(3):
        at = 1000 * step + 100_000 * first
        events += [note(at, 990, f"ProfilerStep#{first + step}"), call(at + 5, 5, step + 1)]
        events += [kernel(at + 20, kernel_us, step + 1)]
    write(path, *events, rank=rank, world_size=2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """`profile_traces/iteration_10/rank0_trace.json` …: the kernel of the later window is the longer one."""
    for iteration, first, kernel_us in ((10, 7, 100), (20, 17, 500)):
        for rank in (0, 1):
            recorded(tmp_path / f"traces/iteration_{iteration}/rank{rank}_trace.json", rank, first, kernel_us)
    return tmp_path / "traces"


def compute(report: dict[str, object]) -> list[int]:
    """Compute of each rank in the recording, µs."""
    return [rank["recorded_breakdown_ns"]["compute"] // 1000 for rank in report["ranks"]]  # type: ignore[attr-defined]


def test_the_latest_window_is_judged_and_the_others_are_named(run: Path) -> None:
    report = gpuscope.analyze(run).report
    assert compute(report) == [1500, 1500]  # type: ignore[arg-type]
    [told] = [one["message"] for one in report["problems"] if one["code"] == "restarts_left_out"]
    assert "this is iteration_20. Left out: iteration_10" in told


def test_a_window_can_be_asked_for(run: Path) -> None:
    assert compute(gpuscope.analyze(run, window=10).report) == [300, 300]  # type: ignore[arg-type]
    command = load(COMMANDS, "analyze")
    asked = CliRunner().invoke(command, [str(run), "--window", "10", "--json", "--no-store"], standalone_mode=False)
    assert compute(json.loads(asked.stdout)) == [300, 300]
    with pytest.raises(UsageError, match="has no window 15") as raised:
        gpuscope.analyze(run, window=15)
    assert raised.value.hint == "its windows: 10, 20"


def test_the_latest_that_all_ranks_share(run: Path) -> None:
    """The job was stopped while rank 1 had not written its last window yet."""
    (run / "iteration_20" / "rank1_trace.json").unlink()
    assert compute(gpuscope.analyze(run).report) == [300, 300]  # type: ignore[arg-type]


def test_two_windows_are_compared_by_their_folders(run: Path) -> None:
    assert "step 1.000 ms → 1.000 ms" in repr(gpuscope.diff(run / "iteration_10", run / "iteration_20"))


def test_runs_whose_steps_do_not_go_on_are_no_windows(tmp_path: Path) -> None:
    for number in (1, 2):
        recorded(tmp_path / f"run{number}" / "rank0.json", 0, 7, 100)
    with pytest.raises(UsageError, match="both hold rank 0") as raised:
        gpuscope.analyze(tmp_path)
    assert "gpuscope diff" in (raised.value.hint or "")


def test_recordings_of_which_nothing_tells_the_run_are_no_windows(tmp_path: Path) -> None:
    for name in ("saxpy_rank0.json", "hydro_rank0.json"):  # neither a process nor a step in them
        write(tmp_path / name, kernel(0, 100), rank=0)
    with pytest.raises(UsageError, match="both hold rank 0"):
        gpuscope.analyze(tmp_path)


def test_folders_of_nodes_are_no_windows(tmp_path: Path) -> None:
    for node in (0, 1):
        recorded(tmp_path / f"node{node}" / f"rank{node}.json", node, 7 + 10 * node, 100)
    assert gpuscope.open_trace(tmp_path).ranks == [0, 1]


def test_a_window_of_what_has_none_is_an_error(run: Path) -> None:
    with pytest.raises(UsageError, match="does not hold several windows"):
        gpuscope.analyze(run / "iteration_10", window=10)


def handled(folder: Path, rank: int | None, first: int, stamp: int, kernel_us: int = 100) -> None:
    """As `tensorboard_trace_handler` names them, of one process per rank."""
    name = f"node-a_{4000 + (rank or 0)}.{1_700_000_000_000 + stamp}.pt.trace.json"
    events = []
    for step in range(3):
        at = 1000 * step + 100_000 * first
        events += [note(at, 990, f"ProfilerStep#{first + step}"), call(at + 5, 5, step + 1)]
        events += [kernel(at + 20, kernel_us, step + 1)]
    write(folder / name, *events, rank=rank, world_size=2)


def test_a_schedule_that_repeats_leaves_windows_side_by_side(tmp_path: Path) -> None:
    for first, kernel_us in ((3, 100), (11, 500)):
        for rank in (0, 1):
            handled(tmp_path, rank, first, 1000 * first + rank, kernel_us)
    report = gpuscope.analyze(tmp_path).report
    assert compute(report) == [1500, 1500]
    assert "restarts_left_out" in {problem["code"] for problem in report["problems"]}
    assert compute(gpuscope.analyze(tmp_path, window=1).report) == [300, 300]


def test_windows_of_a_process_without_a_rank(tmp_path: Path) -> None:
    handled(tmp_path, None, 3, 1000, 100)
    handled(tmp_path, None, 11, 2000, 500)
    assert compute(gpuscope.analyze(tmp_path).report) == [1500]


def test_the_same_steps_twice_are_two_runs(tmp_path: Path) -> None:
    handled(tmp_path, 0, 3, 1000)
    handled(tmp_path, 0, 3, 2000)
    with pytest.raises(UsageError, match="both hold rank 0"):
        gpuscope.analyze(tmp_path)
