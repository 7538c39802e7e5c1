"""Following a run in a real browser: alerts appear as the measures are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.browser import Browser
from helpers.dashboards import TOKEN, served

from gpuscope.dashboards.live import create_live_app

pytestmark = pytest.mark.xdist_group("browser")


def write(folder: Path, steps: range, late: int | None) -> None:
    """Steps of 100 ms on three ranks, in each of which rank `late` needs 90 ms itself and the others 50."""
    for rank in range(3):
        own = 90 if rank == late else 50
        with (folder / "measures" / f"rank{rank}.jsonl").open("a") as file:
            for step in steps:
                line = {
                    "step": step,
                    "rank": rank,
                    "first": step == 0,
                    "end_ns": step,
                    "step_ns": 100_000_000,
                    "exposed_communication_ns": (100 - own) * 1_000_000,
                }
                file.write(json.dumps(line) + "\n")


def test_a_rank_that_falls_behind_is_named(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "measures").mkdir()
    manifest = {"run_id": "r", "status": "completed"}  # so that the times of the steps do not matter
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    write(tmp_path, range(12), None)
    with served(create_live_app(tmp_path, TOKEN)) as address:
        browser.driver.get(f"{address}/?token={TOKEN}")
        browser.wait(lambda: "last step of all ranks" in browser.text("main"))
        assert "falls behind" not in browser.text("main")
        write(tmp_path, range(12, 30), 2)
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        browser.wait(lambda: "rank 2 falls behind" in browser.text(".alert"))
        assert "completed" in browser.text("main")
        browser.wait(lambda: len(browser.driver.find_elements("css selector", ".main-svg")) >= 3)
        assert browser.violations() == []
        assert browser.errors() == []
