"""nsys exports of type parquetdir and arrowdir: a folder with one file per table.

The tables are those of the SQLite export, StringIds among them. pyarrow is imported only here, and only
when such a folder is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.errors import InputError
from gpuscope.sources.nsys.formats.range_texts import RARER, USUAL, RangeTexts, range_texts
from gpuscope.sources.nsys.formats.recognition import FORMATS, table_files
from gpuscope.sources.pyarrow_import import require_pyarrow
from gpuscope.sources.source import check_readable
from gpuscope.trace.columns.table import Array, Mask, Times, constant, narrowed
from gpuscope.trace.schema import NA


class ArrowTables:
    """A parquetdir or arrowdir, as `nsys_tables.Tables`."""

    def __init__(self, path: Path) -> None:
        """Raises `InputError` where pyarrow is not installed, or a table is no plain file."""
        self.path = path
        self.invalid_utf8 = False
        files = table_files(path)
        for file in files:
            check_readable(file)
        self._files = {file.stem: file for file in files}
        self.format = FORMATS[files[0].suffix]
        self._arrow = require_pyarrow(path, "a parquetdir or arrowdir")
        self._columns: dict[str, frozenset[str]] = {}

    def names(self) -> list[str]:
        return list(self._files)

    def columns(self, table: str) -> frozenset[str]:
        if table not in self._columns:
            found = self._read(table, None) if table in self._files else None
            self._columns[table] = frozenset() if found is None else frozenset(found.column_names)
        return self._columns[table]

    def narrow_integers(self, table: str, columns: Sequence[str]) -> dict[str, Array]:
        return {name: narrowed(column) for name, column in self.integers(table, columns).items()}

    def integers(self, table: str, columns: Sequence[str]) -> dict[str, Times]:
        there = [name for name in columns if name in self.columns(table)]
        if not there:
            return dict.fromkeys(columns, constant(NA, self._count(table), np.int64))
        found = self._read(table, there)
        missing = constant(NA, found.num_rows, np.int64)
        return {name: self._integers(found[name]) if name in there else missing for name in columns}

    def _integers(self, column: Any) -> Times:
        types = self._arrow.types
        if not (types.is_integer(column.type) or types.is_boolean(column.type)):
            return np.full(len(column), NA, np.int64)
        # globalTid is unsigned and may use the topmost bit, as SQLite's signed integers do.
        whole = column.cast(self._arrow.int64(), safe=False).fill_null(NA)
        return np.asarray(whole.to_numpy(), np.int64)

    def texts(self, table: str, column: str, rows: Mask | None = None) -> Iterator[str | None]:
        return map(self._text, self._values(table, column, rows))

    def _text(self, value: Any) -> str | None:
        if not isinstance(value, bytes):
            return value if value is None else str(value)
        try:
            return value.decode()
        except UnicodeDecodeError:
            self.invalid_utf8 = True
            return value.decode("utf-8", "replace")

    def range_texts(self, table: str, column: str) -> RangeTexts:
        values = self._column(table, column)
        if values is None:
            return range_texts(())
        if not self._arrow.types.is_large_binary(values.type):
            return range_texts(self.texts(table, column))
        from pyarrow import compute

        def without(texts: Any, what: str) -> Any:
            return compute.replace_substring_regex(texts, f"(?s){what}.*", "")

        encoded = _encoded(values)
        whole = encoded.dictionary
        names = without(whole, USUAL)
        # Where nothing of the usual is there, what is rarer may be.
        names = compute.if_else(compute.equal(names, whole), without(names, RARER), names)
        try:
            whole.cast(self._arrow.large_string())
        except self._arrow.ArrowInvalid:
            self.invalid_utf8 = True
        # One name may occur both cut and as it stands: a mark before it keeps the two apart.
        mark = compute.if_else(compute.equal(names, whole), b"=", b"<").cast(values.type)
        marked = _encoded(compute.binary_join_element_wise(mark, names, self._arrow.scalar(b"", values.type)))
        texts = marked.dictionary.to_pylist()
        place = np.append(marked.indices.to_numpy(), -1)[encoded.indices.fill_null(-1).to_numpy()]
        shortened = [text[:1] == b"<" for text in texts]
        return RangeTexts([str(self._text(text[1:])) for text in texts], shortened, place.astype(np.int32))

    def blobs(self, table: str, column: str, rows: Mask) -> list[bytes | None]:
        values = self._values(table, column, rows)
        return [value if value is None or isinstance(value, bytes) else str(value).encode() for value in values]

    def _values(self, table: str, column: str, rows: Mask | None) -> list[Any]:
        """Python values of a column."""
        values = self._column(table, column)
        if values is None:
            return [None] * (self._count(table) if rows is None else int(np.count_nonzero(rows)))
        if rows is not None:
            values = values.filter(self._arrow.array(rows))
        return list(values.to_pylist())

    def _count(self, table: str) -> int:
        """Rows of a table; 0 where it is missing."""
        if table not in self._files:
            return 0
        some = sorted(self.columns(table))[:1]
        return int(self._read(table, some).num_rows) if some else 0

    def _column(self, table: str, column: str) -> Any:
        """A column, text as bytes, since nsys does not promise UTF-8; None where it is missing."""
        if column not in self.columns(table):
            return None
        values = self._read(table, [column])[column]
        types = self._arrow.types
        if types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        text = types.is_string(values.type) or types.is_large_string(values.type) or types.is_binary(values.type)
        return values.cast(self._arrow.large_binary()) if text else values

    def _read(self, table: str, columns: list[str] | None) -> Any:
        """The table, or only `columns`; without columns a table that is good for its names only."""
        file = self._files[table]
        try:
            if file.suffix == ".parquet":
                from pyarrow import parquet

                if columns is None:
                    return parquet.read_schema(file).empty_table()
                return parquet.read_table(file, columns=columns)
            found = self._read_ipc(file)
            found.column_names  # noqa: B018 - raises here where a name is no UTF-8
            return found if columns is None else self._checked(found.select(columns))
        except (self._arrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            raise InputError(
                f"{file}: can't be read: {error}",
                hint="export it again: nsys export --type parquetdir --force-overwrite true -o OUT IN.nsys-rep",
            ) from error

    def _read_ipc(self, file: Path) -> Any:
        """An Arrow file of either kind: random access, or a stream."""
        from pyarrow import ipc

        with self._arrow.memory_map(str(file)) as mapped:
            magic = mapped.read(6)
            mapped.seek(0)
            reader = ipc.open_file(mapped) if magic == b"ARROW1" else ipc.open_stream(mapped)
            return reader.read_all()

    def _checked(self, found: Any) -> Any:
        """The table with text as bytes. Raises `ArrowInvalid` where offsets lead out of it: pyarrow does not look by
        itself, and would read whatever memory they lead to."""
        types = self._arrow.types
        for place, field in enumerate(found.schema):
            if types.is_string(field.type) or types.is_large_string(field.type):
                kind = self._arrow.large_binary() if types.is_large_string(field.type) else self._arrow.binary()
                chunks = [
                    self._arrow.Array.from_buffers(kind, len(one), one.buffers(), one.null_count, one.offset)
                    for one in found.column(place).chunks
                ]
                found = found.set_column(place, field.name, self._arrow.chunked_array(chunks, kind))
        found.validate(full=True)
        return found

    def close(self) -> None:
        self._files = {}


def _encoded(values: Any) -> Any:
    """An Arrow column as a dictionary of its distinct values, in order of appearance, and their places."""
    encoded = values.dictionary_encode()
    return encoded.unify_dictionaries().combine_chunks() if hasattr(encoded, "unify_dictionaries") else encoded
