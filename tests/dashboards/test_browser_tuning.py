"""Following `gpuscope tune` in a real browser: what was tried appears, and it says when it has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.browser import Browser
from helpers.dashboards import TOKEN, served

from gpuscope.dashboards.live import create_tuning_app, is_tuning
from gpuscope.plugins import COMMANDS, load
from gpuscope.schema.plan_document import RESULT

pytestmark = pytest.mark.xdist_group("browser")

MS = 1_000_000


def change(code: str, before: int, measured: int | None, kept: bool) -> dict[str, Any]:
    predicted = None if code == "cpu_threads" else before // 2
    return {
        "code": code,
        "action": code,
        "setting": code,
        "changes": [{"name": code, "value": "4"}],
        "before_ns": before,
        "predicted_ns": predicted,
        "low_ns": predicted and predicted - MS,
        "high_ns": predicted and predicted + MS,
        "measured_ns": measured,
        "ratio_low": 0.4,
        "ratio_high": 0.6,
        "kept": kept,
        "outcome": "faster" if kept else "failed",
        "why": "<b>beyond chance</b>" if kept else "it crashed",
        "runs": 2,
    }


def write(folder: Path, now: str, *changes: dict[str, Any]) -> None:
    """What `gpuscope tune` has written of a step of 40 ms."""
    best = [one["measured_ns"] for one in changes if one["kept"]] or [40 * MS]
    found = {
        "tune_version": 1,
        "gpuscope_version": "0",
        "command": ["python", "train.py"],
        "folder": str(folder),
        "ended": "done",
        "now": now,
        "baseline_step_ns": 40 * MS,
        "best_step_ns": best[-1],
        "ratio_low": None,
        "ratio_high": None,
        "noise_frac": 0.01,
        "losses": "equal",
        "changes": changes,
        "runs": 3,
        "seconds": 60.0,
        "seconds_of_runs": 50.0,
        "seconds_of_analysis": 10.0,
        "budget": "24",
        "take": ["export A=1"],
        "written": [],
        "by_hand": [{"code": "host_other", "action": "Move it", "setting": "a thread", "why": "own work"}],
    }
    (folder / RESULT).write_text(json.dumps(found))


def test_what_was_tried_appears(browser: Browser, tmp_path: Path) -> None:
    write(tmp_path, "loader_workers")
    assert is_tuning(tmp_path)
    with served(create_tuning_app(tmp_path, TOKEN)) as address:
        browser.driver.get(f"{address}/?token={TOKEN}")
        browser.wait(lambda: "under way: loader_workers" in browser.text("main"))
        assert "nothing kept" in browser.text("main")
        write(
            tmp_path, "", change("loader_workers", 40 * MS, 21 * MS, True), change("cpu_threads", 21 * MS, None, False)
        )
        browser.wait(lambda: "nothing is left to try" in browser.text("main"), 30)
        browser.wait(lambda: "<b>beyond chance</b>" in browser.text("main"))  # as text
        assert all(word in browser.text("main") for word in ("21.00 ms", "it crashed", "export A=1", "Move it"))
        for scheme in ("light", "dark"):
            with browser.seen_as(scheme, 1024):
                browser.wait(lambda: browser.script("return document.querySelectorAll('.ag-row').length") >= 3)
                assert browser.violations() == []
        assert browser.errors() == []


def test_another_document_is_refused(tmp_path: Path) -> None:
    (tmp_path / RESULT).write_text("[]")
    found = CliRunner().invoke(load(COMMANDS, "dashboard"), [str(tmp_path), "--watch", "--port", "0"])
    assert found.exit_code != 0
    assert "no result of gpuscope tune" in str(found.exception)
