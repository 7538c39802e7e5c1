"""Tables of an nsys export, whatever file format they lie in: columns straight into numpy.

«No table» and «no rows» mean the same here, and a column that a version lacks is absent in every row:
nsys adds, renames and leaves out tables and columns from one release to the next.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, compress, islice, repeat
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources.nsys.recognition import ROWID, RangeTexts, bulk, cut, is_of_nsys, range_texts
from gpuscope.trace.name_pool import NO_NAME, Codes, NamePool
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Times, constant, distinct_values, mapped

# A damaged schema makes SQLite quote bytes that are no text in its message.
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
_SCHEMA = "SELECT rootpage, sql FROM sqlite_master WHERE type = 'table' AND rootpage > 1 AND name = ?"
_CHUNK = 1 << 16
"""Rows per step: Python objects of so few rows stay in the processor's cache."""


class Tables(Protocol):
    """Read access to an export. All methods give a table's rows in the same order, and as many, whichever columns of it
    are there; nothing where the table itself is missing."""

    path: Path
    format: str
    """SQLite, parquetdir or arrowdir."""
    invalid_utf8: bool
    """Whether some text read so far was not UTF-8 (what could not be decoded is replaced)."""

    def names(self) -> list[str]:
        """The tables that are there."""
        ...

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; empty where it is missing."""
        ...

    def integers(self, table: str, columns: Sequence[str]) -> dict[str, Times]:
        """Integer columns, int64 of shape (n,) each; `NA` where there is no (whole) number or no such column."""
        ...

    def narrow_integers(self, table: str, columns: Sequence[str]) -> dict[str, Array]:
        """The same, of large tables as `narrowed`: those of 32 bits hold no `NA`."""
        ...

    def texts(self, table: str, column: str, rows: Mask | None = None) -> Iterator[str | None]:
        """A text column, or the rows of it that `rows` picks; None where there is no text or no such column."""
        ...

    def range_texts(self, table: str, column: str) -> RangeTexts:
        """The texts of NVTX ranges, each distinct one once; of no rows where there are none."""
        ...

    def blobs(self, table: str, column: str, rows: Mask) -> list[bytes | None]:
        """The bytes in the rows that `rows` picks; None where there are none or no such column."""
        ...

    def close(self) -> None: ...


def pairs(tables: Tables, table: str, key: str, value: str) -> list[tuple[str, str]]:
    """Two text columns of a small table, rows without key or value left out."""
    if not {key, value} <= tables.columns(table):
        return []
    both = zip(tables.texts(table, key), tables.texts(table, value), strict=True)
    return [(k, v) for k, v in both if k is not None and v is not None]


_HEADER = 100
"""Bytes of a database's header."""


