"""docs/coming-from.md, run as it stands on two simulated runs: before, and after a slow GPU was replaced."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import snippets
from simulator.job import Job
from simulator.kineto_rows import write_kineto
from simulator.training import simulate

from gpuscope.analyzers.comparison.comparison import SECTIONS as DIFF_SECTIONS
from gpuscope.analyzers.run.analysis import SECTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slow = Job(ranks=2, layers=4, device_slow={1: 1.4}, loader_ns=100_000, copy_bytes=4 << 20)
    for name, job in (("before", slow), ("after", replace(slow, device_slow={}, seed=2))):
        write_kineto(tmp_path / name, job, simulate(job))
    assert snippets.run(PAGE).failed == 0


def test_the_tables_it_names_exist() -> None:
    named = set(re.findall(r"""\[["'](\w+)["']\]""", re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.DOTALL)))
    tables = {name for name in named if name in SECTIONS or name in DIFF_SECTIONS}
    columns = {column for row in SECTIONS.values() for column in row.__annotations__}
    assert named - tables - columns == {"verdict", "efficiency", "host_events"}  # keys of the report
