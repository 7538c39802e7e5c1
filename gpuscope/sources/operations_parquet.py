"""Operation-level traces of ByteDance-Seed/StragglerAnalysis: one Parquet file of a whole job.

One row per operation that a Megatron-like job timed on one rank of each (data-parallel replica, stage); the
columns are explained in that project's readme. pyarrow is imported only when such a file is opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources.rank_numbers import require_pyarrow
from gpuscope.sources.source import Files, ReadOptions, Role, Source
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import MOST_RANKS, NA
from gpuscope.trace.table import Array, Mask, Times

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")
_INTEGERS = {
    "rank": "rank",
    "dp_rank": "dp_rank",
    "stage": "stage",
    "step": "step",
    "seq": "seq_id",
    "micro_batch": "mb_id",
    "chunk": "mc",
    "global_chunk": "gmc",
}
_MAY_BE_ABSENT = ("micro_batch", "chunk", "global_chunk")
_MAGIC = b"PAR1"
_TOLD_BY = (b"optype", b"dp_rank")
_MOST_FOOTER = 16 << 20
_SECOND = 10**9


class OperationsSource(Source):
    """Reads a Parquet file whose columns are those of an operation-level trace."""

    name = "operations"
    files = Files(Role.TIMELINE, (".parquet",))

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.startswith(_MAGIC) and all(name in _footer(path) for name in _TOLD_BY)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        table = _read(path, require_pyarrow(path, "an operation-level trace"))
        whole = {ours: _integers(path, table, theirs) for ours, theirs in _INTEGERS.items()}
        for name in _MAY_BE_ABSENT:
            whole[name] = np.where(whole[name] < 0, NA, whole[name])  # the format writes -1
        seconds = {name: _floats(path, table, name) for name in ("start_ts", "duration")}
        op = _names(path, table, builder)
        for name in ("rank", "dp_rank", "stage"):
            whole[name] = np.where(whole[name] < MOST_RANKS, whole[name], NA)
        good = _usable(builder, path, whole, op, seconds)
        count = int(good.sum())
        if not count:
            raise InputError(f"{path}: holds no operations", hint="was the job stopped before it wrote any?")
        whole = {name: values[good] for name, values in whole.items()}
        start, duration = nanoseconds(seconds["start_ts"][good]), nanoseconds(seconds["duration"][good])
        start = _laid_end_to_end(builder, path, whole["step"], start, start + duration)
        facts = {"workers": len(set(zip(whole["stage"].tolist(), whole["dp_rank"].tolist(), strict=True)))}
        source = builder.source(path, self.name, "", len(table), facts)
        builder.add("operations", count, {**whole, "op": op[good], "start": start, "end": start + duration})
        _add_ranks_and_steps(builder, source, whole, start, start + duration)
        builder.problem(reading.OPERATIONS_ONLY, 1, file=path.name)
        if options.advance:
            options.advance(path.stat().st_size)


def nanoseconds(seconds: Array) -> Times:
    """Seconds as integer ns: the whole seconds exactly, the fraction to the nearest ns; shape (n,).

    In one product the whole would eat up the fraction's digits.
    """
    exact = seconds.astype(np.float64)
    whole = np.floor(exact)
    return whole.astype(np.int64) * _SECOND + np.rint((exact - whole) * _SECOND).astype(np.int64)


def _footer(path: Path) -> bytes:
    """The metadata at the end of a Parquet file, where its columns are named; empty where it is cut off."""
    try:
        with path.open("rb") as file:
            file.seek(-8, os.SEEK_END)
            end = file.tell()
            tail = file.read(8)
            length = int.from_bytes(tail[:4], "little")
            if tail[4:] != _MAGIC or not 0 < length <= min(end, _MOST_FOOTER):
                return b""
            file.seek(end - length)
            return file.read(length)
    except OSError:
        return b""


def _read(path: Path, arrow: ModuleType) -> Any:
    from pyarrow import parquet

    try:
        there = parquet.read_schema(path).names
        missing = [name for name in COLUMNS if name not in there]
        if missing:
            raise InputError(
                f"{path}: an operation-level trace without the columns {', '.join(missing)}",
                hint=f"it needs {', '.join(COLUMNS)}",
            )
        return parquet.read_table(path, columns=list(COLUMNS)).combine_chunks()
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: can't be read: {error}", hint="copy it again") from error


def _integers(path: Path, table: Any, name: str) -> Times:
    """A column as int64, NA where it is null."""
    import pyarrow

    try:
        column = table[name].cast(pyarrow.int64())
    except pyarrow.ArrowException as error:
        raise _wrong_type(path, table, name, "integers") from error
    return np.asarray(column.fill_null(NA).to_numpy(), np.int64)


def _floats(path: Path, table: Any, name: str) -> Array:
    """A column as float64, NaN where it is null."""
    import pyarrow

    if not (pyarrow.types.is_floating(table[name].type) or pyarrow.types.is_integer(table[name].type)):
        raise _wrong_type(path, table, name, "seconds")
    return np.asarray(table[name].to_numpy(), np.float64)


def _names(path: Path, table: Any, builder: TraceBuilder) -> Array:
    """The operations' types as name codes, NO_NAME where null."""
    import pyarrow

    column = table["optype"]
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)):
        raise _wrong_type(path, table, "optype", "names")
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    if not len(encoded):
        return np.empty(0, np.int32)
    try:
        codes = builder.names.codes(encoded.dictionary.to_pylist())
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: can't be read: types of operations that are not UTF-8", hint="copy it again"
        ) from error
    places = np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False))
    return np.where(places < 0, NO_NAME, codes[places]) if len(codes) else np.full(len(places), NO_NAME)


