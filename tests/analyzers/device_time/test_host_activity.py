"""Where host work lies: what the thread did during a gap, not what ended it and not what goes on all the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, kernel, note, op, write

import gpuscope
from gpuscope.schema.document import Evidence


def shown(tmp_path: Path, *during: tuple[int, int, str]) -> list[Evidence]:
    """Six steps of 10 ms, each with 3.05 ms in which the device idles and the host is in these ranges, (from, µs,
    name); a range of the whole program goes on."""
    events: list[Any] = [note(0, 60_000, "distributed_training")]
    for number in range(6):
        at, first = 10_000 * number, 10 * number
        events += [
            note(at, 9_990, f"ProfilerStep#{number}"), op(at + 10, 20, "aten::zero_"), call(at + 12, 5, first + 1),
            kernel(at + 20, 50, first + 1, name="fill"), note(at + 3_100, 1_000, "DistributedDataParallel.forward"),
            op(at + 3_110, 20, "aten::mm"), call(at + 3_112, 5, first + 2), kernel(at + 3_120, 6_800, first + 2),
            *(note(at + since, lasts, name) for since, lasts, name in during),
        ]  # fmt: skip
    report = gpuscope.analyze(write(tmp_path / "r.json", *events)).report
    finding = next(one for one in report["findings"] if one["code"] == "host_other")
    return list(finding["evidence"])


@pytest.mark.parametrize(
    ("during", "named"),
    [
        # Nothing is recorded for 3.07 ms: not the call after it is to blame.
        ([], "between aten::zero_ and DistributedDataParallel.forward"),
        ([(60, 3_000, "save")], "save"),
        ([(60, 3_000, "callbacks"), (100, 2_900, "metrics")], "metrics"),
        # A range of all of the step is no place in it.
        ([(1, 9_980, "one_iteration_of_training"), (60, 3_000, "save")], "save"),
        ([(1, 9_980, "all_of_it")], "between aten::zero_ and DistributedDataParallel.forward"),
    ],
)
def test_the_place_is_what_the_thread_did(tmp_path: Path, during: list[tuple[int, int, str]], named: str) -> None:
    assert {one["name"] for one in shown(tmp_path, *during)} == {named}


def test_what_lies_between_two_events_is_said_to(tmp_path: Path) -> None:
    for one in shown(tmp_path):
        assert one.get("between")
        assert "covered_frac" not in one
