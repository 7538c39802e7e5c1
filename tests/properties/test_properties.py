"""What must hold whatever was recorded: parts sum, and times, ranks, rows and files may be moved about."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope.trace.trace import Trace
from properties.abstract_job import FORMATS, Rank, kineto_events, ranks, write_kineto, write_nsys, written

EXAMPLES = settings(max_examples=12)
PARTS = ("compute", "exposed_communication", "exposed_memory", "idle")


def rows_of(trace: Trace) -> Counter[tuple[Any, ...]]:
    """Device work with its launching call, and host calls, as values: what every format records."""
    found: Counter[tuple[Any, ...]] = Counter()
    host, device, names = trace["host_events"], trace["device_events"], trace.names
    for row in range(len(device)):
        launch = int(device["launch"][row])
        kind = int(device["kind"][row])
        name = "copy" if kind == 2 else names[int(device["name"][row])]
        own = tuple(int(device[column][row]) for column in ("rank", "stream", "start", "end", "correlation"))
        found["device", *own, kind, name, int(host["start"][launch]), names[int(host["name"][launch])]] += 1
    for row in range(len(host)):
        own = tuple(int(host[column][row]) for column in ("rank", "start", "end"))
        found["host", *own, names[int(host["name"][row])]] += 1
    for row in range(len(trace["steps"])):
        steps = trace["steps"]
        found["step", *(int(steps[column][row]) for column in ("rank", "step", "start", "end"))] += 1
    return found


def outcome(report: Any) -> dict[str, Any]:
    """What a report says, without the clock's zero and the files' names."""
    origin = min((entry["start_ns"] for entry in report["steps"]), default=0)
    return {
        "verdict": {key: report["verdict"][key] for key in ("bound_by", "cause", "share_frac", "abstained")},
        "ranks": [
            {key: entry[key] for key in ("rank", "window_ns", "breakdown_ns", "recorded_breakdown_ns", "stall_ns")}
            for entry in report["ranks"]
        ],
        "steps": [
            (entry["rank"], entry["step"], entry["role"], entry["start_ns"] - origin, entry["dur_ns"])
            for entry in report["steps"]
        ],
    }


def analysed(*paths: Path) -> Any:
    return gpuscope.analyze(*paths, advice=False).report


@EXAMPLES
@given(ranks())
def test_one_job_in_every_format_gives_equal_tables_and_one_verdict(rank: Rank) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [written(Path(folder, str(number)), rank, fmt) for number, fmt in enumerate(FORMATS)]
        tables = [rows_of(gpuscope.open_trace(path)) for path in paths]
        said = [outcome(analysed(path)) for path in paths]
    assert sum(tables[0].values()) == 3 * len(rank.work) - len(rank.work) + len(rank.blocked) + 2 * len(rank.steps)
    for fmt, found, told in zip(FORMATS, tables, said, strict=True):
        assert found == tables[0], fmt
        assert told == said[0], fmt


@EXAMPLES
@given(ranks())
def test_parts_and_causes_sum(rank: Rank) -> None:
    """The breakdown sums to the window, the causes to what is no compute, the steps to the recording."""
    with tempfile.TemporaryDirectory() as folder:
        report = analysed(write_kineto(Path(folder, "rank0.json"), rank))
    for entry in report["ranks"]:
        assert sum(entry["breakdown_ns"][part] for part in PARTS) == entry["window_ns"]
        assert sum(entry["recorded_breakdown_ns"][part] for part in PARTS) == entry["recorded_ns"]
        stalls = entry["stall_ns"]
        stalled = sum(sum(stalls[name].values()) for name in ("cpu", "communication", "memory"))
        assert stalled + stalls["unattributed"] == entry["window_ns"] - entry["breakdown_ns"]["compute"]
    if report["steps"]:
        assert sum(entry["dur_ns"] for entry in report["steps"]) == report["ranks"][0]["recorded_ns"]


@EXAMPLES
@given(ranks(), st.integers(-(10**6), 10**12))
def test_shifting_time_changes_nothing(rank: Rank, shift: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            written(Path(folder, f"{fmt} {place}"), rank.moved(shift=moved), fmt)
            for fmt in ("Kineto JSON", "SQLite")
            for place, moved in enumerate((0, shift))
        ]
        said = [outcome(analysed(path)) for path in paths]
    assert said[0] == said[1]
    assert said[2] == said[3]


@EXAMPLES
@given(ranks())
def test_doubling_times_doubles_durations(rank: Rank) -> None:
    """Of parts and steps; causes have fixed bounds (10 µs, 1 ms), and may differ."""
    with tempfile.TemporaryDirectory() as folder:
        one, two = (
            analysed(write_kineto(Path(folder, f"{scale}", "rank0.json"), rank.moved(scale))) for scale in (1, 2)
        )
    for single, double in zip(one["ranks"], two["ranks"], strict=True):
        assert double["recorded_ns"] == 2 * single["recorded_ns"]
        parts = single["recorded_breakdown_ns"]
        assert double["recorded_breakdown_ns"] == {part: 2 * value for part, value in parts.items()}
    assert [2 * step["dur_ns"] for step in one["steps"]] == [step["dur_ns"] for step in two["steps"]]


@EXAMPLES
@given(ranks(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(rank: Rank, random: Random) -> None:
    events = kineto_events(rank)
    random.shuffle(events)
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            write_kineto(Path(folder, "a", "rank0.json"), rank),
            write_kineto(Path(folder, "b", "rank0.json"), rank, events),
        ]
        one, other = (rows_of(gpuscope.open_trace(path)) for path in paths)
        said = [outcome(analysed(path)) for path in paths]
    assert one == other
    assert said[0] == said[1]


def one_job(first: Rank, second: Rank) -> bool:
    """Whether a kernel that computes runs on both: ranks without one may be refused as two jobs."""
    kernels = [{work.name for work in rank.work if work.kind == "compute"} for rank in (first, second)]
    return not kernels[0].isdisjoint(kernels[1])


@EXAMPLES
@given(ranks(0), ranks(1))
def test_ranks_may_have_any_numbers(first: Rank, second: Rank) -> None:
    """Two ranks whose numbers are swapped: the report is the same with the numbers swapped."""
    assume(one_job(first, second))
    with tempfile.TemporaryDirectory() as folder:
        said = []
        for numbers in ((0, 1), (1, 0)):
            place = Path(folder, str(numbers[0]))
            for rank, number in zip((first, second), numbers, strict=True):
                named = Rank(number, rank.work, rank.blocked, rank.steps)
                write_kineto(place / f"rank{number}.json", named, world=2)
            said.append(outcome(analysed(place)))
    assert said[0]["verdict"] == said[1]["verdict"]
    swapped = {entry["rank"]: {**entry, "rank": 1 - entry["rank"]} for entry in said[1]["ranks"]}
    assert said[0]["ranks"] == [swapped[1], swapped[0]]


@EXAMPLES
@given(ranks(0), ranks(1))
def test_splitting_files_changes_nothing(first: Rank, second: Rank) -> None:
    """Both ranks in one export, or each in its own; files named in any order."""
    assume(one_job(first, second))
    with tempfile.TemporaryDirectory() as folder:
        whole = write_nsys(Path(folder, "whole"), [first, second], "SQLite")
        parts = [write_nsys(Path(folder, "parts"), [rank], "SQLite", f"rank{rank.rank}") for rank in (first, second)]
        tables = [rows_of(gpuscope.open_trace(*paths)) for paths in ([whole], parts, parts[::-1])]
        said = [outcome(analysed(*paths)) for paths in ([whole], parts, parts[::-1])]
    assert tables[0] == tables[1] == tables[2]
    assert said[0] == said[1] == said[2]
