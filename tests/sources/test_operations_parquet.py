"""Operation-level Parquet: exact times, one clock, and input that is something else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from helpers.operations import rows, write
from pyarrow import parquet

import gpuscope
from gpuscope.errors import InputError
from gpuscope.sources.operations_parquet import COLUMNS, nanoseconds

JOB = """
0 forward-compute@0/0 0-10 10-20
0 optimizer 20-30
"""


def test_rows_become_operations(tmp_path: Path) -> None:
    trace = gpuscope.open_trace(write(tmp_path / "job.parquet", rows(JOB, step=7)))
    table = trace.tables["operations"]
    assert table["op"].tolist() == ["forward-compute", "forward-compute", "optimizer"]
    assert table["start"].tolist() == [0, 10_000_000, 20_000_000]
    assert table["end"].tolist() == [10_000_000, 20_000_000, 30_000_000]
    assert table["seq"].tolist() == [0, 1, 0]
    assert table["chunk"].isna().tolist() == [False, False, True]  # -1 in the file
    assert trace.tables["steps"][["step", "start", "end"]].to_numpy().tolist() == [[7, 0, 30_000_000]]


def test_whole_seconds_keep_the_digits_of_the_fraction() -> None:
    """1.7e9 s and a quarter is exact in float64, but not 1.7e18 ns; 0.1 as float32 is 0.100000001490…"""
    assert nanoseconds(np.array([1_700_000_000.25, -0.5])).tolist() == [1_700_000_000_250_000_000, -500_000_000]
    assert nanoseconds(np.array([0.1], np.float32)).tolist() == [100_000_001]


def test_steps_that_all_begin_at_zero_are_laid_end_to_end(tmp_path: Path) -> None:
    trace = gpuscope.open_trace(write(tmp_path / "job.parquet", rows(JOB, step=3), rows(JOB, step=9)))
    assert trace.tables["steps"]["start"].tolist() == [0, 30_000_000]
    assert trace.tables["operations"]["start"].tolist()[3:] == [30_000_000, 40_000_000, 50_000_000]
    assert "steps_from_zero" in {problem.code for problem in trace.problems}


def test_steps_on_one_clock_stay_where_they_are(tmp_path: Path) -> None:
    later = rows(JOB, step=9)
    for row in later:
        row["start_ts"] += 5.0
    trace = gpuscope.open_trace(write(tmp_path / "job.parquet", rows(JOB, step=3), later))
    assert trace.tables["steps"]["start"].tolist() == [0, 5_000_000_000]


def test_rows_that_say_too_little_are_counted(tmp_path: Path) -> None:
    job = rows(JOB)
    values = {
        "start_ts": [None, 0.01, 0.02],
        "rank": [0, None, 0],
        "optype": ["forward-compute", "forward-compute", "optimizer"],
    }
    trace = gpuscope.open_trace(write(tmp_path / "job.parquet", job, **values))
    assert trace.tables["operations"]["op"].tolist() == ["optimizer"]
    found = {problem.code: problem.count for problem in trace.problems}
    assert (found["bad_time"], found["bad_operation"]) == (1, 1)


@pytest.mark.parametrize("missing", [("start_ts",), ("gmc", "seq_id")])
def test_missing_columns_are_named(tmp_path: Path, missing: tuple[str, ...]) -> None:
    path = write(tmp_path / "job.parquet", rows(JOB), without=missing)
    with pytest.raises(InputError, match="without the columns") as caught:
        gpuscope.open_trace(path)
    named = ", ".join(column for column in COLUMNS if column in missing)
    assert caught.value.message == f"{path}: an operation-level trace without the columns {named}"
    assert "start_ts" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("start_ts", ["soon"] * 3, "start_ts holds string, not seconds"),
        ("stage", [0.5] * 3, "stage holds double, not integers"),
        ("optype", [1, 2, 3], "optype holds int64, not names"),
        ("start_ts", [None] * 3, "start_ts holds null, not seconds"),
        ("rank", [None] * 3, "holds no operations"),
    ],
)
def test_columns_of_another_type(tmp_path: Path, column: str, values: list[Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        gpuscope.open_trace(write(tmp_path / "job.parquet", rows(JOB), **{column: values}))


def test_a_file_without_rows(tmp_path: Path) -> None:
    table = parquet.read_table(write(tmp_path / "job.parquet", rows(JOB)))
    parquet.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    with pytest.raises(InputError, match=r"none\.parquet: holds no operations"):
        gpuscope.open_trace(tmp_path / "none.parquet")


def test_parquet_of_something_else_is_not_taken(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"name": ["dp_rank"], "rank": [0]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="unrecognised trace format"):
        gpuscope.open_trace(tmp_path / "other.parquet")
    write(tmp_path / "job.parquet", rows(JOB))
    assert len(gpuscope.open_trace(tmp_path)["operations"]) == 3  # in a folder, the other is passed over


def test_any_cut_is_an_error(tmp_path: Path) -> None:
    content = write(tmp_path / "job.parquet", rows(JOB)).read_bytes()
    for end in range(0, len(content), 97):
        (tmp_path / "cut.parquet").write_bytes(content[:end])
        with pytest.raises(InputError):
            gpuscope.open_trace(tmp_path / "cut.parquet")


def test_without_pyarrow_what_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "job.parquet", rows(JOB))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs pyarrow") as caught:
        gpuscope.open_trace(path)
    assert "pip install 'pyarrow" in str(caught.value.hint)
