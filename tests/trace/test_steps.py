"""Steps: how they are found, also from ranges that differ by numbers in their names, and that they tile the window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, kernel, note, op, python, write
from helpers.nsys import Export

import gpuscope
from gpuscope.analyzers.base.lanes import views


def found(path: Path) -> tuple[list[int], str | None]:
    trace = gpuscope.open_trace(path)
    steps = trace.tables["steps"]
    return steps["step"].tolist(), steps["basis"].iloc[0] if len(steps) else None


def work(at: int, correlation: int, name: str = "gemm") -> list[Any]:
    """A launch at `at` and its kernel, 10 later and 50 long."""
    return [call(at, 2, correlation), kernel(at + 10, 50, correlation, name=name)]


@pytest.mark.parametrize(
    ("ranges", "steps", "basis"),
    [
        ([note(0, 90, "ProfilerStep#7"), note(100, 90, "ProfilerStep#8")], [7, 8], "ProfilerStep annotations"),
        # Ascend and traces of 2020 record it as an operator.
        ([op(0, 90, "ProfilerStep#7"), op(100, 90, "ProfilerStep#8")], [7, 8], "ProfilerStep annotations"),
        ([note(0, 90, "train_step 3"), note(100, 90, "train_step 4")], [3, 4], "ranges named 'train_step #'"),
        ([note(0, 90, "iteration"), note(100, 90, "iteration")], [0, 1], "ranges named 'iteration'"),
        # Of two names the one that covers more; ranges that overlap each other are no steps.
        (
            [note(0, 90, "step"), note(100, 90, "step"), note(0, 20, "batch"), note(100, 20, "batch")],
            [0, 1],
            "ranges named 'step'",
        ),
        (
            [note(80, 10, "Optimizer.step#AdamW.step"), note(180, 10, "Optimizer.step#AdamW.step")],
            [0, 1],
            "ends of 'Optimizer.step#AdamW.step'",
        ),
        ([note(0, 90, "forward"), note(100, 90, "forward")], [], None),
    ],
)
def test_found_from_annotations(tmp_path: Path, ranges: list[Any], steps: list[int], basis: str | None) -> None:
    path = write(tmp_path / "r.json", *ranges, *work(5, 1), *work(105, 2))
    assert found(path) == (steps, basis)


@pytest.mark.parametrize(
    ("updates", "steps", "basis"),
    [
        # Recording began within a round: what is before the first whole one is no step; the last one is cut.
        ([1, 4, 7], [2, 5, 8], "ProfilerStep annotations, 3 to an optimizer step"),
        ([2, 5, 8], [0, 3, 6], "ProfilerStep annotations, 3 to an optimizer step"),
        (range(9), list(range(9)), "ProfilerStep annotations"),
        # No period that shows.
        ([2, 5], list(range(9)), "ProfilerStep annotations"),
        ([1, 4, 8], list(range(9)), "ProfilerStep annotations"),
    ],
)
def test_accumulated_gradients_make_one_step(tmp_path: Path, updates: list[int], steps: list[int], basis: str) -> None:
    ranges = [note(100 * k, 90, f"ProfilerStep#{k}") for k in range(9)]
    ranges += [note(100 * k + 80, 5, "Optimizer.step#AdamW.step") for k in updates]
    path = write(tmp_path / "r.json", *ranges, *(one for k in range(9) for one in work(100 * k + 5, k + 1)))
    assert found(path) == (steps, basis)


def ranges_of(path: Path, name: str) -> list[tuple[int, int]]:
    """(start, duration) of a range's rows, µs from the first one's start on."""
    trace = gpuscope.open_trace(path)
    host = trace.tables["host_events"]
    rows = host[host["name"] == name]
    first = int(host["start"].min())
    return [(int(one.start - first) // 1000, int(one.end - one.start) // 1000) for one in rows.itertuples()]


@pytest.mark.parametrize("mark", [note, op])
@pytest.mark.parametrize("last", [95, 300, 50_000])
def test_what_is_open_as_the_recording_stops_ends_with_the_last_step(tmp_path: Path, mark: Any, last: int) -> None:
    """The optimizer's hook stops the profiler: its last range is closed when the trace has been collected."""
    steps = [mark(100 * k, 100, f"ProfilerStep#{k}") for k in range(4)]
    updates = [note(100 * k + 80, 15, "Optimizer.step#SGD.step") for k in range(3)]
    cut = note(380, last, "Optimizer.step#SGD.step")
    frames = [python(0, 10_000, "train.py(1): <module>"), python(405, last, "profiler.py(1): stop_trace")]
    path = write(
        tmp_path / "r.json", *steps, *updates, cut, *frames, *(e for k in range(4) for e in work(100 * k + 5, k))
    )
    assert ranges_of(path, "Optimizer.step#SGD.step") == [(80, 15), (180, 15), (280, 15), (380, 20)]
    assert ranges_of(path, "train.py(1): <module>") == [(0, 400)]
    assert ranges_of(path, "profiler.py(1): stop_trace") == []


