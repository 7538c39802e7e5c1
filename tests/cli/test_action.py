"""The GitHub Action: its form, and its step run as GitHub would run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def test_its_form() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash"
        # What a caller gives must not become part of a script.
        assert "inputs." not in step["run"]
    used = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == set(ACTION["inputs"])


def test_every_input_is_documented() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    section = page.partition("\n## GitHub Actions\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)) == set(ACTION["inputs"])


@pytest.mark.parametrize(
    ("run", "baseline", "finding", "status"),
    [
        ("ddp_slow_rank", "ddp_healthy", "", 1),
        ("ddp_healthy", "ddp_slow_rank", "high", 0),
        ("nothing", "ddp_healthy", "", 3),
    ],
)
def test_the_step(samples: Path, tmp_path: Path, run: str, baseline: str, finding: str, status: int) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gpuscope").write_text(f"#!{sys.executable}\nfrom gpuscope.cli import main\nmain()\n")
    (programs / "gpuscope").chmod(0o755)
    given = {
        "RUN": str(samples / run),
        "BASELINE": str(samples / baseline),
        "FAIL_ON": "5%",
        "FAIL_ON_FINDING": finding,
        "REPORT": str(tmp_path / "out"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    environment = {**os.environ, **given, "PATH": f"{programs}:{os.environ['PATH']}"}
    script = ROOT / ".github" / "check.sh"
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    if status == 3:
        return
    made = tmp_path / "out"
    assert json.loads((made / "check.json").read_text())["checks"][0]["status"] == ("failed" if status else "passed")
    assert "<testsuite" in (made / "junit.xml").read_text()
    assert (made / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "summary.md").read_text().startswith("```\n")
    assert ("::error" in done.stderr) == bool(status)
