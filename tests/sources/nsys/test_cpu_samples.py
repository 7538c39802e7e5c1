"""Samples of the CPU as ranges: what a thread did while its device idled, worked by hand (ns)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.nsys import BACKENDS, Export, process

import gpuscope
from gpuscope.trace.frameworks import OFF_CORE
from gpuscope.trace.schema import Category

MAIN = process(10) + 10
PERIOD = 1_000_000


def sampled(export: Export, number: int, at: int, *stack: str, thread: int = MAIN) -> None:
    """A sample and its frames, the outermost first."""
    export.add("COMPOSITE_EVENTS", id=number, start=at, cpu=0, threadState=1, globalTid=thread, cpuCycles=1)
    for depth, symbol in enumerate(reversed(stack)):
        export.add("SAMPLING_CALLCHAINS", id=number, symbol=export.string(symbol), stackDepth=depth)


def export() -> Export:
    """Two kernels 20 ms apart; between them 16 samples in `shuffle`, called by `load`, and two in `write`."""
    made = Export()
    made.call(0, 10_000, 1)
    made.kernel(10_000, 500_000, 1)
    made.call(20_000_000, 20_010_000, 2)
    made.kernel(20_010_000, 20_500_000, 2)
    for k in range(16):
        leaf = ("shuffle", "0x7f00") if k % 2 else ("shuffle", "swap")
        sampled(made, k + 1, PERIOD * (k + 1), "main", "load", *leaf)
    for k in range(2):
        sampled(made, 17 + k, PERIOD * (17 + k), "main", "write")
    # Of another thread, which launches nothing.
    sampled(made, 99, PERIOD, "idle_loop", thread=MAIN + 1)
    return made


@pytest.mark.parametrize("backend", BACKENDS)
def test_consecutive_samples_make_ranges(tmp_path: Path, backend: str) -> None:
    trace = gpuscope.open_trace(export().write(tmp_path, backend))
    host = trace.tables["host_events"]
    host = host[host["category"] == Category.SAMPLE.name.lower()]
    found = {
        (row.name_, row.start // PERIOD, row.end // PERIOD)
        for row in host.rename(columns={"name": "name_"}).itertuples()
    }
    # Each lasts to the next sample that does not find it, the last one a period on.
    assert {one for one in found if one[0] != "swap"} == {
        ("main", 1, 19),
        ("load", 1, 17),
        ("shuffle", 1, 17),
        ("write", 17, 19),
    }
    assert sorted(one[1] for one in found if one[0] == "swap") == list(range(1, 17, 2))


def test_idle_time_is_placed_where_samples_find_the_thread(tmp_path: Path) -> None:
    report = gpuscope.analyze(export().write(tmp_path)).report
    (finding,) = (one for one in report["findings"] if one["code"] == "host_other")
    place = finding["evidence"][0]
    assert (place["name"], place.get("sampled")) == ("shuffle", True)
    assert place["covered_frac"] == pytest.approx(16 / 19.5, abs=0.01)
    assert "host_work_named" not in {one["code"] for one in report["advice"]["unpredicted"]}


def test_a_pause_between_samples_ends_what_they_show(tmp_path: Path) -> None:
    """The thread did not run for 12 periods: what it was in before and after is not known to have gone on."""
    made = Export()
    made.call(0, 10_000, 1)
    made.kernel(10_000, 500_000, 1)
    for k in (1, 2, 3, 15, 16, 17):
        sampled(made, k, PERIOD * k, "main", "load")
    trace = gpuscope.open_trace(made.write(tmp_path))
    host = trace.tables["host_events"]
    spans = host[host["name"] == "load"]
    assert [(start // PERIOD, end // PERIOD) for start, end in zip(spans["start"], spans["end"], strict=True)] == [
        (1, 4),
        (15, 18),
    ]


def test_time_off_the_core_is_what_no_call_explains(tmp_path: Path) -> None:
    """Off its core from 1 to 9 ms, of which 2 to 5 in a system call that waits, and from 12 to 15 ms."""
    made = Export()
    made.call(0, 10_000, 1)
    made.kernel(10_000, 500_000, 1)
    made.call(20_000_000, 20_010_000, 2)
    made.kernel(20_010_000, 20_500_000, 2)
    made.add("OSRT_API", start=2_000_000, end=5_000_000, globalTid=MAIN, nameId=made.string("poll"))
    for at, comes in ((0, 1), (1, 0), (9, 1), (12, 0), (15, 1)):
        made.add("SCHED_EVENTS", start=at * PERIOD, cpu=0, isSchedIn=comes, globalTid=MAIN)
    trace = gpuscope.open_trace(made.write(tmp_path))
    host = trace.tables["host_events"]
    away = host[host["name"] == OFF_CORE]
    spans = zip(away["start"] // PERIOD, away["end"] // PERIOD, strict=True)
    assert list(spans) == [(1, 2), (5, 9), (12, 15)]
