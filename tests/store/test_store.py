"""The run store: what is kept, under which identity, and what it never touches."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope import cache
from gpuscope.errors import InputError, UsageError
from gpuscope.schema.document import Report
from gpuscope.store import location as keeping
from gpuscope.store.location import keep, run_key
from gpuscope.store.store import opened
from gpuscope.store.tables import APPLICATION_ID, SCHEMA_VERSION, TABLES, VIEWS, migrations


@pytest.fixture(scope="module")
def report(samples: Path) -> Report:
    return gpuscope.analyze(samples / "ddp_slow_rank").report  # type: ignore[no-any-return]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "below" / "runs.db"


def add(path: Path, report: Report, key: str = "k", label: str | None = None) -> int:
    with opened(path, write=True) as store:
        return store.add(report, key, ["run/"], {"steps": None}, label)


def query(path: Path, sql: str) -> list[Any]:
    """As any SQLite tool asks."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_tables_hold_what_the_report_holds(path: Path, report: Report) -> None:
    run = add(path, report)
    assert query(path, "SELECT bound_by, cause, steps FROM runs") == [("communication", "straggler", 2)]  # judged
    assert query(path, "SELECT rank, window_ns, idle_ns FROM ranks ORDER BY rank") == [
        (entry["rank"], entry["window_ns"], entry["breakdown_ns"]["idle"]) for entry in report["ranks"]
    ]
    both = [entry["dur_ns"] for entry in report["steps"] if entry["step"] == 4]
    assert query(path, "SELECT ranks, dur_min_ns, dur_max_ns FROM steps WHERE step = 4") == [(2, min(both), max(both))]
    assert query(path, "SELECT code FROM findings ORDER BY position") == [(f["code"],) for f in report["findings"]]
    assert query(path, "SELECT dur_ns FROM causes WHERE cause = 'straggler' AND rank = 0") == [
        (report["ranks"][0]["stall_ns"]["communication"]["straggler"],)
    ]
    assert query(path, "PRAGMA foreign_key_check") == []
    with opened(path) as store:
        assert store.report(run) == report


def test_numbers_that_sqlite_has_no_word_for(path: Path, report: Report) -> None:
    """numpy's scalars as plain numbers, infinities as NULL."""
    import numpy as np

    row = {**report["collectives"][0], "count": np.int64(3), "busbw_gbps": np.inf}
    add(path, {**report, "collectives": [row]})  # type: ignore[typeddict-item]
    assert query(path, "SELECT count, busbw_gbps FROM collectives") == [(3, None)]


def test_views_answer(path: Path, report: Report) -> None:
    add(path, report)
    assert {name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'view'")} == set(VIEWS)
    [(share,)] = query(path, "SELECT share_frac FROM cause_shares WHERE cause = 'straggler'")
    straggler = next(finding for finding in report["findings"] if finding["code"] == "straggler")
    assert share == pytest.approx(straggler["share_frac"])


def test_the_same_analysis_again_replaces_the_row(path: Path, report: Report) -> None:
    first = add(path, report, label="baseline")
    assert add(path, report) == first
    assert add(path, report, "another") != first
    assert query(path, "SELECT label FROM runs ORDER BY id") == [("baseline",), (None,)]
    assert query(path, f"SELECT count(*) FROM ranks WHERE run = {first}") == [(2,)]


def test_identity_is_content_and_options_not_names(tmp_path: Path) -> None:
    for name, text in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "z")):
        (tmp_path / name).write_text(text)
    a, b, c, d = (tmp_path / name for name in "abcd")
    assert run_key([a, b], {}) == run_key([b, c], {})
    assert run_key([a, b], {}) != run_key([a, d], {})
    assert run_key([a], {"steps": None}) != run_key([a], {"steps": (1, 2)})