def test_other_threads_and_recordings_without_marks_keep_their_ends(tmp_path: Path) -> None:
    """A message of another thread goes on after the step; steps of the script's own end where it says."""
    steps = [note(100 * k, 100, f"ProfilerStep#{k}") for k in range(3)]
    path = write(tmp_path / "a.json", *steps, note(290, 80, "gloo:all_reduce", tid=9), *work(5, 1))
    assert ranges_of(path, "gloo:all_reduce") == [(290, 80)]
    steps = [note(100 * k, 90, f"train_step {k}") for k in range(3)]
    path = write(tmp_path / "b.json", *steps, note(280, 80, "save"), *work(5, 1))
    assert ranges_of(path, "save") == [(280, 80)]


def sequence(tmp_path: Path, names: str) -> Path:
    return write(tmp_path / "r.json", *(kernel(i * 10, 8, name=name) for i, name in enumerate(names)))


def test_found_from_repeating_kernels(tmp_path: Path) -> None:
    """Embedding, two layers, loss; four times."""
    assert found(sequence(tmp_path, "eabcabcl" * 4)) == ([0, 1, 2, 3], "repetition of the kernel sequence")


def test_the_longer_period_that_repeats_more_exactly_is_the_step(tmp_path: Path) -> None:
    """Four passes of ten layers whose pieces all occur in every layer: only the last layer differs in order."""
    assert found(sequence(tmp_path, ("abcd" * 9 + "abdc") * 4))[0] == [0, 1, 2, 3]


def test_a_layer_is_no_step(tmp_path: Path) -> None:
    """One forward pass of twenty layers repeats, but its embedding and head do not."""
    assert found(sequence(tmp_path, "e" + "abcd" * 20 + "h")) == ([], None)


