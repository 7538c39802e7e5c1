"""What sets a stage apart from the others, from the work of its ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.pipelines import stage_pace
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import NA, SCHEMAS

PLACES = {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (1, 0), 4: (1, 1), 5: (1, 2)}
"""Two pipelines of three stages."""


def paced(monkeypatch: pytest.MonkeyPatch, count: tuple[int, ...], dur: tuple[int, ...], stage: int) -> Any:
    """`pace` where each rank does one operation on one shape so often and so long in 4 steps."""
    monkeypatch.setattr(stage_pace, "judged_core_times", lambda _: {})
    columns = {"rank": list(PLACES), "operation": 0, "dims": 1, "count": count, "dur": dur, "steps": 4, "elements": NA}
    trace = {"work": Table.build(SCHEMAS["work"], len(PLACES), columns)}
    return stage_pace.pace(cast(RunFacts, SimpleNamespace(trace=trace)), StageMap(PLACES, "", "measured", ""), stage)


def test_a_slow_stage_and_one_with_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 ns an operation and two a step elsewhere. On stage 1 the same take 150 and 250 ns, by the mean of its ranks
    200 a step longer; or stage 2 has twice as many."""
    slow = paced(monkeypatch, (8,) * 6, (800, 1200, 800, 800, 2000, 800), 1)
    assert (slow.slower, slow.more, slow.of_rank) == (200, 0, True)
    larger = paced(monkeypatch, (8, 8, 16, 8, 8, 16), (800, 800, 1600, 800, 800, 1600), 2)
    assert (larger.slower, larger.more, larger.known, larger.of_rank) == (0, 200, True, False)


def test_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paced(monkeypatch, (8,) * 6, (800,) * 6, 7) is None
