"""A gap in a function of C is told with the script's line that calls it: stacks only add."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import Event, call, kernel, note, python, write

import gpuscope


def stacked(*frames: Event) -> list[Event]:
    """Steps of 5 ms whose second half the thread is in those frames (times within the step)."""
    found: list[Event] = []
    for step in range(8):
        at = 5_000 * step
        found += [note(at, 5_000, f"ProfilerStep#{step}"), call(at + 10, 5, step), kernel(at + 20, 2_000, step)]
        found += [{**one, "ts": one["ts"] + at} for one in frames]
    return found


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ([python(2_050, 2_940, "train.py(47): preprocess")], "<built-in function sleep> in train.py(47): preprocess"),
        (
            [python(2_040, 2_950, "train.py(9): wait"), python(2_050, 2_940, "torch/utils/data.py(3): fetch")],
            "<built-in function sleep> in train.py(9): wait",
        ),
        ([], "<built-in function sleep>"),
    ],
)
def test_the_line_that_calls(tmp_path: Path, frames: list[Event], name: str) -> None:
    asleep = python(2_060, 2_920, "<built-in function sleep>")
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *stacked(*frames, asleep))).report
    names = {one["name"] for finding in report["findings"] for one in finding["evidence"]}
    assert name in names
