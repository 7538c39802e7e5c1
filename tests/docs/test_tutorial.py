"""The tutorial and coming-from.md run as they stand; the gallery shows what the program prints today."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import needs, snippets
from helpers.warm_python import executable
from simulator.job import Job
from simulator.kineto_rows import write_kineto
from simulator.training import simulate

from gpuscope.analyzers.comparison.comparison import SECTIONS as DIFF_SECTIONS
from gpuscope.analyzers.run.analysis import SECTIONS


@pytest.mark.slow
def test_the_page_leads_from_slow_to_proven_faster(
    tmp_path: Path, walkthrough: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "executable", executable())
    text = walkthrough.PAGE.read_text(encoding="utf-8")
    walked = _until_decided(walkthrough, text, tmp_path)
    assert walked.advised > 1
    _record, analyze, _again, diff, check = walked.printed
    assert "data loader" in walked.printed[analyze]
    assert "CPU-bound: " in walked.printed[analyze]
    assert walked.printed[diff].startswith("Improvement: step ")
    assert "applied: loader_workers" in walked.printed[diff]
    assert "passed" in walked.printed[check]


def _until_decided(walkthrough: ModuleType, text: str, folder: Path) -> Any:
    """The first of three walks whose recordings a busy machine left alike enough for a verdict, or the last."""
    for attempt in range(3):
        (tried := folder / str(attempt)).mkdir()
        walked = walkthrough.walk(text, tried)
        if walked.advised > 1 and any(printed.startswith("Improvement: ") for printed in walked.printed.values()):
            break
    return walked


def test_what_the_page_shows_was_printed(walkthrough: ModuleType) -> None:
    """Its blocks are whole outputs of its own commands, with the number of processes that the first of them names."""
    text = walkthrough.PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)\n```", text, re.DOTALL)
    blocks = re.findall(r"<!-- recorded: (.+?) -->\n```console\n\$ (.+?)\n(.*?)```\n<!-- end -->", text, re.DOTALL)
    assert [marked.partition(" | ")[0] for marked, _, _ in blocks] == [commands[1], commands[3]]
    assert all(marked.partition(" | ")[0] == typed for marked, typed, _ in blocks)
    (analyzed, compared) = (printed for _, _, printed in blocks)
    [advised] = set(re.findall(r"num_workers=(?:\d+ → )?(\d+)", analyzed))
    assert commands[2].endswith(f"train.py {advised}")
    [(before, after)] = re.findall(r": ([\d.]+)(?: \w+)? → (\S+ \w+)", " ".join(analyzed.split()))
    assert f"predicted {after} (" in compared
    assert before in compared.partition("→")[0]


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


DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "gallery.md"]
BLOCK = re.compile(r"<!-- public: (?P<path>.+?) -->\n(?P<shown>.*?)\n<!-- end -->", re.DOTALL)
SHOWN = {match["path"]: match["shown"] for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}


def test_there_are_reports_of_many_kinds_of_jobs() -> None:
    assert len(SHOWN) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("path", SHOWN)
def test_a_report_is_what_the_program_prints(path: str, generate: ModuleType) -> None:
    if not (generate.PUBLIC / path).exists():
        pytest.skip(needs.PUBLIC_TRACES)
    assert generate.public(path) == SHOWN[path], "run `make docs` and look at what changed"
