"""The arguments of Kineto events that an analysis uses, decoded for many events in one call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy import typing as npt

from gpuscope import when_used
from gpuscope.trace import kinds
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME, item_bytes, total_bytes
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import Mask, distinct_values

Loose = int | float | str | None
"""`bytes`, `stream` and `device` are sometimes strings."""
_Plain = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]
RECORD = "Record function id"
"""By which PyTorch's execution traces name the same call."""
NULL = msgspec.Raw(b"null")
"""What an argument that is not there reads as, where it is left as text."""


class DeviceArguments(msgspec.Struct, gc=False):
    """Arguments of device events and of the calls that launch them."""

    correlation: Loose = None
    stream: Loose = None
    device: Loose = None
    bytes: Loose = None
    graph: Loose = msgspec.field(default=None, name="graph id")
    context: Loose = None


class _PlainDeviceArguments(msgspec.Struct, gc=False):
    """The same where all are integers, as nearly always."""

    correlation: _Plain = NA
    stream: _Plain = NA
    device: _Plain = NA
    bytes: _Plain = NA
    graph: _Plain = msgspec.field(default=NA, name="graph id")
    context: _Plain = NA


class SyncArguments(msgspec.Struct, gc=False):
    """What a stream waits for (libkineto's `cuda_sync` rows); −1 where that is not known."""

    awaited_stream: Loose = msgspec.field(default=None, name="wait_on_stream")
    record: Loose = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class CopyArguments(msgspec.Struct, gc=False):
    """Direction and memory of a copy whose name has neither (torch 2.15's CUPTI back end)."""

    kind: Loose = msgspec.field(default=None, name="copy kind")
    source: Loose = msgspec.field(default=None, name="src kind")
    target: Loose = msgspec.field(default=None, name="dst kind")


class GridArguments(msgspec.Struct, gc=False):
    """The size of a kernel's launch."""

    grid: object = None
    block: object = None


class _Correlated(msgspec.Struct, gc=False):
    correlation: _Plain = NA


class _Operator(msgspec.Struct, gc=False):
    now: Loose = msgspec.field(default=None, name="External id")
    before: Loose = msgspec.field(default=None, name="external id")
    """As files of 2020 and 2021 write it."""
    sequence: Loose = msgspec.field(default=None, name="Sequence number")
    record: Loose = msgspec.field(default=None, name=RECORD)


class ShapeArguments(msgspec.Struct, gc=False):
    """Recorded inputs of an operator, as text: few of them differ."""

    dims: msgspec.Raw = msgspec.field(default=NULL, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NULL, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=NULL, name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=NULL, name="Input Strides")


class CommunicationArguments(msgspec.Struct, gc=False):
    """Arguments of a collective, on its kernel (c10d's `ParamCommsUtils.hpp`)."""

    collective: Loose = msgspec.field(default=None, name="Collective name")
    elements_in: Loose = msgspec.field(default=None, name="In msg nelems")
    elements_out: Loose = msgspec.field(default=None, name="Out msg nelems")
    dtype: Loose = None
    group_size: Loose = msgspec.field(default=None, name="Group size")
    group: Loose = msgspec.field(default=None, name="Process Group Name")
    description: Loose = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Loose = msgspec.field(default=None, name="Seq")
    source: Loose = msgspec.field(default=None, name="Src Rank")
    destination: Loose = msgspec.field(default=None, name="Dst Rank")
    count: Loose = None
    """Elements, as HCCL names it."""
    record: Loose = msgspec.field(default=None, name=RECORD)
    first_use: str | None = None
    first_use_after: int | None = None
    """Of an execution trace: the operator that first uses the result, and ns from the call to it."""


class GlooArguments(CommunicationArguments, gc=False):
    """Arguments of a `gloo:` annotation: its inputs, and with gpuscope's recorder a collective's own."""

    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")


Arguments = TypeVar("Arguments", bound=msgspec.Struct)
_decoders: dict[type, Any] = {}
Column = npt.NDArray[np.int64]


def decode_arguments(texts: Sequence[msgspec.Raw], kind: type[Arguments]) -> list[Arguments]:
    """One `kind` per text; an argument object that is malformed counts as empty."""
    if not texts:
        return []
    try:
        decoded: list[Arguments] = _decoder(kind).decode(b"[" + b",".join(texts) + b"]")
        return decoded
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [_one(text, kind) for text in texts]


