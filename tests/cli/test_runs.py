"""`gpuscope analyze` fills the run store, `gpuscope runs` shows it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import kineto
from helpers.cli import Done, call


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """0–80 compute, 80–100 idle, 100–110 compute: launch-bound."""
    events = (kineto.call(-5, 2, 1), kineto.kernel(0, 80, 1), kineto.call(90, 2, 2), kineto.kernel(100, 10, 2))
    return kineto.write(tmp_path / "rank0.json", *events)


Call = Callable[..., Done]


@pytest.fixture
def gpuscope(store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls with a run store of their own; `answer` is what is typed."""
    monkeypatch.delenv("GPUSCOPE_NO_STORE")

    def called(*args: object, store: Path = store, answer: str = "") -> Done:
        monkeypatch.setenv("GPUSCOPE_STORE", str(store))
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        return call(capsys, *args)

    return called


def test_an_analysis_is_kept_once_and_shown_as_it_was(gpuscope: Call, trace: Path) -> None:
    first = gpuscope("analyze", trace, "--json", "--label", "before")
    assert gpuscope("analyze", trace, "--json").stdout == first.stdout
    assert gpuscope("analyze", trace, "--no-store").returncode == 0
    [row] = json.loads(gpuscope("runs", "--json").stdout)
    assert (row["cause"], row["label"], row["paths"]) == ("launch", "before", [str(trace)])
    assert gpuscope("runs", "show", row["id"], "--json").stdout == first.stdout
    assert gpuscope("analyze", trace).stderr == "Stored as run 1: gpuscope open 1, gpuscope runs show 1 --full\n"
    assert gpuscope("runs", "show", row["id"]).stdout.startswith("The host launches kernels more slowly")


def test_list_filters(gpuscope: Call, trace: Path) -> None:
    gpuscope("analyze", trace)
    listed = gpuscope("runs", "--cause", "launch", "--bound-by", "cpu", "--path", "rank0").stdout
    assert "18.2 %" in listed
    assert "No such run" in gpuscope("runs", "--cause", "input").stdout


def test_deleting_asks_first(gpuscope: Call, trace: Path) -> None:
    gpuscope("analyze", trace)
    assert gpuscope("runs", "delete", 1, answer="n\n").returncode == 130
    assert gpuscope("runs", "show", 1).returncode == 0
    assert gpuscope("runs", "delete", 1, answer="y\n").returncode == 0
    done = gpuscope("runs", "show", 1)
    assert (done.returncode, "no run 1" in done.stderr) == (2, True)


def test_a_file_that_is_no_store_is_kept_and_the_analysis_is_done(gpuscope: Call, tmp_path: Path, trace: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    done = gpuscope("analyze", trace, "--json", store=mine)
    assert (done.returncode, mine.read_text()) == (0, "mine")
    assert json.loads(done.stdout)["verdict"]["cause"] == "launch"
    assert done.stderr.startswith("Warning: this analysis is not stored")
    assert gpuscope("runs", store=mine).returncode == 3


def test_no_store_yet(gpuscope: Call, store: Path) -> None:
    done = gpuscope("runs")
    assert (done.returncode, "no run store yet" in done.stderr) == (3, True)
    assert not store.exists()
