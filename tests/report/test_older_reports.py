"""Reports of schema version 2 are still read: from a file, from the run store, in a comparison and in the dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import call
from helpers.reports import report

from gpuscope.report.read_report import brought_up, dumps, read_report
from gpuscope.store.store import opened

MS = 1_000_000
FINDING = {
    "code": "input",
    "severity": "high",
    "message": "waits",
    "ranks": [0],
    "cost_ns_per_step": 60 * MS,
    "cost_ns": 180 * MS,
    "share_frac": 0.3,
    "evidence": [],
}
LATE = {
    "rank": 1,
    "caused_wait_ns": 90 * MS,
    "caused_wait_ns_per_step": 40 * MS,
    "root_wait_ns": 90 * MS,
    "phase": None,
    "operation": None,
    "recurrent": True,
    "reason": None,
    "reason_why": "",
}


def of_version_2() -> dict[str, Any]:
    """Steps of 100, 100 and 400 ms: the mean is twice the step."""
    once = {**FINDING, "code": "startup", "cost_ns_per_step": None, "share_frac": 0.0}
    document: dict[str, Any] = json.loads(
        dumps(
            report(
                100.0,
                100.0,
                400.0,
                findings=[FINDING, once],
                stragglers=[LATE],
                rank_steps=[],
                advice={"why": "", "unpredicted": []},
            )
        )
    )
    document["schema_version"] = 2
    return document


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(of_version_2()), encoding="utf-8")
    return path


def test_its_costs_per_step_are_told_anew(old: Path) -> None:
    found = read_report(old, ("findings",))
    assert found is not None
    assert [one.get("per_step_ns") for one in found["findings"]] == [30 * MS, None]
    assert found["stragglers"][0]["per_step_ns"] == 20 * MS
    assert found["schema_version"] == 3


def test_its_changes_stand_in_the_order_that_pages_show() -> None:
    def change(code: str, finding: str) -> dict[str, Any]:
        return {"code": code, "finding": finding, "certain": True}

    document = of_version_2()
    document["verdict"] |= {"bound_by": "cpu", "cause": "input"}
    document["suggestions"] = [change("compile", "unfused_kernels"), change("loader_workers", "input")]
    document["advice"]["why"] = "advice was not asked for"
    found = brought_up(document)
    assert [one["code"] for one in found["suggestions"]] == ["loader_workers", "compile"]
    assert found["advice"]["asked"] is False


def test_a_version_that_is_not_read_is_left_alone() -> None:
    assert brought_up({"schema_version": 1}) == {"schema_version": 1}


def test_the_store_compares_and_shows_it(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = tmp_path / "runs.db"
    with opened(store, write=True) as open_store:
        number = open_store.add(of_version_2(), "key", [], {})  # type: ignore[arg-type]
    for arguments in (
        ["runs", "show", str(number), "--store", str(store), "--full"],
        ["open", str(number), "--store", str(store), "--print"],
        ["open", str(old), "--print"],
        ["diff", str(number), str(old), "--store", str(store)],
    ):
        done = call(capsys, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        if "--full" in arguments:
            assert "30.00 ms per step" in done.stdout
            assert "60.00 ms" not in done.stdout


def test_the_dashboard_opens_it(old: Path) -> None:
    pytest.importorskip("dash")
    from gpuscope.analyzers.run.runner import Options
    from gpuscope.dashboards.data.open_runs import open_run

    document = json.loads(old.read_text())
    document |= {key: [] for key in ("kernel_ranks", "operators", "ranges", "phases")}
    old.write_text(json.dumps(document))
    assert open_run("1", str(old), Options()).report["findings"][0].get("per_step_ns") == 30 * MS
