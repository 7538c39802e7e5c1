"""The report adds up, or it says which lane does not and by how much; worked out by hand (ns)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers.cli import call as gpuscope_call
from helpers.kineto import call, kernel, write

import gpuscope
from gpuscope.analyzers.base import analyzer
from gpuscope.analyzers.base.analyzer import PARTS, Attributed, Result, breaches, self_check
from gpuscope.analyzers.base.evidence import StepFacts
from gpuscope.analyzers.base.lanes import LaneSummary, LaneView, StepWindow
from gpuscope.analyzers.device_time import idle
from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.trace.intervals import EMPTY, Breakdown
from gpuscope.trace.trace import Trace


def parts(window: int, compute: int, communication: int, memory: int, idle: int) -> Breakdown:
    return Breakdown(window, compute, communication, memory, idle, communication, 0)


LANE = LaneSummary(
    rank=3,
    device=0,
    window=(1000, 2000),
    breakdown=parts(1000, 700, 100, 50, 150),
    steps=(StepWindow(1, 1000, 1400), StepWindow(2, 1400, 2000)),
    step_breakdowns=(parts(400, 300, 40, 20, 40), parts(600, 400, 60, 30, 110)),
    basis="ProfilerStep",
    exposed_communication=EMPTY,
    facts=(StepFacts(400), StepFacts(600)),
    thinned="",
    events=9,
)
CAUSES = {
    "input": Attributed(90, np.array([30, 60])),
    "allocator": Attributed(60, np.array([10, 50])),  # memory by class, idle by part
    "straggler": Attributed(70, np.array([40, 30])),
    UNDIVIDED_COMMUNICATION: Attributed(30, np.array([0, 30])),
    "copy": Attributed(50, np.array([20, 30])),
}


def said(lane: LaneSummary = LANE, **changed: Attributed) -> list[str]:
    return [*breaches(lane, {**CAUSES, **changed})]


def test_what_adds_up_is_no_breach() -> None:
    assert said() == []
    result, wrong = self_check([LANE], {LANE.key: CAUSES})
    assert (result.status, wrong) == ("ok", set())


def test_every_cause_is_a_share_of_one_part() -> None:
    communication = {"straggler", "latency", "bandwidth", "pipeline_bubble", UNDIVIDED_COMMUNICATION}
    assert {cause for cause, part in PARTS.items() if part == "exposed_communication"} == communication
    assert {cause for cause, part in PARTS.items() if part == "exposed_memory"} == {"copy", "paging"}
    assert {"allocator", "input", "sync", "launch", "host_other", UNATTRIBUTED} <= PARTS.keys()


def test_a_breakdown_that_does_not_sum_to_its_window() -> None:
    """730 + 100 + 50 + 150 = 1030 ns of 1000: the report of 103 %."""
    lane = dataclasses.replace(LANE, breakdown=parts(1000, 730, 100, 50, 150))
    (message,) = said(lane)
    assert message == (
        "the breakdown of the window (compute 730, exposed_communication 100, exposed_memory 50, idle 150) "
        "does not sum to its 1,000 ns"
    )


def test_causes_that_do_not_sum_to_their_part() -> None:
    """30 ns more of `input` in the second step: 120 + 60 of 150 idle in all, 90 + 50 of 110 there."""
    assert said(input=Attributed(120, np.array([30, 90]))) == [
        "the causes of idle in the window sum to 180 of 150 ns (input 120, allocator 60)",
        "the causes of idle in step 2 sum to 140 of 110 ns (input 90, allocator 50)",
    ]
    (message,) = said(copy=Attributed(50, np.array([20, 31])))
    assert message == "the causes of exposed_memory in step 2 sum to 31 of 30 ns (copy 31)"


def test_negative_time_does_not_make_up_for_too_much() -> None:
    more = {"input": Attributed(160, np.array([40, 120])), "gc": Attributed(-70, np.array([-10, -60]))}
    assert len(said(**more)) == 3


def test_a_part_whose_analysis_did_not_run_is_not_compared() -> None:
    causes = {cause: CAUSES[cause] for cause in ("input", "allocator", "copy")}
    assert self_check([LANE], {LANE.key: causes}, {"straggler"})[0].status == "ok"
    assert self_check([LANE], {LANE.key: causes}, {"copy"})[0].status == "failed"


@pytest.mark.parametrize(
    ("first", "second", "window", "message"),
    [
        ((1000, 1390), (1400, 2000), (1000, 2000), "steps do not tile the window: from 1,390 to 1,400 ns"),
        ((1000, 1400), (1400, 2000), (990, 2000), "steps do not tile the window: from 990 to 1,000 ns"),
        ((1000, 1400), (1400, 2000), (1000, 2010), "steps do not tile the window: from 2,000 to 2,010 ns"),
        ((1000, 2100), (2100, 2000), (1000, 2000), "step 2 ends 100 ns before it starts"),
    ],
)
def test_steps_that_do_not_tile_the_window(
    first: tuple[int, int], second: tuple[int, int], window: tuple[int, int], message: str
) -> None:
    lane = dataclasses.replace(LANE, window=window, steps=(StepWindow(1, *first), StepWindow(2, *second)))
    assert message in said(lane)


def test_the_message_names_the_lanes_and_stays_short() -> None:
    lanes = [dataclasses.replace(LANE, rank=rank) for rank in range(4)]
    result, wrong = self_check(lanes, {lane.key: {**CAUSES, "gc": Attributed(1, np.array([1, 0]))} for lane in lanes})
    assert result.why.startswith("rank 0, device 0: the causes of idle in the window sum to 151 of 150 ns")
    assert result.why.endswith("; and 5 more")  # two of each of four ranks, three of them told
    assert wrong == {lane.key for lane in lanes}


# ---- through the program ----


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Replaces attributes of a module's analyzer for the test."""

    def forget() -> None:
        analyzer._analyzers.cache_clear()
        analyzer.analyzers_of.cache_clear()

    def replace(module: ModuleType, **attributes: object) -> None:
        monkeypatch.setattr(module, "ANALYZER", dataclasses.replace(module.ANALYZER, **attributes))
        forget()

    yield replace
    monkeypatch.undo()
    forget()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """0–80 µs compute, 80–100 idle by launch, 100–110 compute."""
    return write(tmp_path / "rank0.json", call(-5, 2, 1), kernel(0, 80, 1), call(90, 2, 2), kernel(100, 10, 2))


