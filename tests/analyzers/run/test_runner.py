"""One file at a time, in one process or several: the same report."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.analyzers.run import runner
from gpuscope.analyzers.run.file_part import analyze_file
from gpuscope.analyzers.run.runner import Options, run
from gpuscope.sources.opening import inputs


def test_processes_change_nothing(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = inputs([samples / "ddp_slow_rank"])
    alone = run(items, Options()).report
    monkeypatch.setattr(runner, "PARALLEL_FROM", 0)
    assert run(items, Options(workers=2)).report == alone


def test_only_the_steps_asked_for(samples: Path) -> None:
    items = inputs([samples / "ddp_slow_rank"])
    whole, one = (run(items, Options(steps=steps)).report for steps in (None, (5, 5)))
    assert [step["step"] for step in one["steps"]] == [5, 5]
    (same,) = [step for step in whole["steps"] if (step["rank"], step["step"]) == (0, 5)]
    assert one["ranks"][0]["breakdown_ns"] == same["breakdown_ns"]
    assert one["ranks"][0]["window_ns"] == same["dur_ns"]


def test_what_stays_of_a_file_does_not_grow_with_its_events(samples: Path) -> None:
    (item, _) = inputs([samples / "ddp_slow_rank"])
    part = analyze_file(item, Options())
    kept = sum(len(part.trace[name]) for name in ("device_events", "host_events"))
    assert kept <= 2 * len(part.trace["collectives"])
