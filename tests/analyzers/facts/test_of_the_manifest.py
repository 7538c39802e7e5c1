"""What a run's manifest says is believed: the step in which a rank failed, and the settings that were in effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.kineto import call, kernel, note, write

import gpuscope
from gpuscope.sources.run_manifest import ended, settings_in_effect


def run(path: Path, status: str, ended_steps: int, last_ms: int = 300) -> Path:
    """Five steps of 1 ms and a last one in which the rank waits; a manifest that says how it ended."""
    events = []
    for step in range(6):
        at, long = 1_000 * step, 1_000 * last_ms if step == 5 else 950
        events += [note(at, long + 20, f"ProfilerStep#{step}"), call(at + 2, 5, step), kernel(at + 10, long, step)]
    write(path / "rank0.json", *events)
    (path / "manifest.d").mkdir()
    settings = {"ddp.bucket_cap_mb": [{"value": "default", "where": "a.py:1", "times": 2}]}
    facts = {"steps": ended_steps, "settings": settings}
    (path / "manifest.d" / "rank0.json").write_text(json.dumps({"rank": 0, "facts": facts}))
    ranks = [{"rank": 0, "status": status, "error": "RuntimeError: boom"}]
    (path / "manifest.json").write_text(json.dumps({"run_id": "a", "status": status, "ranks": ranks, "problems": []}))
    return path


@pytest.mark.parametrize(("status", "broken"), [("failed", 5), ("completed", None), ("interrupted", None)])
def test_the_step_in_which_a_rank_failed(tmp_path: Path, status: str, broken: int | None) -> None:
    end = ended(run(tmp_path, status, 5))
    assert end is not None
    assert end.broken_step == broken
    assert settings_in_effect(tmp_path) == {"ddp.bucket_cap_mb": ["default"]}


@pytest.mark.parametrize("failed_in", [1, 3, 5])
def test_nothing_is_judged_from_there_on(tmp_path: Path, failed_in: int) -> None:
    report = gpuscope.analyze(run(tmp_path, "failed", failed_in)).report
    roles = {step["step"]: step["role"] for step in report["steps"]}
    assert all(roles[step] == "partial" for step in range(failed_in, 6))
    assert report["step_time"] is not None
    assert report["step_time"]["steps"] <= failed_in
    assert report["step_time"]["max_ns"] < 2_000_000
    assert report["trace"]["setup"]["settings"] == {"ddp.bucket_cap_mb": ["default"]}
