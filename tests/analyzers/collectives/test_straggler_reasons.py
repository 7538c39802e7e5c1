"""Why a rank is late: its device, its data or its host; two ranks over six steps, worked by hand (µs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.collectives import collective
from helpers.kineto import Event, call, kernel, note, op, write

import gpuscope


def rank(
    folder: Path,
    number: int,
    begin: int,
    dur: int,
    rows: int,
    *,
    loads: int = 0,
    extra: int = 0,
    world: int = 2,
    **header: Any,
) -> None:
    """In each step of 1000 one product of `rows` × 64, from `begin` for `dur`; the all-reduce ends at 400 for all."""
    events: list[Event] = []
    for step in range(6):
        at, first = 1000 * step, 10 * step
        events += [
            note(at, 1000, f"ProfilerStep#{step}"),
            call(at + 1, 1, first),
            kernel(at + 5, 10, first, "elementwise"),
            op(at + begin - 5, 4, "aten::mm", **{"Input Dims": [[rows, 64], [64, 64]], "Input type": ["float"] * 2}),
            call(at + begin - 4, 2, first + 1),
            kernel(at + begin, dur, first + 1),
            collective(at + begin + dur, 400 - begin - dur, 1 << 20, step),
        ]
        if extra:
            events += [
                op(at + 20, 8, "aten::bmm", **{"Input Dims": [[2, 64, 64]] * 2, "Input type": ["float"] * 2}),
                call(at + 21, 2, first + 3),
                kernel(at + begin - extra, extra, first + 3),
            ]
        if loads:
            events.append(note(at + 10, loads, "enumerate(DataLoader)#x"))
    write(folder / f"rank{number}.json", *events, rank=number, world_size=world, **header)


def sampled(mhz: int, held: int) -> dict[str, Any]:
    """What the recorder notes of a GPU at that clock, held down by its power cap in so many of ten samples per step."""
    columns = ["step", "samples", "sm_mhz", "power_mw", "power_cap", "thermal"]
    return {"columns": columns, "steps": [[step, 10, mhz, 400_000, held, 0] for step in range(6)]}


@pytest.mark.parametrize(
    ("mhz", "says"),
    [
        (
            1200,
            "; its SM clock is 1,200 MHz, 1,700 MHz on its peers, held down by its power cap in 90.0 % of the samples",
        ),
        (1690, ""),  # as fast as its peer's: the cap is not why it is slow
    ],
)
def test_a_device_that_is_slow_by_its_clock(tmp_path: Path, mhz: int, says: str) -> None:
    rank(tmp_path, 0, begin=15, dur=100, rows=64, gpuscope_gpu=sampled(1700, 0))
    rank(tmp_path, 1, begin=15, dur=160, rows=64, gpuscope_gpu=sampled(mhz, 9))
    report = gpuscope.analyze(tmp_path).report
    (entry,) = report["stragglers"]
    assert entry["reason"] == "device"
    assert (entry["reason_why"] or "").endswith("per step longer" + says)
    assert [one["joules_per_step"] for one in report["power"]] == [pytest.approx(0.4)] * 2  # 400 W for 1 ms
    (finding,) = [one for one in report["findings"] if one["code"] == "clocks_held"]
    assert finding["ranks"] == [1]


@pytest.mark.parametrize(
    "counted", [7, {"columns": ["step"], "steps": [[1]]}, {"columns": 1}, sampled(0, 0) | {"steps": []}]
)
def test_what_can_not_be_read_of_a_gpu_says_nothing(tmp_path: Path, counted: Any) -> None:
    rank(tmp_path, 0, begin=15, dur=100, rows=64, gpuscope_gpu=counted)
    rank(tmp_path, 1, begin=15, dur=160, rows=64)
    assert "power" not in gpuscope.analyze(tmp_path).report


@pytest.mark.parametrize(
    ("late", "reason", "says"),
    [
        # The same product takes 160 in place of 100.
        ({"begin": 15, "dur": 160, "rows": 64}, "device", "the same operations on the same shapes take 60.00 µs"),
        # One of twice the rows does.
        ({"begin": 15, "dur": 160, "rows": 128}, "data", "60.00 µs per step more: aten::mm on inputs"),
        # It begins 60 later, after the loader.
        ({"begin": 75, "dur": 100, "rows": 64, "loads": 60}, "host", "60.00 µs per step longer (data loader (input))"),
    ],
)
def test_reason(tmp_path: Path, late: dict[str, int], reason: str, says: str) -> None:
    rank(tmp_path, 0, begin=15, dur=100, rows=64)
    rank(tmp_path, 1, **late)
    (entry,) = gpuscope.analyze(tmp_path).report["stragglers"]
    assert (entry["rank"], entry["caused_wait_ns"]) == (1, 5 * 60_000)
    assert entry["reason"] == reason
    assert says in entry["reason_why"]
    assert entry.get("host_cause") == ("input" if reason == "host" else None)


@pytest.mark.parametrize(
    ("gelu", "adam", "reason"),
    [(90, 30, "data"), (90, 44, "device"), (60, 30, None)],  # the products alone may be slowed by clocks
)
def test_the_reason_without_shapes(tmp_path: Path, gelu: int, adam: int, reason: str | None) -> None:
    """Rank 0 takes 60 and 30, and 100 for a product that takes rank 1 150."""
    for number, durations in enumerate(((100, 60, 30), (150, gelu, adam))):
        events: list[Event] = []
        for step in range(6):
            at = 1000 * step
            events.append(note(at, 1000, f"ProfilerStep#{step}"))
            for name, dur in zip(("gemm", "gelu_kernel", "multi_tensor_apply_kernel"), durations, strict=True):
                events += [call(at + 1, 1, len(events)), kernel(at + 10, dur, len(events), name)]
                at += dur
            events.append(collective(at + 20, 1000 * step + 400 - at - 20, 1 << 20, step))
        write(tmp_path / f"rank{number}.json", *events, rank=number, world_size=2)
    (entry,) = gpuscope.analyze(tmp_path).report["stragglers"]
    assert (entry["rank"], entry["reason"]) == (1, reason)
    assert ("more_work" in entry) == (reason == "data")


def test_an_operation_that_no_other_rank_runs_is_named(tmp_path: Path) -> None:
    rank(tmp_path, 0, begin=35, dur=100, rows=64)
    rank(tmp_path, 1, begin=95, dur=100, rows=64, extra=60)
    (entry,) = gpuscope.analyze(tmp_path).report["stragglers"]
    assert (entry["reason"], entry.get("own_operation")) == ("data", "aten::bmm")
    assert "1 aten::bmm that only it runs" in entry["reason_why"]


def test_what_a_second_rank_runs_too_is_not_the_first_ones_alone(tmp_path: Path) -> None:
    """As on the last stage of a pipeline: the median of the others has none."""
    for number, extra in enumerate((0, 0, 60, 50)):
        rank(tmp_path, number, begin=35 + extra, dur=100, rows=64, extra=extra, world=4)
    for entry in gpuscope.analyze(tmp_path).report["stragglers"]:
        assert "own_operation" not in entry
        assert "no other rank" not in entry["reason_why"]
