"""`gpuscope bench collectives --json` as an input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.errors import InputError

ROW = {"op": "all_reduce", "ranks": 2, "nbytes": 1024, "time_ns": 30_500, "wrong": 0}


def table(folder: Path, *rows: Any) -> Path:
    document = {"schema_version": 1, "tool": "collectives", "iterations": 20, "warmup": 5, "rows": rows}
    path = folder / "bench.json"
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")
    return path


def test_a_row_is_a_measurement(tmp_path: Path) -> None:
    trace = gpuscope.open_trace(table(tmp_path, ROW))
    (row,) = trace.rows("measurements")
    assert (row["tool"], row["op"], row["group_size"], row["bytes"], row["dur"], row["count"], row["warmup"]) == (
        "gpuscope-bench",
        "all_reduce",
        2,
        1024,
        30_500,
        20,
        5,
    )


def test_its_bandwidth_is_in_the_report(tmp_path: Path) -> None:
    [entry] = gpuscope.analyze(table(tmp_path, ROW)).report["bandwidth"]
    assert (entry["tool"], entry["bytes"], entry["dur_ns"]) == ("gpuscope-bench", 1024, 30_500)
    assert entry["algbw_gbps"] == pytest.approx(1024 / 30_500)


def test_rows_that_are_none_are_counted(tmp_path: Path) -> None:
    broken = [{**ROW, "time_ns": 0}, {**ROW, "op": None}, "nothing"]
    trace = gpuscope.open_trace(table(tmp_path, ROW, *broken))
    assert len(trace.rows("measurements")) == 1
    assert [(one.code, one.count) for one in trace.problems if one.severity == "data_loss"] == [
        ("record_unreadable", 3)
    ]


def test_a_table_without_rows_and_one_cut_off_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row"):
        gpuscope.open_trace(table(tmp_path))
    path = table(tmp_path, ROW)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InputError, match="not a whole document"):
        gpuscope.open_trace(path)