class SqliteTables:
    """An export to SQLite, opened read-only; it is never written to, nor is a journal made beside it."""

    format = "SQLite"

    def __init__(self, path: Path, partial: bool = False) -> None:
        """Raises `InputError` where the file is no database, is damaged, or is locked, and where it is shorter than its
        header says, unless `partial`: then the rows before the cut are read."""
        self.path = path
        self.cut_off = _is_cut_off(path)
        if self.cut_off and not partial:
            raise InputError(
                f"{path}: is cut off: the SQLite file is shorter than its header says",
                hint="copy or export it again, or pass --partial to analyse what is left",
            )
        self.invalid_utf8 = False
        self._columns: dict[str, frozenset[str]] = {}
        # In WAL mode even a reader makes files beside the database, unless opened as immutable.
        mode = "mode=ro&immutable=1" if _is_quiet_wal(path) else "mode=ro"
        self._uri = f"file:{quote(str(path.absolute()))}?{mode}"
        try:
            self._connection = sqlite3.connect(self._uri, uri=True, timeout=0.5)
        except _DAMAGE as error:
            raise self._unreadable(error) from error
        if self.cut_off:  # lifts SQLite's own check of the length: the pages that are there can be read
            self._connection.execute("PRAGMA writable_schema=ON")
        self._names = [str(name) for (name,) in self._rows("SELECT name FROM sqlite_master WHERE type='table'")]

    def names(self) -> list[str]:
        return self._names

    def columns(self, table: str) -> frozenset[str]:
        if table not in self._columns:
            rows = self._rows(f"PRAGMA table_info({_quoted(table)})")
            self._columns[table] = frozenset(str(row[1]) for row in rows)
        return self._columns[table]

    def integers(self, table: str, columns: Sequence[str]) -> dict[str, Times]:
        found = self.narrow_integers(table, columns)
        return {name: column.astype(np.int64, copy=False) for name, column in found.items()}

    def narrow_integers(self, table: str, columns: Sequence[str]) -> dict[str, Array]:
        there = [name for name in columns if name in self.columns(table)]
        if not there:
            missing = constant(NA, self._count(table), np.int64)
            return dict.fromkeys(columns, missing)
        found = self._bulk(table, there)
        if found is None:
            whole = [f"CASE typeof({_quoted(n)}) WHEN 'integer' THEN {_quoted(n)} ELSE {NA} END" for n in there]
            found = list(self._matrix(table, whole))
        missing = constant(NA, len(found[0]), np.int64)
        own = dict(zip(there, found, strict=True))
        return {name: own.get(name, missing) for name in columns}

    def texts(self, table: str, column: str, rows: Mask | None = None) -> Iterator[str | None]:
        if column not in self.columns(table):
            return repeat(None, self._count(table) if rows is None else int(np.count_nonzero(rows)))
        # Most files hold nothing but UTF-8: the quick way first, and from the failing row on the lenient one.
        select = f"SELECT CAST({_quoted(column)} AS TEXT) FROM {_quoted(table)}"
        values = self._decoded(select)
        if self.cut_off:  # a text may lie in other pages than its row
            values = islice(chain(_before_damage(values), repeat(None)), self._count(table))
        return values if rows is None else compress(values, rows.tolist())

    def range_texts(self, table: str, column: str) -> RangeTexts:
        there = f"SELECT 1 FROM {_quoted(table)} WHERE {_quoted(column)} IS NOT NULL LIMIT 1"
        if column not in self.columns(table) or next(self._rows(there), None) is None:
            return range_texts(())
        return range_texts(self.texts(table, column))

    def blobs(self, table: str, column: str, rows: Mask) -> list[bytes | None]:
        if column not in self.columns(table):
            return [None] * int(np.count_nonzero(rows))
        # The column is declared TEXT and holds bytes.
        select = f"SELECT CAST({_quoted(column)} AS BLOB) FROM {_quoted(table)} ORDER BY rowid"
        return list(compress(chain.from_iterable(self._rows(select)), rows.tolist()))

    def close(self) -> None:
        self._connection.close()

    def _count(self, table: str) -> int:
        """Rows of a table; 0 where it is missing."""
        if table not in self._names:
            return 0
        if self.cut_off:
            return int(self._matrix(table, ["1"]).shape[1])
        return int(next(self._rows(f"SELECT count(*) FROM {_quoted(table)}"))[0])

    def _bulk(self, table: str, columns: list[str]) -> list[Array] | None:
        """Integer columns by the native core; None where it can't, or the values are not those in the file."""
        if self.cut_off or any(self.path.with_name(self.path.name + end).exists() for end in ("-wal", "-journal")):
            return None
        try:
            with self._unchanged():
                said: Any = self._connection.execute(_SCHEMA, (table,)).fetchone()
                declared = list(self._raw(f"PRAGMA table_xinfo({_quoted(table)})"))
                places = None if said is None else _places(said[1], declared, columns)
                return None if places is None else bulk(self.path, said[0], places)
        except (*_DAMAGE, OSError):
            return None

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Hold SQLite's lock, behind which nobody writes."""
        self._connection.execute("BEGIN")
        try:
            self._connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _matrix(self, table: str, expressions: list[str]) -> Array:
        """Rows of integers as an array of shape (columns, rows)."""
        # By rowid: else SQLite may take the order of some index that a third party made.
        select = f"SELECT {','.join(expressions)} FROM {_quoted(table)} ORDER BY rowid"
        width = len(expressions)
        blocks: list[Array] = []
        if self.cut_off:
            return self._matrix_before_the_cut(select, width)
        try:
            flat = chain.from_iterable(self._connection.execute(select))
            while len(block := np.fromiter(islice(flat, _CHUNK * width), np.int64)):
                blocks.append(np.ascontiguousarray(block.reshape(-1, width).T))
        except _DAMAGE as error:
            raise self._unreadable(error) from error
        return np.concatenate(blocks, axis=1) if blocks else np.empty((width, 0), np.int64)

    def _matrix_before_the_cut(self, select: str, width: int) -> Array:
        rows: list[tuple[int, ...]] = []
        with suppress(*_DAMAGE):
            rows.extend(self._connection.execute(select))  # keeps what came before an error
        return np.array(rows, np.int64).reshape(-1, width).T.copy()

    def _decoded(self, select: str) -> Iterator[str | None]:
        done = 0
        try:
            for (value,) in self._raw(f"{select} ORDER BY rowid"):
                yield value
                done += 1
            return
        except sqlite3.OperationalError as error:
            if "decode" not in str(error):
                raise self._unreadable(error) from error
        except _DAMAGE as error:
            raise self._unreadable(error) from error
        self.invalid_utf8 = True
        try:
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            for (value,) in self._raw(f"{select} ORDER BY rowid LIMIT -1 OFFSET {done}"):
                yield value
        except _DAMAGE as error:
            raise self._unreadable(error) from error
        finally:
            self._connection.text_factory = str

    def _raw(self, select: str) -> Iterable[tuple[Any, ...]]:
        return self._connection.execute(select)

    def _rows(self, select: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._raw(select)
        except _DAMAGE as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> InputError:
        hint = "export it again: nsys export --type sqlite --force-overwrite true -o OUT.sqlite IN.nsys-rep"
        if "locked" in str(error) or "busy" in str(error):
            hint = "another program is writing it: wait until the export is done"
        return InputError(f"{self.path}: the SQLite file can't be read: {error}", hint=hint)


def _before_damage(values: Iterator[str | None]) -> Iterator[str | None]:
    try:
        yield from values
    except InputError:
        return


def _is_cut_off(path: Path) -> bool:
    """Whether a database is shorter than the pages that its header counts (SQLite's file format, 1.3)."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
        size = path.stat().st_size
    except OSError:
        return False
    # The count holds only if the last writer knew of it; pages may also still be in a log beside the file.
    if len(header) < _HEADER or header[24:28] != header[92:96] or path.with_name(path.name + "-wal").exists():
        return False
    page, pages = (int.from_bytes(part, "big") for part in (header[16:18], header[28:32]))
    return (65_536 if page == 1 else page) * pages > size


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def looks_like_nsys(path: Path) -> bool:
    """Whether an SQLite file holds nsys's tables; a damaged one counts where its name says so."""
    try:
        tables = SqliteTables(path, partial=True)
    except InputError:
        return path.suffix in (".sqlite", ".sqlite3", ".db")
    names = tables.names()
    tables.close()
    return any(map(is_of_nsys, names))


def _places(sql: str, declared: list[tuple[Any, ...]], columns: list[str]) -> list[int] | None:
    """The places of columns in a table's rows (a row of `declared`: number, name, type, …, primary key, hidden); None
    where what is stored may not be what SQLite gives out."""
    if any(hidden for *_, hidden in declared) or "DESC" in sql.upper():  # generated columns; a key that is no rowid
        return None
    keys = [name for _, name, _, _, _, key, _ in declared if key]
    found: dict[str, int] = {}
    for place, name, kind, *_ in declared:
        kind = kind.upper()
        if "INT" not in kind and any(real in kind for real in ("REAL", "FLOA", "DOUB")) and name in columns:
            return None  # whole numbers are stored as such, and given out as others
        found[name] = ROWID if keys == [name] and kind == "INTEGER" else place
    return [found[name] for name in columns]


def _is_quiet_wal(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError:
        return False
    return header[18:20] == b"\x02\x02" and not path.with_name(path.name + "-wal").exists()


# Names in an nsys export: kept once in StringIds and referred to by id, or inline.

_OPERATOR = when_used.pattern(r"\w+::|\w+Backward\d*$|autograd::engine::evaluate_function")


class StringTable:
    """StringIds: only the strings that some event refers to are ever made."""

    def __init__(self, tables: Tables, names: NamePool, needed: Iterable[Array]) -> None:
        ids = tables.integers("StringIds", ("id",))["id"]
        rows = np.isin(ids, np.concatenate([distinct_values(column).astype(np.int64) for column in needed]))
        self._names = names
        self._ids = ids[rows]
        texts = list(tables.texts("StringIds", "value", rows))
        there = np.array([text is not None for text in texts], np.bool_)
        self._ids = self._ids[there]
        self._texts = [text for text in texts if text is not None]
        order = np.argsort(self._ids, kind="stable")
        self._ids = self._ids[order]
        self._texts = [self._texts[i] for i in order.tolist()]

    def codes(self, ids: Times, encode: Callable[[str], int] | None = None) -> Codes:
        """The name codes of string ids, shape (n,); `NO_NAME` for an id that is absent or not there.

        `encode` turns a text into a code; by default it is interned as it stands.
        """
        encode = encode or self._names.code
        known = ids != NA
        if not known.all():
            result = np.full(len(ids), NO_NAME, np.int32)
            result[known] = self.codes(ids[known], encode)
            return result
        used = distinct_values(ids).astype(np.int64)
        codes = np.full(len(used), NO_NAME, np.int32)
        if len(self._ids) and len(used):
            place = np.minimum(np.searchsorted(self._ids, used), len(self._ids) - 1)
            found = self._ids[place] == used
            codes[found] = [encode(self._texts[i]) for i in place[found].tolist()]
        return mapped(ids, used, codes)

    def text(self, string_id: int) -> str:
        """The text of a string id, "" where it is not there."""
        place = int(np.searchsorted(self._ids, string_id))
        return self._texts[place] if place < len(self._ids) and self._ids[place] == string_id else ""


class RangeNames:
    """Codes of NVTX texts after the cut (`range_texts`)."""

    def __init__(self, names: NamePool) -> None:
        self._names = names
        self._operators: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of the name in a text."""
        name = cut(text)
        return self._code(name, len(name) < len(text))

    def codes(self, texts: RangeTexts) -> Codes:
        """The code of each text, `NO_NAME` where there is none; shape (n,)."""
        own = [self._code(name, shortened) for name, shortened in zip(texts.names, texts.cut, strict=True)]
        return np.array([*own, NO_NAME], np.int32)[texts.place]  # the place −1 is the last

    def _code(self, name: str, shortened: bool) -> int:
        code = self._names.code(name)
        if shortened:
            self._operators[name] = code
        return code

    @property
    def operators(self) -> list[int]:
        """The codes that are operators of PyTorch."""
        return sorted(code for name, code in self._operators.items() if _OPERATOR.match(name))