def device_columns(texts: Sequence[msgspec.Raw]) -> dict[str, Column]:
    """`DeviceArguments` of many events as columns of integers, shape (n,) each; what is absent is `NA`."""
    try:
        plain = _decoder(_PlainDeviceArguments).decode(b"[" + b",".join(texts) + b"]")
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # some value is text, or some argument object malformed
        return _loose_columns(texts)
    return {
        "correlation": np.array([a.correlation for a in plain], np.int64),
        "stream": np.array([a.stream for a in plain], np.int64),
        "device": np.array([a.device for a in plain], np.int64),
        "bytes": np.array([a.bytes for a in plain], np.int64),
        "graph": np.array([a.graph for a in plain], np.int64),
        "context": np.array([a.context for a in plain], np.int64),
    }


def correlations(texts: Sequence[msgspec.Raw]) -> Column:
    """Only the correlation of many events, shape (n,); `NA` where it is absent."""
    try:
        plain = _decoder(_Correlated).decode(b"[" + b",".join(texts) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _loose_columns(texts)["correlation"]
    return np.array([a.correlation for a in plain], np.int64)


def operator_numbers(texts: Sequence[msgspec.Raw]) -> tuple[Column, Column, Column]:
    """Of operators the External ids, shape (m,), and places with autograd's sequence numbers and with ids of the record
    function, shape (k, 2) each; those that have none are left out."""
    decoded = decode_arguments(texts, _Operator)
    found = np.array([integer(one.before if one.now is None else one.now) for one in decoded], np.int64)
    sequences = np.array([integer(one.sequence) for one in decoded], np.int64)
    records = np.array([integer(one.record) for one in decoded], np.int64)
    return found[found != NA], _placed(sequences, sequences >= 0), _placed(records, records > 0)


def _placed(numbers: Column, there: Mask) -> Column:
    own = np.flatnonzero(there)
    return np.stack((own, numbers[own]), axis=1)


def _loose_columns(texts: Sequence[msgspec.Raw]) -> dict[str, Column]:
    loose = decode_arguments(texts, DeviceArguments)
    return {
        field: np.array([integer(getattr(one, field)) for one in loose], np.int64)
        for field in DeviceArguments.__struct_fields__
    }


def as_list(value: Any) -> list[Any]:
    """A list of the file's header as it is; nothing where something else stands there."""
    return value if isinstance(value, list) else []


def integer(value: Any) -> int:
    """An integer that stands as number or text (`"stream 7"`), else `NA`."""
    if isinstance(value, int):
        return value if -(2**62) < value < 2**62 else NA
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**62 else NA
    if isinstance(value, str) and (match := re.search(r"-?\d{1,18}$", value)):
        return int(match[0])
    return NA


def _decoder(kind: type[Arguments]) -> Any:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    return decoder


def _one(text: msgspec.Raw, kind: type[Arguments]) -> Arguments:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return kind()


# Rows of `collectives` from what a Kineto trace records of their arguments.


def add_collectives(builder: TraceBuilder, rank: int, found: Iterable[tuple[int, CommunicationArguments, str]]) -> None:
    """Rows for communication kernels: (row in device_events, arguments, kernel name) each."""
    _add(builder, rank, [{"event": row, **_columns(arguments, kernel)} for row, arguments, kernel in found])


def _columns(arguments: CommunicationArguments, name: str) -> dict[str, Any]:
    """What arguments say of the collective named `name`, by column."""
    op = kinds.collective_op(str(arguments.collective)) if arguments.collective else ""
    sizes = [size for size in (arguments.elements_in, arguments.elements_out, arguments.count) if isinstance(size, int)]
    item = item_bytes(str(arguments.dtype)) if arguments.dtype else NA
    return {
        "op": op or kinds.collective_op(name) or "unknown",
        "group": arguments.group,
        "group_description": arguments.description,
        "group_size": arguments.group_size,
        "group_ranks": _ranks(arguments.ranks),
        "seq": arguments.seq,
        # The larger of input and output is the whole array for every operation.
        "bytes": max(sizes) * item if sizes and item != NA else NA,
        "received": _received(op, arguments, item),
        "dtype": arguments.dtype,
        "peer": arguments.destination if op == "send" else arguments.source if op == "recv" else None,
        **_use(arguments),
    }


def _use(arguments: CommunicationArguments) -> dict[str, Any]:
    return {"first_use": arguments.first_use, "first_use_after": arguments.first_use_after}


def _received(op: str, arguments: CommunicationArguments, item: int) -> int:
    """Bytes that a rank receives in an all-to-all; uneven where experts have uneven numbers of tokens."""
    elements = arguments.elements_out
    return elements * item if op == "all_to_all" and isinstance(elements, int) and item != NA else NA


def add_gloo_collectives(
    builder: TraceBuilder, rank: int, found: Iterable[tuple[int, GlooArguments, str]], info: dict[str, Any]
) -> None:
    """Rows for `gloo:<op>` annotations: (row in host_events, inputs, name) each.

    gloo names neither group nor sequence, and a reduce-scatter appears as the all-reduce that carries it out;
    where gpuscope recorded, the annotation's arguments name it.
    """
    groups = [group for group in as_list(info.get("pg_config")) if isinstance(group, dict)]
    only = groups[0] if len(groups) == 1 else {}
    rows: list[dict[str, Any]] = []
    for row, arguments, name in found:
        if arguments.collective:
            rows.append({"event": NA, "host_event": row, **_columns(arguments, name)})
            continue
        op = kinds.collective_op(name.removeprefix("gloo:"))
        size = _input_bytes(arguments)
        members = only.get("pg_size") or info.get("world_size")
        if op == "all_gather" and size != NA and isinstance(members, int):
            size *= members
        rows.append(
            {
                "event": NA,
                "host_event": row,
                "op": op or "unknown",
                "group": only.get("pg_name"),
                "group_description": only.get("pg_desc"),
                "group_size": members,
                "group_ranks": _ranks(only.get("ranks")),
                "bytes": size,
                "dtype": arguments.types[0] if isinstance(arguments.types, list) and arguments.types else None,
                **_use(arguments),
            }
        )
    _add(builder, rank, rows)


_NAMES = ("op", "group", "group_description", "group_ranks", "dtype", "first_use")


def _add(builder: TraceBuilder, rank: int, rows: Sequence[dict[str, Any]]) -> None:
    """Add rows, each given as values by column; what one does not give is absent there."""
    code = builder.names.code
    found: dict[str, list[int]] = {name: [] for name in dict.fromkeys(name for row in rows for name in row)}
    for row in rows:
        for name, column in found.items():
            value = row.get(name)
            if name in _NAMES:
                column.append(NO_NAME if value is None else code(str(value)))
            else:
                column.append(value if isinstance(value, int) and (abs(value) < 2**62 or value == NA) else NA)
    builder.add("collectives", len(rows), {"rank": rank, **found})


def _ranks(value: Any) -> str | None:
    """Ranks as «0,1,2»; a list that the profiler elided with … is not a list of ranks."""
    if isinstance(value, str):
        if "..." in value or "…" in value:
            return None
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
    return ",".join(map(str, value)) if isinstance(value, list) and value else None


def _input_bytes(arguments: GlooArguments) -> int:
    return total_bytes(arguments.dims, arguments.types) or NA


# Arguments of collectives whose kernels carry none, from the `record_param_comms` range around the launch.
#
# Kineto copies them from that range to the kernel; the CUPTI back end of torch 2.15 has no such link. The join is
# kernel → (correlation) → launching call → innermost `record_param_comms` of its thread that covers the call's start.

RANGE = "record_param_comms"
Communication = tuple[int, CommunicationArguments, str]
"""Row in device_events, arguments, name of the kernel."""


def with_launch_arguments(
    chunks: Sequence[tuple[str, int, dict[str, Any]]],
    collectives: Sequence[Communication],
    ranges: Sequence[tuple[int, CommunicationArguments]],
) -> list[Communication]:
    """`collectives`, each without arguments of its own given those of its launching range.

    `chunks` are the tables' columns as read, `ranges` the rows in host_events and arguments of the ranges.
    """
    bare = [place for place, (_, arguments, _) in enumerate(collectives) if not told(arguments)]
    if not bare or not ranges:
        return list(collectives)
    calls = _launching_calls(chunks, [collectives[place][0] for place in bare])
    around = _Ranges(chunks, ranges)
    found = list(collectives)
    for place, call in zip(bare, calls, strict=True):
        arguments = around.covering(call)
        if arguments is not None:
            found[place] = (found[place][0], arguments, found[place][2])
    return found


def told(arguments: CommunicationArguments) -> bool:
    """Whether anything of the collective was recorded."""
    return any(value is not None for value in (arguments.collective, arguments.group, arguments.seq, arguments.count))


def _column(chunks: Sequence[tuple[str, int, dict[str, Any]]], table: str, name: str) -> Any:
    return np.concatenate([columns[name] for held, _, columns in chunks if held == table] or [np.empty(0, np.int64)])


def _launching_calls(
    chunks: Sequence[tuple[str, int, dict[str, Any]]], rows: Sequence[int]
) -> list[tuple[int, int] | None]:
    """Thread and start of the call that launched each row of device_events; None where it was not recorded."""
    correlation = _column(chunks, "host_events", "correlation")
    calls = np.flatnonzero((correlation != NA) & (_column(chunks, "host_events", "category") == Category.RUNTIME))
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    ids = correlation[calls]
    wanted = _column(chunks, "device_events", "correlation")[list(rows)]
    places = np.searchsorted(ids, wanted, "right") - 1
    thread, start = (_column(chunks, "host_events", name) for name in ("thread", "start"))
    found: list[tuple[int, int] | None] = []
    for place, correlated in zip(places.tolist(), wanted.tolist(), strict=True):
        known = place >= 0 and correlated != NA and int(ids[place]) == correlated
        found.append((int(thread[calls[place]]), int(start[calls[place]])) if known else None)
    return found


class _Ranges:
    """The ranges by thread, in order of start; they nest at most where an operation is made of others."""

    def __init__(
        self, chunks: Sequence[tuple[str, int, dict[str, Any]]], ranges: Sequence[tuple[int, CommunicationArguments]]
    ) -> None:
        thread, start, end = (_column(chunks, "host_events", name) for name in ("thread", "start", "end"))
        by_thread: dict[int, list[tuple[int, int, CommunicationArguments]]] = {}
        for row, arguments in ranges:
            by_thread.setdefault(int(thread[row]), []).append((int(start[row]), int(end[row]), arguments))
        self._ranges = {key: sorted(own, key=lambda one: one[:2]) for key, own in by_thread.items()}
        self._starts = {key: np.array([one[0] for one in own], np.int64) for key, own in self._ranges.items()}

    def covering(self, call: tuple[int, int] | None) -> CommunicationArguments | None:
        """The arguments of the innermost range around a call, if they say anything."""
        if call is None or call[0] not in self._ranges:
            return None
        thread, at = call
        last = int(np.searchsorted(self._starts[thread], at, "right")) - 1
        for place in range(last, max(last - _NESTING, -1), -1):
            _, end, arguments = self._ranges[thread][place]
            if end >= at:
                return arguments if told(arguments) else None
        return None


_NESTING = 8
"""Ranges looked at, from the last that began before the call: deeper than that none nest."""


# What a Kineto file shows of records that were dropped: gaps in its ids, and its own warnings.

_TRIMMED = 0.01
"""Part of the ids left out at each end: a thread that idled since before the recording has ids far from the rest."""
_BLOCK = 512
"""Ids that torch gives to a thread at a time (`RecordQueue`'s `EventBlock`): 1 to 512, 513 to 1,024…"""
_LOGS = ("WARNING", "ERROR")
"""Keys under which libkineto's `ChromeTraceLogger::finalizeTrace` keeps what it logged."""
_LOST = when_used.pattern(r"\b(?:dropped|lost)\b", re.IGNORECASE)
_RECORDS = when_used.pattern(r"\b(?:events?|records?|samples?|buffers?|activit(?:y|ies))\b", re.IGNORECASE)
_COUNT = when_used.pattern(
    r"\b(?:dropped|lost)(?:\s+[a-z]+){0,3}[\s:]+(\d+)\b|\b(\d+)(?:\s+[a-z]+){0,4}\s+(?:dropped|lost)\b", re.IGNORECASE
)
"""`CuptiActivityApi` logs «Dropped N activity records», by `cuptiActivityGetNumDroppedRecords`."""


def operator_ids(blocks: Sequence[npt.NDArray[np.int64]]) -> dict[str, int]:
    """Columns of `recording` for the External ids of operators; empty where there are none.

    The framework numbers operators one by one within a thread's block of ids, so that a whole recording holds nearly
    all ids of the blocks that it touches; a block without any belongs to a thread whose events are no operators.
    """
    ids = distinct_values(np.concatenate(blocks)) if blocks else np.empty(0, np.int64)
    cut = int(len(ids) * _TRIMMED)
    kept = ids[cut : len(ids) - cut]
    if not len(kept):
        return {}
    touched = distinct_values((kept - 1) // _BLOCK)
    foreign = int(touched[-1]) - int(touched[0]) + 1 - len(touched)
    return {"operator_ids": len(kept), "operator_id_span": int(kept[-1]) - int(kept[0]) + 1 - foreign * _BLOCK}


def dropped(header: Mapping[str, Any]) -> int:
    """Records that libkineto says it dropped, as the log lines in the file's header have it; 0 where it says none."""
    lines = [line for key in _LOGS for line in as_list(header.get(key)) if isinstance(line, str)]
    return dropped_in(lines)


def dropped_in(lines: Sequence[str]) -> int:
    """How many records the lines of a profiler's log say were dropped or lost; one where a line gives no number."""
    return sum(_lost_in(line) for line in lines if _LOST.search(line) and _RECORDS.search(line))


def _lost_in(line: str) -> int:
    match = _COUNT.search(line)
    return int(match[1] or match[2]) if match else 1