def twice(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The causes of idle time, each counted twice."""
    result = idle.run(trace, lanes)
    for own in result.causes.values():
        for cause, one in own.items():
            own[cause] = Attributed(2 * one.total, 2 * one.per_step, one.evidence)
    return result


def test_an_analyzer_that_counts_twice_is_a_failed_analysis(
    trace: Path, replaced: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    replaced(idle, run=twice)
    done = gpuscope_call(capsys, "analyze", trace, "--json")
    assert done.returncode == 4
    says = "rank 0, device 0: the causes of idle in the window sum to 40,000 of 20,000 ns (launch 40,000)"
    assert done.stderr == f"Error: an analysis failed: self_check: {says}\n"
    report = json.loads(done.stdout)
    assert report["verdict"]["abstained"]
    assert says in report["verdict"]["why"]
    assert (report["ranks"][0]["stall_ns"]["cpu"], report["findings"], report["suggestions"]) == ({}, [], [])


def test_an_analyzer_that_forgets_is_a_failed_analysis(trace: Path, replaced: Callable[..., None]) -> None:
    replaced(idle, run=lambda trace, lanes: Result("idle"))  # noqa: ARG005 - an analyzer's signature
    report = gpuscope.analyze(trace).report
    (entry,) = [entry for entry in report["analyzers"] if entry["status"] == "failed"]
    assert entry["why"] == "rank 0, device 0: the causes of idle in the window sum to 0 of 20,000 ns (none)"


def test_a_cause_that_is_not_declared_is_a_failed_analysis(trace: Path, replaced: Callable[..., None]) -> None:
    replaced(idle, causes=("input", "sync"))
    (entry,) = [entry for entry in gpuscope.analyze(trace).report["analyzers"] if entry["status"] == "failed"]
    assert (entry["name"], entry["why"]) == ("idle", "it gives launch, which it does not declare")
