"""`gpuscope analyze` fills the run store, `gpuscope runs` shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.kineto import call, kernel, write


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """0–80 compute, 80–100 idle, 100–110 compute: launch-bound."""
    return write(tmp_path / "rank0.json", call(-5, 2, 1), kernel(0, 80, 1), call(90, 2, 2), kernel(100, 10, 2))


def gpuscope(store: Path, *args: object, answer: str = "") -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "GPUSCOPE_NO_STORE"}
    env["GPUSCOPE_STORE"] = str(store)
    command = [sys.executable, "-m", "gpuscope", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, input=answer, env=env)


def test_an_analysis_is_kept_once_and_shown_as_it_was(store: Path, trace: Path) -> None:
    first = gpuscope(store, "analyze", trace, "--json", "--label", "before")
    assert gpuscope(store, "analyze", trace, "--json").stdout == first.stdout
    assert gpuscope(store, "analyze", trace, "--no-store").returncode == 0
    [row] = json.loads(gpuscope(store, "runs", "--json").stdout)
    assert (row["cause"], row["label"], row["paths"]) == ("launch", "before", [str(trace)])
    assert gpuscope(store, "runs", "show", row["id"], "--json").stdout == first.stdout
    assert gpuscope(store, "runs", "show", row["id"]).stdout.startswith("CPU-bound, 18 %")


def test_list_filters(store: Path, trace: Path) -> None:
    gpuscope(store, "analyze", trace)
    listed = gpuscope(store, "runs", "--cause", "launch", "--bound-by", "cpu", "--path", "rank0").stdout
    assert "18.2 %" in listed
    assert "No such run" in gpuscope(store, "runs", "--cause", "input").stdout


def test_deleting_asks_first(store: Path, trace: Path) -> None:
    gpuscope(store, "analyze", trace)
    assert gpuscope(store, "runs", "delete", 1, answer="n\n").returncode == 130
    assert gpuscope(store, "runs", "show", 1).returncode == 0
    assert gpuscope(store, "runs", "delete", 1, answer="y\n").returncode == 0
    done = gpuscope(store, "runs", "show", 1)
    assert (done.returncode, "no run 1" in done.stderr) == (2, True)


def test_a_file_that_is_no_store_is_kept_and_the_analysis_is_done(tmp_path: Path, trace: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    done = gpuscope(mine, "analyze", trace, "--json")
    assert (done.returncode, mine.read_text()) == (0, "mine")
    assert json.loads(done.stdout)["verdict"]["cause"] == "launch"
    assert done.stderr.startswith("Warning: this analysis is not kept")
    assert gpuscope(mine, "runs").returncode == 3


def test_no_store_yet(store: Path) -> None:
    done = gpuscope(store, "runs")
    assert (done.returncode, "no run store yet" in done.stderr) == (3, True)
    assert not store.exists()
