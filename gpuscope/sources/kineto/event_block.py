"""One block of Kineto events, sorted by table: what `EventColumns` takes, however the JSON was decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from numpy import typing as npt

from gpuscope.native import core
from gpuscope.sources.kineto.chrome_json import Complete, Counted, Event, Instant, Metadata
from gpuscope.sources.kineto.decimal_time import to_ns
from gpuscope.sources.kineto.event_arguments import (
    NULL,
    ShapeArguments,
    correlations,
    decode_arguments,
    device_columns,
    integer,
    operator_numbers,
)
from gpuscope.trace.name_pool import NamePool
from gpuscope.trace.schema import NA, Category
from gpuscope.when_used import dataclass


class Work(IntEnum):
    """What an event is that is no host event; those have their `Category`, and its numbers are below these."""

    KERNEL = 16
    COPY = 17
    SET = 18
    SYNC = 19
    OTHER = 20


CATEGORIES: dict[str, Category | Work] = {
    "cpu_op": Category.OP,
    "operator": Category.OP,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "glow_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "user_annotation": Category.ANNOTATION,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
    "kernel": Work.KERNEL,
    "concurrent_kernel": Work.KERNEL,
    "mtia_ccp_events": Work.KERNEL,
    "hpu_op": Work.KERNEL,
    "gpu_memcpy": Work.COPY,
    "memcpy": Work.COPY,
    "gpu_memset": Work.SET,
    "memset": Work.SET,
    "cuda_sync": Work.SYNC,
}

Routes = npt.NDArray[np.int8]
Columns = dict[str, npt.NDArray[Any]]


class _Routes(dict[str, int]):
    """Where the events of a category go, in whatever case it is written."""

    def __missing__(self, category: str) -> int:
        route = self[category] = int(CATEGORIES.get(category.lower(), Work.OTHER))
        return route


class Numbered(dict[tuple[Any, Any], int]):
    """Keys in the order they were first asked for."""

    def __missing__(self, key: tuple[Any, Any]) -> int:
        number = self[key] = len(self)
        return number


@dataclass
class Shapes:
    """Recorded inputs of some rows, each column the code of its text."""

    rows: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    dims: Sequence[int] | npt.NDArray[np.int32] = ()
    types: Sequence[int] | npt.NDArray[np.int32] = ()
    concrete: Sequence[int] | npt.NDArray[np.int32] = ()
    strides: Sequence[int] | npt.NDArray[np.int32] = ()


@dataclass
class Rows:
    """The events of a block that go into one table, in the order of the file."""

    route: Routes
    columns: Columns
    """`start`, `end` (ns, not yet on the run's clock), `name` (codes), and what the table has of its own."""
    texts: Callable[[Sequence[int]], list[Any]]
    """The JSON of the arguments of some rows."""
    shapes: Callable[[npt.NDArray[np.int64]], Shapes]
    """The recorded inputs of some rows; those without any are left out."""

    def __len__(self) -> int:
        return len(self.route)

    def where(self, wanted: npt.NDArray[np.bool_]) -> Rows:
        """The rows of a mask."""
        own = np.flatnonzero(wanted)
        columns = {name: column[own] for name, column in self.columns.items()}

        def texts(rows: Sequence[int]) -> list[Any]:
            return self.texts(own[list(rows)].tolist())

        return Rows(self.route[own], columns, texts, lambda rows: self.shapes(own[rows]))


@dataclass
class Block:
    """Events of one block; a table without any is None."""

    device: Rows | None = None
    host: Rows | None = None
    sync: Rows | None = None
    shaped: bool = True
    """Whether operators may have recorded inputs."""
    operator_ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sequences: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """Rows of `host` and autograd's sequence numbers, of operators that have one."""
    records: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """Rows of `host` and ids of the record function, of operators that have one."""
    metadata: Sequence[Metadata] = ()
    instants: Sequence[Instant] = ()
    counters: Sequence[Counted] = ()
    bad_times: int = 0
    """Events whose time is no number; they are left out."""
    other: Mapping[str, int] = field(default_factory=dict)
    """Events of categories that are no work, by category in lower case."""


class Decoded:
    """Blocks from events that msgspec decoded."""

    def __init__(self, names: NamePool, threads: Numbered, texts: Mapping[bytes, int]) -> None:
        self._names, self._threads, self._texts = names, threads, texts
        self._routes = _Routes()

    def block(self, events: Sequence[Event]) -> Block:
        """The columns of one list of events."""
        block = Block()
        spans = [event for event in events if type(event) is Complete]
        if len(spans) < len(events):
            block.metadata = [event for event in events if isinstance(event, Metadata)]
            block.instants = [event for event in events if type(event) is Instant]
            block.counters = [event for event in events if type(event) is Counted]
        route = np.fromiter(map(self._routes.__getitem__, [event.cat for event in spans]), np.int8, len(spans))
        other = route == Work.OTHER
        if other.any():
            block.other = Counter(event.cat.lower() for event in compress(spans, other.tolist()))
            spans, route = list(compress(spans, (~other).tolist())), route[~other]
        if spans:
            self._sort_out(block, *self._timed(block, spans, route))
        return block

    def _timed(self, block: Block, events: list[Complete], route: Routes) -> tuple[list[Complete], Routes, Columns]:
        """Start, end and name of each event whose times are numbers; the others are counted and left out."""
        start, duration = to_ns([event.ts for event in events] + [event.dur for event in events]).reshape(2, -1)
        good = (start != NA) & (duration != NA)
        if not good.all():
            block.bad_times = int((~good).sum())
            events = list(compress(events, good.tolist()))
            start, duration, route = start[good], duration[good], route[good]
        name = self._names.codes([event.name for event in events], len(events))
        return events, route, {"start": start, "end": start + duration, "name": name}

    def _sort_out(self, block: Block, events: list[Complete], route: Routes, columns: Columns) -> None:
        def picked(wanted: npt.NDArray[np.bool_]) -> tuple[list[Complete], Rows]:
            own = list(compress(events, wanted.tolist()))
            mine = {name: column[wanted] for name, column in columns.items()}
            texts = [event.args for event in own]
            return own, Rows(route[wanted], mine, lambda rows: [texts[i] for i in rows], self._shapes(texts))

        host, sync = route < Work.KERNEL, route == Work.SYNC
        if (device := ~(host | sync)).any():
            own, block.device = picked(device)
            block.device.columns |= device_columns([event.args for event in own])
            _fill(block.device.columns["device"], [event.pid for event in own])
            _fill(block.device.columns["stream"], [event.tid for event in own])
        if host.any():
            own, block.host = picked(host)
            block.operator_ids, block.sequences, block.records = self._host(own, block.host)
        if sync.any():
            _, block.sync = picked(sync)

    def _host(self, events: list[Complete], rows: Rows) -> tuple[npt.NDArray[np.int64], ...]:
        correlation = np.full(len(events), NA, np.int64)
        calls = np.flatnonzero(rows.route == Category.RUNTIME)
        correlation[calls] = correlations([events[i].args for i in calls.tolist()])
        threads = map(self._threads.__getitem__, zip([e.pid for e in events], [e.tid for e in events], strict=True))
        rows.columns["correlation"] = correlation
        rows.columns["thread"] = np.fromiter(threads, np.int64, len(events))
        operators = np.flatnonzero(rows.route == Category.OP)
        ids, *numbered = operator_numbers([events[i].args for i in operators.tolist()])
        for numbers in numbered:
            numbers[:, 0] = operators[numbers[:, 0]]
        return ids, *numbered

    def _shapes(self, texts: Sequence[Any]) -> Callable[[npt.NDArray[np.int64]], Shapes]:
        def shapes(rows: npt.NDArray[np.int64]) -> Shapes:
            return shapes_of(rows, [texts[i] for i in rows.tolist()], self._texts)

        return shapes


def shapes_of(rows: npt.NDArray[np.int64], arguments: Sequence[Any], codes: Mapping[bytes, int]) -> Shapes:
    """The recorded inputs of `rows`, from the JSON of their arguments; `codes` gives the code of a text."""
    decoded = decode_arguments(arguments, ShapeArguments)
    shaped = [(row, a) for row, a in zip(rows.tolist(), decoded, strict=True) if a.dims != NULL]
    return Shapes(
        np.array([row for row, _ in shaped], np.int64),
        [codes[bytes(a.dims)] for _, a in shaped],
        [codes[bytes(a.types)] for _, a in shaped],
        [codes[bytes(a.concrete)] for _, a in shaped],
        [codes[bytes(a.strides)] for _, a in shaped],
    )


def _fill(column: npt.NDArray[np.int64], otherwise: Sequence[Any]) -> None:
    """What the arguments leave open follows from the row that the event is drawn in."""
    for row in np.flatnonzero(column == NA).tolist():
        column[row] = integer(otherwise[row])


# Blocks of Kineto events by the native core: equal to what `event_block` makes of them, some twenty times as fast.
#
# The core takes what profilers write and gives up on a block that holds anything unusual, which is then decoded in
# Python; so its rules are a strict part of the JSON reader's.

_KNOWN = {category.encode(): int(route) for category, route in CATEGORIES.items()}
_NUMBERS = ("start", "end", "correlation", "stream", "device", "bytes", "graph", "context")
_NULL = bytes(NULL)
_metadata = msgspec.json.Decoder(list[Metadata])
_instants = msgspec.json.Decoder(list[Instant])
_counters = msgspec.json.Decoder(list[Counted])

Spans = npt.NDArray[np.uint32]
"""Where texts stand, shape (n, 2): offset and length."""
Scanned = dict[str, Any]
"""What the core found in a block, in terms of its text."""


class Native:
    """Makes blocks of what it scanned, one after another: codes are given in the order of the file."""

    def __init__(self, names: NamePool, threads: Numbered, texts: Mapping[bytes, int]) -> None:
        self._names, self._threads, self._texts = names, threads, texts
        self._name_codes, self._text_codes = core.Codes(), core.Codes()
        self._places: dict[tuple[bytes, bytes], int] = {}

    def scan(self, text: bytes | memoryview) -> Scanned | None:
        """What stands in `{…},{…}`; None where Python has to decode it. Other threads run meanwhile."""
        found: Scanned | None = core.scan(text, _KNOWN)
        return found

    def block(self, found: Scanned, text: bytes | memoryview) -> tuple[int, Block] | None:
        """How many events there are, and the columns; None where some event does not decode after all."""
        block = Block(other=_lowered(found["other"]), shaped=found["shaped"] > 0)
        try:
            if found["metadata"]:
                block.metadata = _metadata.decode(_array(text, found["metadata"]))
            if found["memory"]:
                block.instants = _instants.decode(_array(text, found["memory"]))
            if found["counters"]:
                block.counters = _counters.decode(_array(text, found["counters"]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        names = text_codes(self._name_codes, text, found["names"], self._name)
        threads = _texts(text, found["processes"]), _texts(text, found["threads"])
        places = np.array([self._place(pair) for pair in zip(*threads, strict=True)], np.int32)
        drawn = _texts(text, found["row_processes"]), _texts(text, found["row_threads"])
        for table in ("device", "host", "sync"):
            rows = self._rows(found[table], names, text)
            if rows is not None:
                setattr(block, table, rows)
        if block.host is not None:
            block.host.columns["thread"] = places[_numbers(found["host"]["thread"], np.uint32)]
            block.operator_ids = _numbers(found["external_ids"], np.int64)
            block.sequences = _numbers(found["sequences"], np.int64).reshape(-1, 2)
            block.records = _numbers(found["records"], np.int64).reshape(-1, 2)
        if block.device is not None:
            row = _numbers(found["device"]["thread"], np.uint32)
            for column, texts in zip(("device", "stream"), drawn, strict=True):
                _native_block_fill(block.device.columns[column], texts, row)
        return found["events"], block

    def _rows(self, found: dict[str, bytearray], names: npt.NDArray[np.int32], text: bytes | memoryview) -> Rows | None:
        route = _numbers(found["route"], np.int8)
        if not len(route):
            return None
        # Copies: what the scanners' threads allocated is freed whole, for their next blocks.
        columns: Columns = {name: _numbers(found[name], np.int64).copy() for name in _NUMBERS if name in found}
        columns["name"] = names[_numbers(found["name"], np.uint32)]
        arguments = _spans(found["arguments"])
        return Rows(route, columns, _getter(text, arguments), self._shapes(text, arguments))

    def _name(self, text: bytes) -> int:
        return self._names.code(msgspec.json.decode(b'"' + text + b'"') if b"\\" in text else text.decode())

    def _place(self, pair: tuple[bytes, bytes]) -> int:
        place = self._places.get(pair)
        if place is None:
            pid, tid = (msgspec.json.decode(text) for text in pair)
            place = self._places[pair] = self._threads[pid, tid]
        return place

    def _shapes(self, text: bytes | memoryview, arguments: Spans) -> Callable[[npt.NDArray[np.int64]], Shapes]:
        def shapes(rows: npt.NDArray[np.int64]) -> Shapes:
            if not len(rows):
                return Shapes()
            own = arguments[rows]
            found = core.shape_texts(text, own)
            if found is None:
                return shapes_of(rows, _getter(text, arguments)(rows.tolist()), self._texts)
            inputs = [_spans(spans) for spans in found]
            dims = inputs[0]
            recorded = dims[:, 1] > 0
            for row in np.flatnonzero(dims[:, 1] == len(_NULL)).tolist():
                recorded[row] = bytes(text[dims[row, 0] :][: len(_NULL)]) != _NULL
            there = np.flatnonzero(recorded)
            texts = (spans[there] for spans in inputs)
            columns = (text_codes(self._text_codes, text, spans, self._text) for spans in texts)
            return Shapes(rows[there], *columns)

        return shapes

    def _text(self, text: bytes) -> int:
        return self._texts[text or _NULL]


def text_codes(
    known: Any, text: bytes | memoryview, spans: bytearray | Spans, code: Callable[[bytes], int]
) -> npt.NDArray[np.int32]:
    """The code of each text; `code` gives that of one seen for the first time."""
    found, missing = known.get(text, spans)
    at_once = 64
    while missing:  # few of them differ: some are made known, and then it is seen what is left
        places = _spans(spans)[missing[:at_once]].tolist()
        for own in dict.fromkeys(bytes(text[at : at + length]) for at, length in places):
            known.put(own, code(own))
        found, missing = known.get(text, spans)
        at_once *= 4
    return np.frombuffer(found, np.int32)


def _native_block_fill(column: npt.NDArray[np.int64], texts: Sequence[bytes], row: npt.NDArray[np.uint32]) -> None:
    """What the arguments leave open follows from the row that the event is drawn in."""
    missing = column == NA
    if missing.any():
        drawn = np.array([integer(msgspec.json.decode(text)) for text in texts], np.int64)
        column[missing] = drawn[row[missing]]


def _numbers(data: bytearray, kind: type) -> npt.NDArray[Any]:
    return np.frombuffer(data, kind)


def _spans(data: bytearray | Spans) -> Spans:
    return np.frombuffer(data, np.uint32).reshape(-1, 2)


def _getter(text: bytes | memoryview, spans: Spans) -> Callable[[Sequence[int]], list[Any]]:
    def texts(rows: Sequence[int]) -> list[Any]:
        return [bytes(text[at : at + length]) or b"{}" for at, length in spans[rows].tolist()]

    return texts


def _texts(text: bytes | memoryview, spans: bytearray) -> list[bytes]:
    return [bytes(text[at : at + length]) for at, length in _spans(spans).tolist()]


def _array(text: bytes | memoryview, spans: bytearray) -> bytes:
    """The events at some places, as a JSON array."""
    return b"[" + b",".join(_texts(text, spans)) + b"]"


def _lowered(categories: Sequence[tuple[bytes, int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for category, count in categories:
        counts[category.decode("ascii").lower()] += count
    return counts
