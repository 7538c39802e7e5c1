"""Integer columns of SQLite tables by the native core: the same as through Python's `sqlite3`."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscope.native import core
from gpuscope.sources.nsys.formats import bulk_columns, export_tables
from gpuscope.sources.nsys.formats.export_tables import SqliteTables
from gpuscope.trace.schema import NA

pytestmark = pytest.mark.skipif(
    core is None or bulk_columns._library() is None, reason="no native core, or a sqlite3 that hides its functions"
)

COLUMNS = ("a", "b", "nowhere", "c")


def database(path: Path, rows: list[tuple[Any, ...]]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE "odd ""name" (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER, c)')
        connection.executemany('INSERT INTO "odd ""name" VALUES (?, ?, ?, ?)', rows)
    return path


def read(path: Path, native: bool) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch, closing(SqliteTables(path)) as tables:
        patch.setattr(export_tables, "_BULK_FROM", 0)
        patch.setattr(bulk_columns, "_ROWS_PER_THREAD", 50)
        if not native:
            patch.setattr(export_tables, "bulk", lambda *_: None)
        else:
            bulk = export_tables.bulk
            patch.setattr(export_tables, "bulk", lambda *asked: _there(bulk(*asked)))
        return tables.integers('odd "name', COLUMNS)


def _there(found: Any) -> Any:
    assert found is not None
    return found


def assert_same(path: Path) -> None:
    own, expected = read(path, True), read(path, False)
    assert own.keys() == expected.keys()
    for name, column in expected.items():
        assert own[name].dtype == np.int64
        assert own[name].tolist() == column.tolist(), name


def test_whole_numbers_and_nothing(tmp_path: Path) -> None:
    rows = [(i + 5, i * 3, None if i % 7 == 0 else -i, 2**62 - i) for i in range(1000)]
    path = database(tmp_path / "x.sqlite", rows)
    assert_same(path)
    assert read(path, True)["b"][0] == NA
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.sqlite"]  # nothing beside it


def test_rowids_that_are_missing(tmp_path: Path) -> None:
    ids = sorted(random.Random(3).sample(range(-500, 3000), 900))
    assert_same(database(tmp_path / "x.sqlite", [(number, number, 1, 2) for number in ids]))


@pytest.mark.parametrize("odd", ["text", b"bytes", 1.75, -1e30, float("inf"), "12"])
def test_what_is_no_whole_number(odd: Any, tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [(i, i, i, i) for i in range(400)]
    rows[333] = (333, 1, 2, odd)
    rows[12] = (12, 1, 2, 0.5)
    assert_same(database(tmp_path / "x.sqlite", rows))


def test_a_database_that_is_damaged_is_left_to_sqlite3(tmp_path: Path) -> None:
    path = database(tmp_path / "x.sqlite", [(i, i, i, i) for i in range(5000)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with closing(SqliteTables(path)) as tables:
        assert bulk_columns.bulk(tables._uri, '"odd ""name"', ["a"], 0, 4999) is None


def test_rows_have_to_fit_the_array() -> None:
    functions = bulk_columns._library()
    for width, offset, rows in ((1, 0, 11), (3, 0, 3), (1, 8, 3), (0, 0, 1), (1, -1, 1)):
        with pytest.raises(ValueError, match="outside the array"):
            core.sqlite_columns(functions, "x", "SELECT 1", np.empty(10, np.int64), width, offset, rows)
    with pytest.raises(ValueError, match="nine functions"):
        core.sqlite_columns((1,), "x", "SELECT 1", np.empty(10, np.int64), 1, 0, 1)
    query = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 20) SELECT i FROM n"
    assert core.sqlite_columns(functions, ":memory:", query, np.empty(10, np.int64), 1, 0, 10) == -1
