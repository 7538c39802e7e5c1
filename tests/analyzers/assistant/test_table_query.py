"""SQL that reads, and SQL that tries more."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuscope
from gpuscope.analyzers.assistant import table_query
from gpuscope.analyzers.assistant.table_query import query
from gpuscope.errors import UsageError
from gpuscope.trace.trace import Trace


@pytest.fixture(scope="module")
def trace(samples: Path) -> Trace:
    return gpuscope.open_trace(samples / "ddp_healthy")


def test_names_are_text_and_absent_is_null(trace: Trace) -> None:
    found = query(trace, "SELECT DISTINCT kind, device FROM device_events ORDER BY kind")
    assert (found.columns, found.rows) == (["kind", "device"], [("communication", None), ("compute", None)])
    joined = query(trace, "SELECT count(*) FROM collectives c JOIN ranks r USING (rank) WHERE op = 'all_reduce'")
    assert joined.rows[0][0] == len(trace["collectives"])


def test_rows_are_limited(trace: Trace) -> None:
    found = query(trace, "SELECT * FROM host_events", 10)
    assert (len(found.rows), found.more) == (10, True)
    assert len(query(trace, "SELECT * FROM host_events", 10**9).rows) == table_query.MOST_ROWS


@pytest.mark.parametrize(
    "sql",
    ["ATTACH 'x.db' AS x", "PRAGMA writable_schema=1", "PRAGMA table_info(ranks)", "DELETE FROM ranks",
     "INSERT INTO ranks VALUES (1)", "CREATE TABLE x (a)", "CREATE TEMP TABLE x (a)", "VACUUM INTO 'x.db'",
     "DROP TABLE ranks", "UPDATE ranks SET rank = 1", "SELECT load_extension('x')",
     "SELECT * FROM pragma_database_list", "BEGIN", "SELECT 1; SELECT 2", "SELECT readfile('/etc/passwd')", "",
     "nonsense", "SELECT * FROM nothing", "WITH x AS (SELECT 1) DELETE FROM ranks", "DETACH main",
     "ANALYZE", "REINDEX", "EXPLAIN DELETE FROM ranks"],
)  # fmt: skip
def test_nothing_but_one_select(trace: Trace, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        query(trace, sql)
    assert list(tmp_path.iterdir()) == []
    assert query(trace, "SELECT count(*) FROM ranks").rows == [(2,)]


@pytest.mark.parametrize(
    "sql",
    ["WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x",
     "SELECT count(*) FROM host_events a, host_events b, host_events c"],
)  # fmt: skip
def test_a_query_without_end_is_ended(trace: Trace, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_query, "SECONDS", 0.2)
    with pytest.raises(UsageError, match="took longer than"):
        query(trace, sql)


@pytest.mark.parametrize(
    "sql", ["SELECT length(zeroblob(1000000000))", "SELECT group_concat(name, ' ') FROM host_events"]
)
def test_a_value_without_bounds_is_refused(trace: Trace, sql: str) -> None:
    with pytest.raises(UsageError, match="too much memory"):
        query(trace, sql)


def test_too_many_rows_are_not_even_loaded(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_query, "MOST_TABLE_ROWS", 100)
    with pytest.raises(UsageError, match="host_events of this run have"):
        query(trace, "SELECT count(*) FROM host_events")
    assert query(trace, "SELECT count(*) FROM ranks").rows == [(2,)]