def tiles_of(path: Path) -> list[tuple[int | None, int, int]]:
    """The steps of the first rank, µs; None for what is no step."""
    (view,) = views(gpuscope.open_trace(path))
    assert sum(step.end - step.start for step in view.steps) == view.breakdown.window
    assert (view.steps[0].start, view.steps[-1].end) == view.window
    return [(None if one.step < 0 else one.step, one.start // 1000, one.end // 1000) for one in view.steps]


def annotated(*numbers: int) -> list[Any]:
    """What ran before the first step, then steps of 100 whose annotation begins 20 before the launch."""
    steps = [event for k in numbers for event in (note(100 * k, 90, f"ProfilerStep#{k}"), *work(100 * k + 20, k + 10))]
    return [*work(-100, 1), *steps]


def test_device_steps_tile_the_window(tmp_path: Path) -> None:
    """What ran before the first step stands apart; each step begins with the first kernel launched in it."""
    path = write(tmp_path / "r.json", *annotated(0, 1, 2), *work(295, 99))
    assert tiles_of(path) == [(None, -90, 30), (0, 30, 130), (1, 130, 230), (2, 230, 355)]


def test_a_single_annotated_step_lasts_as_long_as_its_annotation(tmp_path: Path) -> None:
    """And until all that it launched has ended; what runs behind that stands apart, too."""
    assert tiles_of(write(tmp_path / "a.json", *annotated(0))) == [(None, -90, 0), (0, 0, 90)]
    late = [note(0, 90, "ProfilerStep#0"), call(20, 2, 1), kernel(40, 100, 1), call(95, 2, 2), kernel(150, 50, 2)]
    assert tiles_of(write(tmp_path / "b.json", *late)) == [(0, 0, 140), (None, 140, 200)]
    # A kernel that the file times before its step's begin, by a clock that runs ahead.
    ahead = [note(0, 90, "ProfilerStep#0"), call(20, 2, 1), kernel(-5, 50, 1)]
    assert tiles_of(write(tmp_path / "c.json", *ahead)) == [(0, -5, 90)]


def test_two_annotated_steps_last_from_the_first_begin_to_the_last_end(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", *annotated(0, 1))
    assert tiles_of(path) == [(None, -90, 0), (0, 0, 130), (1, 130, 190)]
    assert gpuscope.analyze(path).report["step_time"]["median_ns"] == 95_000


def test_a_single_step_in_an_nsys_report(tmp_path: Path) -> None:
    export = Export()
    export.range(0, 90_000, "step 4")
    export.range(100_000, 190_000, "step 5")
    for at in (20_000, 120_000):
        export.call(at, at + 2_000, at)
        export.kernel(at + 10_000, at + 60_000, at)
    assert tiles_of(export.write(tmp_path)) == [(4, 0, 130), (5, 130, 190)]


def test_steps_without_annotations_end_with_the_device(tmp_path: Path) -> None:
    """Ends of the optimizer say nothing of when the first step began."""
    ends = [note(80, 10, "Optimizer.step#SGD.step"), note(180, 20, "Optimizer.step#SGD.step")]
    assert tiles_of(write(tmp_path / "r.json", op(0, 5), *ends, *work(20, 1), *work(120, 2))) == [
        (0, 30, 130),
        (1, 130, 180),
    ]


STEP = 1_000


def ranges(names: Sequence[str], every: int = STEP, begin: int = 0, tid: int = 1) -> list[Any]:
    return [note(begin + i * every, every - 10, name, tid) for i, name in enumerate(names)]


def launches(count: int, every: int, names: str = "g") -> list[Any]:
    """A launch and its kernel in each slot of `every` µs."""
    return [
        event
        for i in range(count)
        for event in (call(i * every + 20, 2, i + 1), kernel(i * every + 40, every // 2, i + 1, names[i % len(names)]))
    ]


@pytest.mark.parametrize(
    ("names", "steps", "basis"),
    [
        ([f"token_{i}_processing" for i in (7, 8, 9)], [7, 8, 9], "ranges named 'token_#_processing'"),
        # The number that counts is the one that differs.
        ([f"execute_8192_context_{i}" for i in (4, 5, 6)], [4, 5, 6], "ranges named 'execute_#_context_#'"),
        # Batches of equal size recur without coming round.
        (["run_1_0", "run_0_8", "run_0_8", "run_0_8", "run_0_9"], [0, 1, 2, 3, 4], "ranges named 'run_#_#'"),
        # One round is the step, also where the recording begins within one.
        ([f"layer_{i}" for i in (0, 1, 2)] * 3, [0, 1, 2], "rounds of ranges named 'layer_#'"),
        ([f"layer_{i}" for i in (2, 0, 1, 2, 0, 1, 2)], [0, 1], "rounds of ranges named 'layer_#'"),
        # Down again in the backward pass: one round is there and back.
        ([f"layer_{i}" for i in (0, 1, 2, 2, 1, 0)] * 2, [0, 1], "rounds of ranges named 'layer_#'"),
        # A layer is left out once.
        ([f"layer_{i}" for i in (0, 1, 2, 3, 4, 5, 0, 1, 3, 4, 5)], [0, 1], "rounds of ranges named 'layer_#'"),
        # One range repeats, and nothing says whether it is a step or a layer.
        (["block_7"] * 4, [], None),
        # Parts of a step are numbered, too.
        ([f"Forward {i}" for i in range(4)], [], None),
    ],
)
def test_a_family_of_ranges(tmp_path: Path, names: Sequence[str], steps: list[int], basis: str | None) -> None:
    """Each launches a kernel of its own, so that no sequence of kernels repeats."""
    events = launches(len(names), STEP, "abcdefghijklmnopqrstuvwxyz")
    assert found(write(tmp_path / "r.json", *ranges(names), *events)) == (steps, basis)


def test_of_nested_families_the_outermost_with_two_members(tmp_path: Path) -> None:
    """One request of three tokens of four layers."""
    tokens = ranges([f"token_{i}" for i in range(3)], 4 * STEP)
    layers = ranges([f"layer_{i % 4}" for i in range(12)])
    path = write(tmp_path / "r.json", note(0, 12 * STEP, "request_9"), *tokens, *layers, *launches(12, STEP))
    assert found(path) == ([0, 1, 2], "ranges named 'token_#'")


@pytest.mark.parametrize("other", [1, 2])
def test_ranges_that_overlap_or_hold_little_work_are_no_steps(tmp_path: Path, other: int) -> None:
    """Requests in flight together; and ranges of a thread that launches nothing while the other works."""
    overlapping = [note(i * STEP, 2 * STEP, f"request_{i}") for i in range(4)]
    empty = [note(i * STEP + 500, 400, f"poll_{i}", tid=2) for i in range(4)]
    path = write(tmp_path / "r.json", *(overlapping if other == 1 else empty), *launches(4, STEP, "abcd"))
    assert found(path) == ([], None)


def test_a_named_step_comes_first(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.json",
        *ranges(["train_step 1", "train_step 2"], 2 * STEP),
        *ranges([f"chunk_{i}" for i in range(4)]),
        *launches(4, STEP),
    )
    assert found(path)[1] == "ranges named 'train_step #'"


def test_sixty_four_tokens_of_an_nsys_report(tmp_path: Path) -> None:
    """64 tokens of 9.9 ms in an NVTX range each, of eight layers that repeat exactly: not 512 steps of a layer."""
    export, token, layer = Export(), 9_900_000, 1_200_000
    for i in range(64):
        export.range(i * token, i * token + 9_800_000, f"token_{i}_processing")
        for j in range(8):
            at = i * token + j * layer
            for part, name in enumerate(("norm", "attn", "mlp")):
                number = 24 * i + 3 * j + part + 1
                export.call(at + part * 100_000, at + part * 100_000 + 5_000, number)
                export.kernel(at + 20_000 + part * 380_000, at + 380_000 + part * 380_000, number, name)
    report = gpuscope.analyze(export.write(tmp_path)).report
    assert report["steps_basis"] == "ranges named 'token_#_processing'"
    whole = [step for step in report["steps"] if step["role"] != "setup"]
    assert len(whole) == 64
    assert {step["dur_ns"] for step in whole[:-1]} == {token}
