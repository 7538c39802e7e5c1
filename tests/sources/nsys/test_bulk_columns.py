"""Integer columns of SQLite tables by the native core: the same as through Python's `sqlite3`."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscope.errors import InputError
from gpuscope.native import core
from gpuscope.sources.nsys import export_tables, recognition
from gpuscope.sources.nsys.export_tables import SqliteTables
from gpuscope.trace.schema import NA

pytestmark = pytest.mark.skipif(core is None, reason="no native core")

COLUMNS = ("a", "b", "nowhere", "c", "id")
TABLE = '"odd ""name"'
DECLARED = "(id INTEGER PRIMARY KEY, a INTEGER, b INTEGER, c)"


def database(
    path: Path, rows: list[tuple[Any, ...]], declared: str = DECLARED, page: int = 4096, end: str = ""
) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA page_size={page}; CREATE TABLE {TABLE} {declared}")
        connection.executemany(f"INSERT INTO {TABLE} (id, a, b, c) VALUES (?, ?, ?, ?)", rows)
        connection.commit()
        connection.executescript(end)
    return path


def read(path: Path, native: bool) -> tuple[dict[str, Any], bool]:
    """The columns, and whether the core read them."""
    by_core = False

    def asked(*given: Any) -> Any:
        nonlocal by_core
        found = bulk(*given) if native else None
        by_core = found is not None
        return found

    with pytest.MonkeyPatch.context() as patch, closing(SqliteTables(path)) as tables:
        bulk = recognition.bulk
        patch.setattr(export_tables, "bulk", asked)
        patch.setattr(recognition, "_ROWS_PER_THREAD", 50)
        patch.setattr(recognition, "_ROWS_AT_ONCE", 100)
        return tables.integers('odd "name', COLUMNS), by_core


def same(path: Path) -> bool:
    """Whether the core read what `sqlite3` reads, which is the same."""
    (own, by_core), (expected, _) = read(path, True), read(path, False)
    assert own.keys() == expected.keys()
    for name, column in expected.items():
        assert own[name].dtype == np.int64
        assert own[name].tolist() == column.tolist(), name
    return by_core


@pytest.mark.parametrize("page", [512, 4096, 65536])
def test_whole_numbers_and_nothing(page: int, tmp_path: Path) -> None:
    sizes = [0, 1, -1, 127, -128, 2**15, -(2**23), 2**31, -(2**40), 2**47, 2**62, -(2**63) + 1]
    rows = [(i + 5, i * 3, None if i % 7 == 0 else -i, sizes[i % len(sizes)]) for i in range(1000)]
    path = database(tmp_path / "x.sqlite", rows, page=page)
    assert same(path)
    assert read(path, True)[0]["b"][0] == NA
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.sqlite"]  # nothing beside it


def test_rowids_that_are_missing_and_a_table_without_rows(tmp_path: Path) -> None:
    ids = sorted(random.Random(3).sample(range(-500, 3000), 900))
    assert same(database(tmp_path / "x.sqlite", [(number, number, 1, 2) for number in ids]))
    assert same(database(tmp_path / "empty.sqlite", []))


@pytest.mark.parametrize("odd", ["text", b"bytes", "long" * 30_000, 1.75, -1e30, float("inf"), "12"])
def test_what_is_no_whole_number(odd: Any, tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [(i, i, i, i) for i in range(400)]
    rows[333] = (333, 1, 2, odd)
    rows[12] = (12, 1, 2, 0.5)
    assert same(database(tmp_path / "x.sqlite", rows))


@pytest.mark.parametrize(
    ("declared", "end"),
    [
        ("(id INTEGER PRIMARY KEY, a REAL, b DOUBLE PRECISION, c)", ""),
        ("(id INTEGER PRIMARY KEY DESC, a INTEGER, b, c)", ""),
        ("(id INTEGER PRIMARY KEY, more AS (a + 1), a, b, c)", ""),
        ("(id INTEGER PRIMARY KEY, a, c)", "ALTER TABLE {} ADD COLUMN b INTEGER DEFAULT 7"),
        ("(id INTEGER PRIMARY KEY, long TEXT DEFAULT '{}', a, b, c)".format("x" * 30_000), ""),
    ],
)
def test_what_is_not_stored_as_it_is_given_out_is_left_to_sqlite3(declared: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    if end:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE {TABLE} {declared}")
            connection.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", [(i, i, i) for i in range(300)])
            connection.execute(end.format(TABLE))
    else:
        database(path, [(i, i, i, i) for i in range(300)], declared)
    assert not same(path)


def test_what_others_are_writing_is_left_to_sqlite3(tmp_path: Path) -> None:
    path = database(tmp_path / "x.sqlite", [(i, i, i, i) for i in range(300)], end="PRAGMA journal_mode=WAL")
    assert same(path)
    with closing(sqlite3.connect(path)) as writer:
        writer.executescript(f"PRAGMA wal_autocheckpoint=0; UPDATE {TABLE} SET a = 7")
        assert not same(path)
        assert set(read(path, True)[0]["a"].tolist()) == {7}


def test_a_damaged_tree_is_left_to_sqlite3(tmp_path: Path) -> None:
    """Whatever bytes are other ones, the core reads what is there or nothing; `sqlite3` says what is wrong."""
    whole = database(tmp_path / "whole.sqlite", [(i, i, i, i) for i in range(3000)], page=512).read_bytes()
    chance, path, refused = random.Random(5), tmp_path / "x.sqlite", 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(3):
            place = chance.randrange(512, len(data)) // 512 * 512 + chance.choice((0, 3, 4, 8, 12, 13, 40, 200, 500))
            data[place] = chance.choice((0, 5, 13, 127, 128, 255))
        path.write_bytes(data[: chance.choice((len(data), len(data), 512 * 9 + 3))])
        for root in (2, 3):
            refused += recognition.bulk(path, root, [1, 2]) is None
    assert refused > 50
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        read(path, True)


def test_rows_have_to_fit_the_array() -> None:
    one, two = np.ones(1, np.uint32), np.array([3, 4], np.uint32)
    for rows, columns, room in ((one, [0], 0), (two, [0, 1], 8), (two, [1, 0], 90), (two, [-2], 9), (two, [], 9)):
        with pytest.raises(ValueError, match="outside the array"):
            core.table_columns(0, 4096, 4096, rows, rows, np.array(columns, np.int32), np.empty(room, np.int64))
    for size, used in ((4096, 9000), (256, 256), (1 << 20, 4096)):
        with pytest.raises(ValueError, match="no pages"):
            core.table_pages(0, size, used, 2, one, one)
