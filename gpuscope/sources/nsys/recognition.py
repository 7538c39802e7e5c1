"""What an nsys export is recognised by, which is asked of every file: this imports next to nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from gpuscope import native, when_used
from gpuscope.trace.name_pool import Codes
from gpuscope.trace.table import Array, Times, concatenated, is_constant, narrowed
from gpuscope.when_used import dataclass

# Texts of NVTX ranges, where what emit_nvtx adds to an operator's name is cut off.
#
# `torch.autograd.profiler.emit_nvtx` writes `aten::mm, seq = 7, op_id = 31, sizes = [[2, 3], [3, 4]]`
# (PyTorch `torch/csrc/profiler/util.cpp`, getNvtxStr): without the cut every call has a name of its own.

USUAL = ", (?:seq|op_id) = "
"""What follows an operator's name."""
RARER = ", (?:sizes|input_op_ids) = "
"""What follows it where none of the usual is there."""
_RARER = when_used.pattern(RARER)


@dataclass(frozen=True)
class RangeTexts:
    """A column of texts, each distinct one once."""

    names: list[str]
    """The distinct texts after the cut, in the order in which they occur first."""
    cut: list[bool]
    """Whether something was cut off; one name may stand here both ways."""
    place: Codes
    """The place in `names` of each row's text, −1 where it has none; shape (n,), empty where none has."""


def cut(text: str) -> str:
    """The name in a text."""
    # Called once per range: the two usual additions are cut without a regular expression.
    name = text.partition(", seq = ")[0].partition(", op_id = ")[0]
    if len(name) == len(text) and ", " in text:
        return _RARER.split(text, maxsplit=1)[0]
    return name


def range_texts(texts: Iterable[str | None]) -> RangeTexts:
    """The texts of a column, as Python gives them."""
    found: dict[tuple[str, bool], int] = {}

    def place(text: str | None) -> int:
        if text is None:
            return -1
        name = cut(text)
        return found.setdefault((name, len(name) < len(text)), len(found))

    places = np.fromiter(map(place, texts), np.int32)
    return RangeTexts([name for name, _ in found], [shortened for _, shortened in found], places)


# Integer columns of an SQLite table in bulk: by the native core from the pages of the file, on all cores.
#
# SQLite's own interface takes several times as long to hand them over value by value, and Python's `sqlite3`, which
# makes
# an object of each, ten times that.

ROWID = -1
_ROWS_PER_THREAD = 100_000
"""Fewer are not worth a thread."""
_ROWS_AT_ONCE = 1 << 17
"""All columns of so many at full width take little memory."""


@dataclass(frozen=True)
class _Pages:
    """The pages with the rows of a table, in order."""

    file: int
    size: int
    used: int
    numbers: Array
    rows: Array
    """How many each has."""
    first: Times
    """The number of its first; one more, of all rows."""


def bulk(path: Path, root: int, columns: Sequence[int]) -> list[Array] | None:
    """Columns (places in a row, or `ROWID`) of the table whose tree begins at page `root`, in order of rowid, as
    `narrowed`; nobody may be writing to the file.

    None where the native core can't read them: `sqlite3` then can, or says why not.
    """
    from concurrent.futures import ThreadPoolExecutor

    with path.open("rb", buffering=0) as file:
        table = _pages(file.fileno(), file.read(100), path.stat().st_size, root)
        if table is None:
            return None
        if not (total := int(table.first[-1])):
            return [np.empty(0, np.int64) for _ in columns]
        parts = np.searchsorted(table.first, np.arange(0, total, _ROWS_AT_ONCE)).tolist()
        # A page with more rows than are read at once leaves parts without any, which would hide their neighbours.
        bounds = [(low, high) for low, high in zip(parts, [*parts[1:], len(table.rows)], strict=True) if low < high]
        most = max((int(table.first[high] - table.first[low]) for low, high in bounds))
        order = sorted(set(columns))
        whole = [_Column(total) for _ in order]
        threads = max(1, min(_cores(), total // _ROWS_PER_THREAD))

        def read(thread: int) -> bool:
            into = np.empty((len(order), most), np.int64)
            for low, high in bounds[len(bounds) * thread // threads : len(bounds) * (thread + 1) // threads]:
                given = table.numbers[low:high], table.rows[low:high], np.array(order, np.int32)
                if not native.table_columns(table.file, table.size, table.used, *given, into):
                    return False
                first, rows = int(table.first[low]), int(table.first[high] - table.first[low])
                for column, values in zip(whole, into, strict=True):
                    column.put(first, values[:rows])
            return True

        if threads == 1:
            done = read(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                done = all(pool.map(read, range(threads)))
    found = dict(zip(order, whole, strict=True))
    return [found[column].whole() for column in columns] if done else None


def _pages(file: int, header: bytes, length: int, root: int) -> _Pages | None:
    """None where the file is no database or the table's tree is not as it should be."""
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    if len(header) < 100 or size < 512 or size - header[20] < 480:
        return None
    numbers, rows = np.empty(length // size, np.uint32), np.empty(length // size, np.uint32)
    count = native.table_pages(file, size, size - header[20], root, numbers, rows)
    first = np.concatenate(([0], np.cumsum(rows[: max(count, 0)], dtype=np.int64)))
    if count < 0 or 4 * int(first[-1]) > length:  # what no file of this length can hold
        return None
    return _Pages(file, size, size - header[20], numbers[:count], rows[:count], first)


class _Column:
    """A column that is read part by part, as narrow as its values allow. Room that is never used takes no memory."""

    def __init__(self, length: int) -> None:
        self._narrow, self._wide = np.empty(length, np.int32), np.empty(length, np.int64)
        self._parts: dict[int, Array] = {}
        """By first row: where the part lies, or as `constant`."""

    def put(self, first: int, values: Array) -> None:
        """Take the rows from `first` on."""
        found = narrowed(values)
        if not is_constant(found):
            into = self._narrow if found.dtype == np.int32 else self._wide
            into[first : first + len(values)] = found
        self._parts[first] = found if is_constant(found) else into[first : first + len(values)]

    def whole(self) -> Array:
        """All parts one after another."""
        if all(map(is_constant, self._parts.values())):
            parts = [self._parts[first] for first in sorted(self._parts)]
            return concatenated(parts) if parts else np.empty(0, np.int64)
        into = self._wide if any(part.dtype == np.int64 for part in self._parts.values()) else self._narrow
        for first, part in self._parts.items():
            if is_constant(part) or part.dtype != into.dtype:
                into[first : first + len(part)] = part
        return into


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


FORMS = (".nsys-rep", ".qdrep", ".sqlite", "_pqtdir", "_arwdir")
"""A report and its exports: one recording in several forms, the one that holds most first."""
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report "
SQLITE_MAGIC = b"SQLite format 3\0"
_NSYS_TABLES = ("StringIds", "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT")
FORMATS = {".parquet": "parquetdir", ".arrow": "arrowdir", ".arrows": "arrowdir", ".feather": "arrowdir"}
"""Formats of folders with a file per table, by the files' suffix."""


def is_of_nsys(table: str) -> bool:
    """Whether a table of this name is nsys's."""
    return table in _NSYS_TABLES or table.startswith("CUPTI_ACTIVITY_KIND_")


def is_table_folder(path: Path) -> bool:
    """Whether a folder holds one file per nsys table."""
    return any(is_of_nsys(file.stem) for file in table_files(path))


def table_files(path: Path) -> list[Path]:
    """The files of such a folder, in order."""
    try:
        return sorted(file for file in path.iterdir() if file.suffix in FORMATS)
    except OSError:
        return []