def _wrong_type(path: Path, table: Any, name: str, wanted: str) -> InputError:
    return InputError(f"{path}: column {name} holds {table[name].type}, not {wanted}")


def _usable(builder: TraceBuilder, path: Path, whole: dict[str, Times], op: Array, seconds: dict[str, Array]) -> Mask:
    """Rows that say what, where and when; the others are counted."""
    placed = op >= 0
    for name, values in whole.items():
        if name not in _MAY_BE_ABSENT:
            placed &= values >= 0
    # A day is longer than any step, and what is beyond int64 would wrap.
    timed = np.isfinite(seconds["start_ts"]) & np.isfinite(seconds["duration"])
    timed &= (np.abs(seconds["start_ts"]) < 9e9) & (np.abs(seconds["duration"]) < 9e9)
    builder.problem(reading.BAD_OPERATION, int((~placed).sum()), file=path.name)
    builder.problem(reading.BAD_TIME_OF_OPERATION, int((placed & ~timed).sum()), file=path.name)
    return np.asarray(placed & timed)


def _laid_end_to_end(builder: TraceBuilder, path: Path, step: Times, start: Times, end: Times) -> Times:
    """Starts on one clock. The published traces begin each step at 0: the times between steps are lost."""
    numbers, which = np.unique(step, return_inverse=True)
    first = np.full(len(numbers), np.iinfo(np.int64).max)
    last = np.full(len(numbers), np.iinfo(np.int64).min)
    np.minimum.at(first, which, start)
    np.maximum.at(last, which, end)
    length = last - first
    if len(numbers) < 2 or int(np.ptp(first)) >= int(length.min()):
        return start
    builder.problem(reading.STEPS_FROM_ZERO, len(numbers), file=path.name)
    offset = np.concatenate(([0], np.cumsum(length)[:-1])) - first
    return np.asarray(start + offset[which])


def _add_ranks_and_steps(builder: TraceBuilder, source: int, whole: dict[str, Times], start: Times, end: Times) -> None:
    ranks = np.unique(whole["rank"])
    builder.add("ranks", len(ranks), {"rank": ranks, "source": source})
    pairs, which = np.unique(np.stack((whole["rank"], whole["step"])), axis=1, return_inverse=True)
    first, last = np.full(pairs.shape[1], start.max()), np.full(pairs.shape[1], end.min())
    np.minimum.at(first, which.ravel(), start)
    np.maximum.at(last, which.ravel(), end)
    values = {
        "rank": pairs[0],
        "step": pairs[1],
        "start": first,
        "end": last,
        "basis": builder.names.code("steps of the operations"),
    }
    builder.add("steps", pairs.shape[1], values)


SOURCE = OperationsSource()
