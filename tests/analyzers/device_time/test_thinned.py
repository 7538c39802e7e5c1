"""Recordings from which events were dropped: the breakdown stays, causes and gains are not given (times in µs)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import Event, call, kernel, op, write

import gpuscope
from gpuscope.schema.document import Report


def analyzed(path: Path, *events: Event) -> Report:
    return gpuscope.analyze(write(path / "rank0.json", *events)).report


def assert_thinned(report: Report, why: str) -> None:
    verdict = report["verdict"]
    assert (verdict["abstained"], verdict["bound_by"]) == (True, None)
    assert why in verdict["why"]
    assert report["suggestions"] == []


@pytest.mark.parametrize(("every", "thinned"), [(1, False), (2, True)])
def test_external_ids_with_holes(tmp_path: Path, every: int, thinned: bool) -> None:
    """1,200 operators; where every second id is missing 1,176 of 2,351 are there, trimmed by 12 at both ends: 50 %."""
    operators = [op(10 + place, 0.5, **{"External id": every * place}) for place in range(1200)]
    report = analyzed(tmp_path, call(0, 2, 1), kernel(5, 995, 1), *operators, call(1400, 2, 2), kernel(1500, 500, 2))
    parts = report["ranks"][0]["breakdown_ns"]
    assert (parts["compute"], parts["idle"]) == (1_495_000, 500_000)
    if thinned:
        assert_thinned(report, "only 50.0 % of the operators' External ids are there")
    else:
        assert not report["verdict"]["abstained"]


@pytest.mark.parametrize(("alone", "thinned"), [(2, False), (3, True)])
def test_kernels_and_launches_that_lack_each_other(tmp_path: Path, alone: int, thinned: bool) -> None:
    """Of ten kernels `alone` have no launching call, and as many of ten calls no kernel: more than a fifth of both."""
    events: list[Event] = []
    for number in range(10):
        events += [
            call(100 * number, 2, number if number >= alone else 100 + number),
            kernel(100 * number + 10, 88, number),
        ]
    report = analyzed(tmp_path, *events)
    share = f"{10 * alone}.0 %"
    if thinned:
        assert_thinned(report, f"{share} of the kernels have no launching call and {share} of the launching calls")
    else:
        assert "events are missing" not in report["verdict"]["why"]


@pytest.mark.parametrize(("pause", "thinned"), [(19, False), (20, True)])
def test_queued_kernels_that_start_late(tmp_path: Path, pause: int, thinned: bool) -> None:
    """Forty kernels of 100, all launched before the first has ended, each `pause` after the one before it."""
    events: list[Event] = []
    for number in range(40):
        events += [call(number, 0.5, number), kernel(100 + (100 + pause) * number, 100, number)]
    report = analyzed(tmp_path, *events)
    assert report["ranks"][0]["breakdown_ns"]["idle"] == 39 * pause * 1000
    if thinned:
        assert_thinned(report, "operations that were queued and ready start 20.00 µs later in the median")
    else:
        assert "events are missing" not in report["verdict"]["why"]
