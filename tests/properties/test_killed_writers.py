"""A store and a cache whose writer is killed in the middle, or that has two writers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.kineto import call, kernel, write

import gpuscope
from gpuscope.report.read_report import dumps
from gpuscope.store.store import opened

ADDS = """
import json, sys
from pathlib import Path
from gpuscope.store.store import opened
report = json.loads(Path(sys.argv[2]).read_text())
print("ready", flush=True)
number = 0
while True:
    with opened(Path(sys.argv[1]), write=True) as store:
        store.add(report, f"{sys.argv[3]}{number}", ["rank0.json"], {})
    print(number, flush=True)
    number += 1
"""
KEEPS = """
import sys
import numpy as np
from gpuscope import cache as cache_folder, cache as object_files
number = 0
while True:
    array = np.full(1 << 18, number)
    cache_folder.store("one", object_files.prepared({"number": number, "array": array}))
    print(number, flush=True)
    number += 1
"""


def started(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def killed_after(process: subprocess.Popen[str], lines: int) -> list[int]:
    """The numbers that it said it had written, until it was killed at some later moment."""
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(lines)]
    time.sleep(0.003 * lines)
    process.send_signal(signal.SIGKILL)
    said += process.stdout.read().splitlines()
    process.wait()
    return [int(line) for line in said if line.strip().isdigit()]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report in a file."""
    trace = write(tmp_path / "rank0.json", call(0, 3, 1), kernel(5, 50, 1), kernel(60, 20))
    path = tmp_path / "report.json"
    path.write_text(dumps(gpuscope.analyze(trace).report))
    return path


@pytest.mark.parametrize("lines", [2, 5, 9])
def test_a_store_survives_a_killed_writer(tmp_path: Path, report: Path, lines: int) -> None:
    """All runs that were said to be stored are there and whole, and the next writer goes on."""
    path = tmp_path / "runs.db"
    written = killed_after(started(ADDS, str(path), str(report), "a"), lines)
    with opened(path, write=True) as store:
        store.add(json.loads(report.read_text()), "after", ["rank0.json"], {})
        runs = store.runs()
        assert {run["key"] for run in runs} >= {"after", *(f"a{number}" for number in written)}
        assert all(store.report(run["id"])["schema_version"] == 3 for run in runs)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_store_survives_two_writers_of_which_one_is_killed(tmp_path: Path, report: Path) -> None:
    path = tmp_path / "runs.db"
    one, other = (started(ADDS, str(path), str(report), name) for name in "ab")
    written = {"a": killed_after(one, 4), "b": killed_after(other, 4)}
    with opened(path) as store:
        keys = {run["key"] for run in store.runs()}
    assert keys >= {f"{name}{number}" for name, numbers in written.items() for number in numbers}


@pytest.mark.parametrize("lines", [1, 3])
def test_a_cache_survives_killed_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int) -> None:
    """Two write under one key and are killed: what is there is whole, of one of them, and can be replaced."""
    from gpuscope import cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = (started(KEEPS, XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    said = [killed_after(process, lines) for process in (one, other)]
    assert all(said)
    found = cache.load("one")
    assert found["array"].tolist() == [found["number"]] * len(found["array"])
    assert cache.store("one", cache.prepared({"number": -1}))
    assert cache.load("one") == {"number": -1}
