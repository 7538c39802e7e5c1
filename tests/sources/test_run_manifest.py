"""How a run ended, from the manifest of its folder."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.kineto import kernel, write

import gpuscope
from gpuscope.sources.run_manifest import ended


def manifest(folder: Path, **told: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"run_id": "x", "status": "completed", **told}))
    return folder


def test_the_culprit_comes_before_those_whose_connection_it_cut(tmp_path: Path) -> None:
    ranks = [
        {"rank": 0, "status": "failed", "error": "RuntimeError: Connection reset by peer", "ended_ns": 1},
        {"rank": 1, "status": "failed", "error": "ValueError: my own bug\nsecond line", "ended_ns": 2},
        {"rank": 2, "status": "killed", "error": None, "ended_ns": 3},
        {"rank": 3, "status": "completed", "error": None},
    ]
    told = ended(manifest(tmp_path, status="failed", ranks=ranks))
    assert told is not None
    assert told.badly
    assert told.failures == (
        "rank 2 killed",
        "rank 1 failed: ValueError: my own bug",
        "rank 0 failed: RuntimeError: Connection reset by peer",
    )


def test_a_healthy_run_and_other_manifests_say_nothing(tmp_path: Path) -> None:
    told = ended(manifest(tmp_path))
    assert told is not None
    assert not told.badly
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    assert ended(tmp_path) is None
    (tmp_path / "manifest.json").write_text("{")
    assert ended(tmp_path) is None


def test_the_report_says_that_the_run_failed(tmp_path: Path) -> None:
    problems = [{"severity": "error", "code": "hang", "message": "rank 1 never joined"}]
    manifest(tmp_path, status="failed", ranks=[{"rank": 1, "status": "killed"}], problems=problems)
    write(tmp_path / "rank0.json", kernel(0, 5))
    told = {p["code"]: p["message"] for p in gpuscope.analyze(tmp_path).report["problems"]}
    assert told["run_ended_early"].endswith("the run failed: rank 1 killed")
    assert told["run_trouble"].endswith("rank 1 never joined")
