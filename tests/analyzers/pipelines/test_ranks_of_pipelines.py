"""What sets a rank or a stage of a pipeline apart: slow at equal work, more layers, or other work; by hand (µs)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.kineto import Event, call, kernel, note, op, write

import gpuscope
from gpuscope.analyzers.facts.pipeline_facts import StageMap
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.pipelines import pipeline_findings
from gpuscope.schema.document import FindingEntry, Report
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.table import Table

EVEN = {
    0: [("forward", 0, 0, 10), ("forward", 1, 10, 20), ("backward", 0, 40, 60), ("backward", 1, 70, 90)],
    1: [("forward", 0, 10, 20), ("backward", 0, 20, 40), ("forward", 1, 40, 50), ("backward", 1, 50, 70)],
}
SLOW_STAGE_1 = {
    0: [("forward", 0, 0, 10), ("forward", 1, 10, 20), ("backward", 0, 70, 90), ("backward", 1, 130, 150)],
    1: [("forward", 0, 10, 30), ("backward", 0, 30, 70), ("forward", 1, 70, 90), ("backward", 1, 90, 130)],
}
STEPS = 6
Times = dict[int, list[tuple[str, int, int, int]]]


def run(folder: Path, times: Times, rows: tuple[int, int] = (64, 64), besides: tuple[int, int] = (0, 0)) -> Report:
    """Two stages, 1F1B, six steps of 400. `rows` are of the inputs of each stage's products; before its stage each rank
    computes `besides`, and the pipeline begins when both have."""
    for rank in (0, 1):
        events: list[Event] = []
        for step in range(STEPS):
            at, correlation = 400 * step, 100 * step
            events.append(note(at, 390, f"ProfilerStep#{step}"))
            if besides[rank]:
                events += [*product(at + 2, correlation + 90, 64), kernel(at + 100, besides[rank], correlation + 90)]
            for number, (kind, batch, start, end) in enumerate(times[rank]):
                host, name = at + 5 + 10 * number, f"{kind}#micro_batch={batch},stage={rank}"
                events += [
                    note(host, 4, name),
                    *product(host, correlation + number, rows[rank], kind),
                    kernel(at + 100 + max(besides) + start, end - start, correlation + number),
                ]
        write(folder / f"rank{rank}.json", *events, rank=rank, world_size=2)
    return gpuscope.analyze(folder).report


def product(at: int, correlation: int, rows: int, kind: str = "forward") -> list[Event]:
    """An operator on inputs of so many rows that launches a kernel."""
    shapes: dict[str, Any] = {"Input Dims": [[rows, 64], [64, 64]], "Input type": ["float"] * 2}
    return [op(at, 3, "aten::mm" if kind == "forward" else "aten::bmm", **shapes), call(at + 1, 1, correlation)]


def found(report: Report, *codes: str) -> list[FindingEntry]:
    return [one for one in report["findings"] if one["code"] in codes]


def test_a_stage_that_is_slow_at_equal_work(tmp_path: Path) -> None:
    """Stage 1 takes twice as long for products of the same shapes: 60 per step, for which a stage idles 30 (mean)."""
    report = run(tmp_path, SLOW_STAGE_1)
    (finding,) = found(report, "slow_worker", "pipeline_imbalance")
    assert (finding["code"], finding["ranks"], finding["cost_ns_per_step"]) == ("slow_worker", [1], 30_000)
    assert "the same operations on the same shapes take 60.00 µs of a step longer" in finding["message"]


def test_a_stage_with_more_to_compute_is_not_slow(tmp_path: Path) -> None:
    """The same times, but stage 1's products have twice the rows: its layers are too many, its device is well."""
    report = run(tmp_path, SLOW_STAGE_1, rows=(64, 128))
    (finding,) = found(report, "slow_worker", "pipeline_imbalance")
    assert (finding["code"], finding["ranks"]) == ("pipeline_imbalance", [1])
    assert "can't be distinguished" not in finding["message"]
    assert "slow_rank" not in {one["code"] for one in report["suggestions"]}


@pytest.mark.parametrize(
    ("besides", "late"),
    [((0, 60), [1]), ((60, 0), [0]), ((60, 60), []), ((0, 5), [])],
)
def test_work_besides_the_pipeline(tmp_path: Path, besides: tuple[int, int], late: list[int]) -> None:
    """One rank computes 60 more than the other before the pipeline begins, of a step of some 150. Where both do, or
    where it is less than a tenth of the step, nobody is named."""
    report = run(tmp_path, EVEN, besides=besides)
    told = found(report, "work_outside_pipeline")
    assert [one["ranks"] for one in told] == [[rank] for rank in late]
    assert [one["cost_ns_per_step"] for one in told] == [60_000] * len(late)
    advice = [one for one in report["advice"]["unpredicted"] if one["code"] == "outside_work"]
    assert [one["bound"]["step_ns_low"] for one in advice] == [340_000] * len(late)  # no messages, so no replay
    assert found(report, "slow_worker", "pipeline_imbalance") == []


PLACES = {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (1, 0), 4: (1, 1), 5: (1, 2)}
"""Two pipelines of three stages."""


def paced(monkeypatch: pytest.MonkeyPatch, count: tuple[int, ...], dur: tuple[int, ...], stage: int) -> Any:
    """`pace` where each rank does one operation on one shape so often and so long in 4 steps."""
    monkeypatch.setattr(pipeline_findings, "judged_core_times", lambda _: {})
    columns = {"rank": list(PLACES), "operation": 0, "dims": 1, "count": count, "dur": dur, "steps": 4, "elements": NA}
    trace = {"work": Table.build(SCHEMAS["work"], len(PLACES), columns)}
    return pipeline_findings.pace(
        cast(RunFacts, SimpleNamespace(trace=trace)), StageMap(PLACES, "", "measured", ""), stage
    )


def test_a_slow_stage_and_one_with_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 ns an operation and two a step elsewhere. On stage 1 the same take 150 and 250 ns, by the mean of its ranks
    200 a step longer; or stage 2 has twice as many."""
    slow = paced(monkeypatch, (8,) * 6, (800, 1200, 800, 800, 2000, 800), 1)
    assert (slow.slower, slow.more, slow.of_rank) == (200, 0, True)
    larger = paced(monkeypatch, (8, 8, 16, 8, 8, 16), (800, 800, 1600, 800, 800, 1600), 2)
    assert (larger.slower, larger.more, larger.known, larger.of_rank) == (0, 200, True, False)


def test_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paced(monkeypatch, (8,) * 6, (800,) * 6, 7) is None
