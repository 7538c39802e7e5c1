"""Recordings from which events were dropped: the breakdown stays, causes and gains are not given (times in µs)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import Event, call, copy, kernel, note, op, write

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


def halved(kernel_us: float, copy_us: float, gap_us: float, *, lacking: bool = True, steps: int = 6) -> list[Event]:
    """Steps of 40 kernels and copies behind them; half of the kernels have no launching call, half of the calls no
    kernel."""
    events: list[Event] = []
    at = 0.0
    for step in range(steps):
        begun = at
        for place in range(40):
            number = 1000 * step + 2 * place
            lacks = lacking and place % 2 == 1
            events += [
                call(at, 0.5, number + 500_000 if lacks else number),
                kernel(at + gap_us, kernel_us, number),
            ]
            if copy_us:
                events += [
                    call(at + 0.5, 0.5, number + 1, "cudaMemcpyAsync"),
                    copy(at + gap_us + kernel_us, copy_us, number + 1, bytes=1 << 20),
                ]
            at += gap_us + kernel_us + copy_us
        events.append(note(begun, at - begun, f"ProfilerStep#{step}"))
    return events


@pytest.mark.parametrize(
    ("job", "bound_by", "cause"),
    [
        ((2, 97, 1), "memory", "copy"),  # copies 97 %, idle 1 %
        ((98, 0, 2), "compute", None),  # healthy
        ((50, 45, 5), "memory", "copy"),
    ],
)
def test_doubt_that_cannot_matter(
    tmp_path: Path, job: tuple[float, float, float], bound_by: str, cause: str | None
) -> None:
    """What the device recorded itself needs no launching call: the class stands, with less confidence."""
    verdict = analyzed(tmp_path / "half", *halved(*job))["verdict"]
    whole = analyzed(tmp_path / "whole", *halved(*job, lacking=False))["verdict"]
    assert (verdict["bound_by"], verdict["cause"], verdict["abstained"]) == (bound_by, cause, False)
    assert (whole["bound_by"], whole["cause"], whole["share_frac"]) == (bound_by, cause, verdict["share_frac"])
    assert verdict["confidence"] < whole["confidence"]
    assert any("why the device idles is left open" in one for one in verdict["limits"])


def test_only_the_causes_of_idle_time_are_left_open(tmp_path: Path) -> None:
    report = analyzed(tmp_path, *halved(kernel_us=2, copy_us=97, gap_us=1))
    stalls = report["ranks"][0]["stall_ns"]
    assert stalls["cpu"] == {}
    assert stalls["unattributed"] == report["ranks"][0]["breakdown_ns"]["idle"]
    assert stalls["memory"] == {"copy": report["ranks"][0]["breakdown_ns"]["exposed_memory"]}


@pytest.mark.parametrize(
    "job",
    [
        (60, 0, 40),  # the kernels that are missing would fill all idle time
        (75, 0, 25),  # … or leave less of it than makes a class
    ],
)
def test_doubt_that_matters(tmp_path: Path, job: tuple[float, float, float]) -> None:
    assert_thinned(analyzed(tmp_path, *halved(*job)), "50.0 % of the kernels have no launching call")


@pytest.mark.parametrize(("lasts", "abstains"), [(100, True), (400, False)])
def test_where_it_is_unknown_how_much_is_missing(tmp_path: Path, lasts: int, abstains: bool) -> None:
    """Kernels that were ready start late: under 10 % of idle time the class stands all the same."""
    events: list[Event] = []
    for number in range(40):
        events += [call(number, 0.5, number), kernel(100 + (lasts + 25) * number, lasts, number)]
    report = analyzed(tmp_path, *events)
    assert report["verdict"]["abstained"] == abstains
    if not abstains:
        assert report["verdict"]["bound_by"] == "compute"
        assert "queued and ready start 25.00 µs later" in " ".join(report["verdict"]["limits"])


def test_ids_with_holes_in_a_busy_recording(tmp_path: Path) -> None:
    """Half of the operators are missing, and with them as many kernels as there are; the device idles for 1 %."""
    operators = [op(10 + place, 0.5, **{"External id": 2 * place}) for place in range(1200)]
    events = [call(100 * place, 2, place) for place in range(20)]
    events += [kernel(20 + 100 * place, 99, place) for place in range(20)]
    verdict = analyzed(tmp_path, *events, *operators)["verdict"]
    assert (verdict["bound_by"], verdict["abstained"]) == ("compute", False)