def test_the_hash_of_a_large_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    large, copy = tmp_path / "large", tmp_path / "copy"
    large.write_bytes(b"x" * cache.WORTH)
    copy.write_bytes(large.read_bytes())
    read: list[Path] = []
    content = keeping._content
    monkeypatch.setattr(keeping, "_content", lambda path: read.append(path) or content(path))
    key = run_key([large], {}, cache=True)
    assert run_key([large], {}, cache=True) == run_key([copy], {}) == key
    assert read == [large, copy]
    large.write_bytes(b"y" * cache.WORTH)
    assert run_key([large], {}, cache=True) != key


def test_deleting_a_run_takes_its_rows_along(path: Path, report: Report) -> None:
    gone, kept = add(path, report, "1"), add(path, report, "2")
    with opened(path, write=True) as store:
        store.delete(gone)
        with pytest.raises(UsageError, match=f"no run {gone}"):
            store.report(gone)
    for table in TABLES[1:]:
        assert query(path, f"SELECT count(*) FROM {table.name} WHERE run != {kept}") == [(0,)]


@pytest.mark.parametrize("content", [b"my notes", b"SQLite format 3\0" + bytes(84)], ids=["text", "header"])
def test_what_is_no_run_store_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a gpuscope run store"), opened(path, write=True):
        pass
    assert path.read_bytes() == content


def test_another_programs_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE runs (id)")
    connection.close()
    with pytest.raises(InputError, match="not a gpuscope run store"), opened(path, write=True):
        pass
    assert query(path, "SELECT count(*) FROM sqlite_master") == [(1,)]


def test_an_older_store_is_brought_up_to_date(path: Path, report: Report) -> None:
    """A store that stopped before the last migration, as the version before this one left it."""
    run = add(path, report)
    connection = sqlite3.connect(path)
    for view in VIEWS:
        connection.execute(f"DROP VIEW {view}")
    connection.execute("DELETE FROM _sqlite_migrations WHERE name = 'views'")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    with opened(path) as store:
        assert store.report(run) == report
    assert query(path, "SELECT id FROM run_overview") == [(run,)]
    assert query(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]


def test_a_store_before_links_is_brought_up_to_date(path: Path, report: Report) -> None:
    """As schema 2 left it: without the table of links."""
    first, second = add(path, report, "1"), add(path, report, "2")
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE followed_by")
    connection.execute("DELETE FROM _sqlite_migrations WHERE name = 'followed_by'")
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()
    with opened(path, write=True) as store:
        store.link(first, second, "loader_workers", {"dataloader.num_workers": "4"})
    assert query(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert query(path, "SELECT run, by, suggestion FROM followed_by") == [(first, second, "loader_workers")]


def test_a_link_outlives_another_analysis_and_goes_with_its_runs(path: Path, report: Report) -> None:
    first, second = add(path, report, "1"), add(path, report, "2")
    with opened(path, write=True) as store:
        store.link(first, second, None, {})
        store.link(first, second, "tf32", {"a": "1"})
    add(path, report, "1")
    with opened(path, write=True) as store:
        assert query(path, "SELECT * FROM followed_by") == [(first, second, "tf32", '{"a": "1"}')]
        store.delete(second)
    assert query(path, "SELECT * FROM followed_by") == []


def test_the_version_counts_the_migrations() -> None:
    import sqlite_utils

    assert len(migrations().pending(sqlite_utils.Database(memory=True))) == SCHEMA_VERSION


def test_a_newer_store_is_refused(path: Path, report: Report) -> None:
    add(path, report)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(InputError, match="newer gpuscope"), opened(path, write=True):
        pass


def test_writers_side_by_side_lose_nothing(path: Path, report: Report) -> None:
    """Eight at once, none of whom finds a store."""
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda key: add(path, report, str(key)), range(8)))
    assert sorted(runs) == [id for (id,) in query(path, "SELECT id FROM runs ORDER BY id")]
    assert len(set(runs)) == 8
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert query(path, "PRAGMA application_id") == [(APPLICATION_ID,)]


def test_a_store_that_cannot_be_written_is_a_warning(
    tmp_path: Path, report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert keep(report, [], ["run/"], {}, tmp_path / "file" / "runs.db") is None
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Warning: this analysis is not stored: ")
