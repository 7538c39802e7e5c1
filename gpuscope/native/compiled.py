"""The compiled functions, given columns as C takes them: in one piece, of 64 bits. `plain.py` says what each does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuscope.native.loaded import core

if TYPE_CHECKING:
    from gpuscope.native.fallback import Columns, HostColumns, Integers, LaunchedColumns, Numbers, Places, Wanted


def _whole(*columns: Integers) -> tuple[Integers, ...]:
    return tuple(np.ascontiguousarray(column, np.int64) for column in columns)


def _threads(column: Integers) -> Integers:
    """Numbers of threads, as wide as they are kept."""
    return np.ascontiguousarray(column, column.dtype if column.dtype == np.int32 else np.int64)


def _is_of_one(column: Integers) -> bool:
    """Whether a column was made of one value."""
    return column.strides == (0,)


def _from_zero(thread: Integers) -> Integers:
    """Numbers of threads, of which a single one is 0: nothing writes such zeros, so that they take no memory."""
    return np.zeros(len(thread), np.int32) if _is_of_one(thread) else thread


def _integers(data: bytearray) -> Integers:
    return np.frombuffer(data, np.int64)


def union(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """As `plain.union`."""
    found = core.union(*_whole(start, end))
    if found is None:  # not in order
        order = np.argsort(start, kind="stable")
        found = core.union(*_whole(start[order], end[order]))
    return _integers(found[0]), _integers(found[1])


def intersect(start: Integers, end: Integers, other_start: Integers, other_end: Integers) -> tuple[Integers, Integers]:
    """As `plain.intersect`."""
    begun, ended = core.intersect(*_whole(start, end, other_start, other_end))
    return _integers(begun), _integers(ended)


def places(values: Integers, wanted: Integers, side: Literal["left", "right"] = "left") -> Integers:
    """As `plain.places`. Each is looked for from where the one before was found, which takes a fraction of the time
    where they are close together."""
    return _integers(core.places(*_whole(values, wanted), side == "right"))


def group(values: Integers, group_of: Integers, groups: int) -> Integers:
    """As `plain.group`."""
    found = np.empty((5, groups), np.int64)
    core.group(*_whole(values, group_of), found)
    return found


def parents(start: Integers, end: Integers, thread: Integers, candidates: Wanted) -> Integers:
    """As `plain.parents`."""
    thread = _from_zero(thread)
    threads = max(int(thread.max(initial=-1)) + 1, 0)
    own = *_whole(start, end), _threads(thread), np.ascontiguousarray(candidates)
    return _integers(core.parents(*own, threads))


def innermost(
    start: Integers, end: Integers, thread: Integers, candidates: Wanted, at_thread: Integers, at: Integers
) -> Integers:
    """As `plain.innermost`."""
    if len(start) and _is_of_one(thread):
        thread, at_thread = _from_zero(thread), (at_thread != thread[0]).astype(np.int32)
    threads = max(int(at_thread.max(initial=-1)) + 1, 0)
    own = *_whole(start, end), _threads(thread), np.ascontiguousarray(candidates)
    return _integers(core.innermost(*own, threads, _threads(at_thread), *_whole(at)))


def in_order(
    stream: Integers,
    issue: Integers,
    waits: Integers,
    lasts: Integers,
    recorded_end: Integers,
    free: Integers,
    low: int,
    least: int,
) -> tuple[Integers, Integers]:
    """As `plain.in_order`."""
    start, end = core.in_order(*_whole(stream, issue, waits, lasts, recorded_end, free), low, least)
    return _integers(start), _integers(end)


def longest_path(
    src: Integers, dst: Integers, lag: Integers, dur: Integers, earliest: Integers
) -> tuple[Integers, Integers, int]:
    """As `plain.longest_path`."""
    start, end = np.array(earliest, np.int64), np.zeros(len(dur), np.int64)
    done: int = core.longest_path(*_whole(src, dst, lag, dur), start, end)
    return start, end, done


def add_launched(
    host: HostColumns,
    rows: Integers,
    parent: Integers,
    operator: int,
    annotation: int,
    by: LaunchedColumns,
    of_ranges: LaunchedColumns,
    into: Columns,
) -> None:
    """As `plain.add_launched`."""
    columns, own = tuple(map(np.ascontiguousarray, host)), tuple(map(np.ascontiguousarray, by))
    # The same tuple twice is searched once.
    others = own if of_ranges is by else tuple(map(np.ascontiguousarray, of_ranges))
    core.add_launched(columns, rows, parent, operator, annotation, own, others, into)


def table_pages(*given: int | Numbers) -> int:
    """As `plain.table_pages`, given (file, bytes of a page, those of them that are used, root, into pages, into rows);
    −1 where the tree is not as it should be."""
    found: int = core.table_pages(*given)
    return found


def table_columns(*given: int | Numbers | Places | Integers) -> bool:
    """As `plain.table_columns`, given (file, bytes of a page, those of them that are used, pages, rows, columns: places
    in a row, ascending, −1 for the rowid, into); False where a page is not as it should be."""
    done: bool = core.table_columns(*given)
    return done


def release_memory() -> None:
    """As `plain.release_memory`."""
    core.release_memory()


note_end: Callable[..., None] = core and core.note_end
"""As `plain.note_end`."""

note_issue: Callable[..., Any] = core and core.note_issue
"""As `plain.note_issue`, but for the usual calls, whose entry it gives."""
