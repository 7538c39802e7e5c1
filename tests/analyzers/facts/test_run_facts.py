"""What several analyses rest on is found once per run, however many of them ask."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import gpuscope
from gpuscope.analyzers.facts import call_order, clocks, matching, pipeline_facts
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.what_if_changes import EvenStages, Predicted

ONCE = (
    matching.match,
    clocks.estimate,
    clocks.waits,
    pipeline_facts.stage_map,
    pipeline_facts.assembled,
    pipeline_facts.flushes,
    call_order._seats,
    call_order.hosts,
)


def test_each_fact_of_a_run_is_found_once_also_for_predictions(samples: Path) -> None:
    """A pipeline's run: exposed communication, traffic, bandwidth, pipeline, slowdown and the replay all ask."""
    of: dict[CodeType, str] = {function.__code__: function.__name__ for function in ONCE}
    called: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in of:
            called[of[frame.f_code]] += 1

    sys.setprofile(count)
    try:
        analysis = gpuscope.analyze(samples / "pp_unbalanced_stage")
        assert analysis.replayer is not None
        outcome = analysis.replayer.predict(EvenStages())
    finally:
        sys.setprofile(None)
    assert isinstance(outcome, Predicted)
    assert {"pipeline", "slowdown", "replay"} <= analysis.report.keys()
    assert called == dict.fromkeys(of.values(), 1)


def test_facts_are_frozen(samples: Path) -> None:
    facts = RunFacts(gpuscope.open_trace(samples / "ddp_healthy"), ())
    with pytest.raises(FrozenInstanceError):
        facts.lanes = ()  # type: ignore[misc]
    assert facts.matched is facts.matched
