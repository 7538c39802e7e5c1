"""SQL that reads, and SQL that tries more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import gpuscope
from gpuscope.analyzers.queries import engine
from gpuscope.analyzers.queries.engine import RunData, query, tables
from gpuscope.analyzers.queries.examples import EXAMPLES, Example
from gpuscope.errors import UsageError
from gpuscope.schema.document import Report
from gpuscope.trace.schema import NA


def unread() -> Report:
    raise AssertionError("the run was opened for a query that does not need it")


@pytest.fixture(scope="module")
def run(samples: Path) -> RunData:
    trace, analysis = gpuscope.open_trace(samples / "ddp_healthy"), gpuscope.analyze(samples / "ddp_healthy")
    return RunData(lambda: trace, lambda: analysis.report)


def test_names_are_text_and_absent_is_null(run: RunData) -> None:
    found = query(run, "SELECT DISTINCT kind, device FROM device_events ORDER BY kind")
    assert (found.columns, found.rows) == (["kind", "device"], [["communication", None], ["compute", None]])
    joined = query(run, "SELECT count(*) FROM collectives c JOIN ranks r USING (rank) WHERE op = 'all_reduce'")
    assert joined.rows[0][0] == len(run.trace["collectives"])
    natural = query(run, "SELECT count(*) FROM (SELECT rank, step FROM steps) NATURAL JOIN steps")
    assert natural.rows[0][0] == len(run.trace["steps"])


def test_every_table_and_column_can_be_named_without_quotes_and_none_is_read_for_nothing(run: RunData) -> None:
    empty = RunData(unread, unread)  # type: ignore[arg-type]
    assert query(empty, "SELECT 1").rows == [[1]]
    for table in tables().values():
        columns = ", ".join(column.name for column in table.columns)
        found = query(run, f"SELECT {columns} FROM {table.name}")
        assert found.columns == [column.name for column in table.columns]
        every = run.report.get(table.source, ()) if table.of_report else run.trace[table.source]
        assert len(found.rows) == len(every)  # type: ignore[arg-type]


def test_times_are_the_runs(run: RunData) -> None:
    host = run.trace["host_events"]
    rows = query(run, "SELECT row, rank, start_ns, end_ns, dur_ns FROM host_events ORDER BY row").rows
    common = run.facts.clocks.common(host["rank"], host["start"]).tolist()
    assert [row[:3] for row in rows] == [
        list(one) for one in zip(range(len(host)), host["rank"].tolist(), common, strict=True)
    ]
    assert [row[4] for row in rows] == (host["end"] - host["start"]).tolist()
    launched = query(run, "SELECT count(*) FROM device_events d JOIN host_events h ON h.row = d.launch").rows
    assert launched == [[int((run.trace["device_events"]["launch"] != NA).sum())]]


def test_one_operation_is_one_instance_on_all_ranks(run: RunData) -> None:
    counts = query(run, "SELECT count(*), count(DISTINCT rank) FROM collectives GROUP BY instance").rows
    assert counts
    assert all(row == [2, 2] for row in counts)


def test_rows_are_limited(run: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    found = query(run, "SELECT * FROM host_events", 10)
    assert (len(found.rows), found.more) == (10, True)
    monkeypatch.setattr(engine, "MOST_ROWS", 20)
    assert len(query(run, "SELECT * FROM host_events", 10**9).rows) == 20


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH 'x.db' AS x",
        "PRAGMA writable_schema=1",
        "PRAGMA table_info(ranks)",
        "DELETE FROM ranks",
        "INSERT INTO ranks VALUES (1)",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "VACUUM INTO 'x.db'",
        "DROP TABLE ranks",
        "UPDATE ranks SET rank = 1",
        "SELECT load_extension('x')",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM pragma_table_info('ranks')",
        "BEGIN",
        "SELECT 1; SELECT 2",
        "SELECT readfile('/etc/passwd')",
        "",
        "nonsense",
        "SELECT * FROM nothing",
        "WITH x AS (SELECT 1) DELETE FROM ranks",
        "WITH x AS (DELETE FROM ranks RETURNING *) SELECT * FROM x",
        "DETACH main",
        "COPY ranks TO 'x.csv'",
        "ANALYZE",
        "REINDEX",
        "EXPLAIN DELETE FROM ranks",
        "QUERY PLAN SELECT 1",
        "SELECT 1 INTO OUTFILE 'x'",
        "SELECT writefile('x', 'y')",
        "CREATE VIRTUAL TABLE x USING fts3(a)",
        "SELECT fts3_tokenizer('simple')",
    ],
)
def test_nothing_but_one_select(run: RunData, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        query(run, sql)
    assert list(tmp_path.iterdir()) == []
    assert query(run, "SELECT count(*) FROM ranks").rows == [[2]]


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x",
        "SELECT count(*) FROM host_events a, host_events b, host_events c",
        "SELECT a.name FROM host_events a, host_events b, host_events c ORDER BY b.dur_ns * c.dur_ns",
        "SELECT count(*) FROM host_events a, host_events b "
        "WHERE instr(replace(hex(zeroblob(45000)), '0', 'a') || a.row, replace(hex(zeroblob(20000)), '0', 'a') || 'b')",
    ],
)
def test_a_query_without_end_is_ended(run: RunData, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SECONDS", 0.2)
    with pytest.raises(UsageError, match="took longer than"):
        query(run, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT length(zeroblob(1000000000))",
        "SELECT group_concat(name, ' ') FROM host_events",
        "SELECT replace(hex(zeroblob(40000)), '0', 'many more')",
    ],
)
def test_a_value_without_bounds_is_refused(run: RunData, sql: str) -> None:
    with pytest.raises(UsageError, match="too much memory"):
        query(run, sql)


@pytest.mark.parametrize(
    ("limit", "sql"),
    [
        ("MOST_CELLS", "SELECT max(dur_ns) FROM host_events"),
        ("MOST_ANSWER", "SELECT name FROM host_events"),
    ],
)
def test_more_than_may_be_read_or_answered(run: RunData, limit: str, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, limit, 100)
    with pytest.raises(UsageError, match="too much memory"):
        query(run, sql)
    assert query(run, "SELECT count(*) FROM ranks").rows == [[2]]


@pytest.mark.parametrize(
    ("sql", "said", "hint"),
    [
        ("SELECT start FROM steps", "line 1, column 8: no such column: start", "did you mean 'start_ns'?"),
        ("SELECT 1\nFROM kernel", "line 2, column 6: no such table: kernel", "did you mean 'kernels'?"),
        ("SELECT 'x' 2 x FROM steps x\nWHERE x x", 'line 1, column 12: near "2": syntax error', ""),
        ("SELECT 1 WHERE 1 1", 'line 1, column 18: near "1": syntax error', ""),
        ("SELECT nosuch(1)", "line 1, column 8: no such function: nosuch", ""),
        ("SELECT rank FROM steps, ranks", "line 1, column 8: ambiguous column name: rank", ""),
    ],
)
def test_an_error_says_where_it_is(sql: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        query(RunData(unread, unread), sql)  # type: ignore[arg-type]
    assert caught.value.message == f"SQL, {said}"
    assert (caught.value.hint or "").startswith(hint)


def test_a_sort_of_much_stays_in_memory(run: RunData, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    monkeypatch.setattr(engine, "SECONDS", 1.0)
    before = time.monotonic()
    with pytest.raises(UsageError):
        query(run, "SELECT a.*, b.* FROM host_events a, host_events b ORDER BY a.dur_ns * b.dur_ns")
    assert time.monotonic() > before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.question)
def test_an_example_answers(
    example: Example, run: RunData, pair_data: RunData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a run of GPUs or of CPUs; and the same where all columns are filled in."""
    found = [query(one, example.sql) for one in (run, pair_data)]
    assert any(one.rows for one in found)
    everything = {table.name: {column.name for column in table.columns} for table in tables().values()}
    monkeypatch.setattr(engine, "_read_by", lambda *_: everything)
    assert [query(one, example.sql) for one in (run, pair_data)] == found


@pytest.fixture(scope="module")
def pair_data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    from helpers.pair import write_pair

    folder = write_pair(tmp_path_factory.mktemp("pair"))
    trace, analysis = gpuscope.open_trace(folder), gpuscope.analyze(folder)
    return RunData(lambda: trace, lambda: analysis.report)
