"""`gpuscope query` and `gpuscope.query`: what a run may be, and how rows are written."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from helpers.cli import gpuscope as run_cli

import gpuscope
from gpuscope.trace.schema import SCHEMAS

BY_RANK = "SELECT rank, count(*) AS steps, min(dur_ns) AS least_ns FROM steps GROUP BY rank"


def test_a_run_is_what_other_commands_take(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSCOPE_NO_STORE")
    trace, store, report = samples / "ddp_healthy", tmp_path / "runs.db", tmp_path / "report.json"
    report.write_text(run_cli("analyze", trace, "--json", "--store", store).stdout, encoding="utf-8")
    expected = json.loads(run_cli("query", trace, BY_RANK, "--json").stdout)
    assert [row[:2] for row in expected["rows"]] == [[0, 3], [1, 3]]
    codes = json.loads(run_cli("query", trace, "SELECT code FROM findings", "--json").stdout)
    for run in ("1", report):
        assert json.loads(run_cli("query", run, BY_RANK, "--json", "--store", store).stdout) == expected
        assert (
            json.loads(run_cli("query", run, "SELECT code FROM findings", "--json", "--store", store).stdout) == codes
        )
    one = json.loads(run_cli("query", trace, BY_RANK, "--json", "--ranks", "1").stdout)
    assert one["rows"] == expected["rows"][1:]


def test_rows_as_a_table_and_as_csv(samples: Path) -> None:
    trace = samples / "ddp_healthy"
    done = run_cli("query", trace, BY_RANK)
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["rank", "steps", "least_ns"]
    assert len({len(line) for line in (head, *lines)}) == 1
    wanted = [line.split() for line in (head, *lines)]
    assert list(csv.reader(StringIO(run_cli("query", trace, BY_RANK, "--csv").stdout))) == wanted
    cut = run_cli("query", trace, "SELECT name FROM host_events", "--limit", "2")
    assert len(cut.stdout.splitlines()) == 3
    assert "more than 2 rows" in cut.stderr


def test_without_sql_it_lists_the_tables(samples: Path) -> None:
    listed = run_cli("query", samples / "ddp_healthy").stdout.splitlines()
    assert {line.partition(":")[0] for line in listed} >= set(SCHEMAS)


@pytest.mark.parametrize(
    ("run", "sql", "code"),
    [
        ("ddp_healthy", "SELECT nothing FROM steps", 2),
        ("no_such_run", "SELECT rank FROM steps", 3),
        ("no_such_run", None, 3),
        (str(Path(__file__).parent), None, 3),
        ("ddp_healthy", "DELETE FROM steps", 2),
    ],
)
def test_errors_have_their_exit_codes(samples: Path, run: str, sql: str | None, code: int) -> None:
    done = run_cli("query", samples / run, *([sql] if sql else []))
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("Error: ")


def test_python_gives_a_frame(samples: Path) -> None:
    analysis = gpuscope.analyze(samples / "ddp_healthy")
    frame = gpuscope.query(analysis, "SELECT rank, device, name, dur_ns FROM device_events ORDER BY row")
    device = gpuscope.open_trace(samples / "ddp_healthy")["device_events"]
    assert frame["dur_ns"].dtype == "int64"
    assert frame["dur_ns"].tolist() == (device["end"] - device["start"]).tolist()
    assert frame["device"].isna().all()
    assert list(gpuscope.query(analysis, "SELECT rank FROM steps WHERE rank > 7").columns) == ["rank"]
