"""Kineto's events, block by block, into columns.

Millions of events pass through here, so what is asked of each in Python is little: its fields are taken out
list by list, and what follows from a name or a category is asked once per name and looked up for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpuscope.sources.kineto.allocator_events import MemoryEvents
from gpuscope.sources.kineto.chrome_json import Complete, Event, Instant, Metadata
from gpuscope.sources.kineto.decimal_time import to_ns
from gpuscope.sources.kineto.event_arguments import (
    NULL,
    CommunicationArguments,
    GlooArguments,
    ShapeArguments,
    SyncArguments,
    correlations,
    decode_arguments,
    device_columns,
    external_ids,
    integer,
)
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.name_pool import NO_NAME, PerName
from gpuscope.trace.naming import kinds
from gpuscope.trace.naming.shaped_operators import is_shaped
from gpuscope.trace.schema import NA, Category, Kind


class Work(IntEnum):
    """What an event is that is no host event; those have their `Category`, and its numbers are below these."""

    KERNEL = 16
    COPY = 17
    SET = 18
    SYNC = 19
    OTHER = 20


_CATEGORIES: dict[str, Category | Work] = {
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

_DIRECTIONS = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "HtoA", "AtoH", "AtoD", "DtoA", "AtoA")

Routes = npt.NDArray[np.int8]


class _Routes(dict[str, int]):
    """Where the events of a category go, in whatever case it is written."""

    def __missing__(self, category: str) -> int:
        route = self[category] = int(_CATEGORIES.get(category.lower(), Work.OTHER))
        return route


class _Numbered(dict[tuple[Any, Any], int]):
    """Keys in the order they were first asked for."""

    def __missing__(self, key: tuple[Any, Any]) -> int:
        number = self[key] = len(self)
        return number


class _Texts(dict[bytes, int]):
    """JSON values as they stand in the file, to the code of their compact text."""

    def __init__(self, builder: TraceBuilder) -> None:
        super().__init__()
        self._names = builder.names

    def __missing__(self, text: bytes) -> int:
        code = self[text] = self._names.code(msgspec.json.encode(msgspec.json.decode(text)).decode())
        return code


class EventColumns:
    """Sorts events into columns of tables; rank, clock base and threads' rows are not known yet."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.chunks: list[tuple[str, int, dict[str, Any]]] = []
        """Table, rows and columns, in the order read."""
        self.collectives: list[tuple[int, CommunicationArguments, str]] = []
        self.host_collectives: list[tuple[int, GlooArguments, str]] = []
        self.memory = MemoryEvents()
        self.operator_ids: list[npt.NDArray[np.int64]] = []
        """External ids of operators, block by block."""
        self.bad_times = 0
        self.other: Counter[str] = Counter()
        """Events of categories that are no work, by category."""
        self.threads = _Numbered()
        """(pid, tid) as written, to the number that stands in the column `thread`."""
        self._builder = builder
        self._texts = _Texts(builder)
        self._routes = _Routes()
        self._rows = Counter[str]()
        code = builder.names.code
        self._kind = PerName(builder.names, _kernel_kind)
        self._direction = PerName(builder.names, lambda name: code(_copy_kind(name)))
        self._is_gloo = PerName(builder.names, lambda name: name.startswith("gloo:"))
        self._is_shaped = PerName(builder.names, is_shaped)

    def take(self, events: Sequence[Event]) -> None:
        """Take in one block of events."""
        spans = [event for event in events if type(event) is Complete]
        if len(spans) < len(events):
            for event in events:
                if isinstance(event, Metadata):
                    self._name_thread(event)
            self.memory.take([event for event in events if type(event) is Instant])
        route = np.fromiter(map(self._routes.__getitem__, [event.cat for event in spans]), np.int8, len(spans))
        other = route == Work.OTHER
        if other.any():
            self.other.update(event.cat.lower() for event in compress(spans, other.tolist()))
            spans, route = list(compress(spans, (~other).tolist())), route[~other]
        if spans:
            self._sort_out(*self._timed(spans, route))

    def _timed(self, events: list[Complete], route: Routes) -> tuple[list[Complete], Routes, dict[str, Any]]:
        """Start, end and name of each event whose times are numbers; the others are counted and left out."""
        start, duration = to_ns([event.ts for event in events] + [event.dur for event in events]).reshape(2, -1)
        good = (start != NA) & (duration != NA)
        if not good.all():
            self.bad_times += int((~good).sum())
            events = list(compress(events, good.tolist()))
            start, duration, route = start[good], duration[good], route[good]
        name = self._builder.names.codes([event.name for event in events], len(events))
        return events, route, {"start": start, "end": start + duration, "name": name}

    def _sort_out(self, events: list[Complete], route: Routes, columns: dict[str, Any]) -> None:
        host, sync = route < Work.KERNEL, route == Work.SYNC
        for wanted, take in ((~(host | sync), self._device), (host, self._host), (sync, self._sync)):
            if wanted.any():
                own = {name: column[wanted] for name, column in columns.items()}
                take(list(compress(events, wanted.tolist())), route[wanted], own)

    def _append(self, table: str, length: int, columns: dict[str, Any]) -> int:
        first = self._rows[table]
        self.chunks.append((table, length, columns))
        self._rows[table] += length
        return first

    def _device(self, events: list[Complete], route: Routes, columns: dict[str, Any]) -> None:
        columns |= device_columns([event.args for event in events])
        _fill(columns["device"], [event.pid for event in events])
        _fill(columns["stream"], [event.tid for event in events])
        graph = columns["graph"]
        graph[graph == 0] = NA  # Kineto writes 0 where a kernel was launched outside any graph
        kernel, copy = route == Work.KERNEL, route == Work.COPY
        kind = np.full(len(events), Kind.MEMORY, np.int8)
        kind[kernel] = self._kind(columns["name"][kernel])
        copy_kind = np.full(len(events), NO_NAME, np.int32)
        copy_kind[copy] = self._direction(columns["name"][copy])
        if (route == Work.SET).any():
            copy_kind[route == Work.SET] = self._builder.names.code("memset")
        columns |= {"kind": kind, "copy_kind": copy_kind}
        first = self._append("device_events", len(events), columns)
        communicating = np.flatnonzero(kind == Kind.COMMUNICATION).tolist()
        decoded = decode_arguments([events[i].args for i in communicating], CommunicationArguments)
        self.collectives += [(first + i, a, events[i].name) for i, a in zip(communicating, decoded, strict=True)]

    def _host(self, events: list[Complete], route: Routes, columns: dict[str, Any]) -> None:
        name = columns["name"]
        gloo = (route == Category.ANNOTATION) & (self._is_gloo(name) != 0)
        correlation = np.full(len(events), NA, np.int64)
        calls = np.flatnonzero(route == Category.RUNTIME)
        correlation[calls] = correlations([events[i].args for i in calls.tolist()])
        threads = map(self.threads.__getitem__, zip([e.pid for e in events], [e.tid for e in events], strict=True))
        operators = np.flatnonzero(route == Category.OP)
        self.operator_ids.append(external_ids([events[i].args for i in operators.tolist()]))
        columns["category"] = np.where(gloo, np.int8(Category.COMMUNICATION), route)
        columns["correlation"] = correlation
        columns["thread"] = np.fromiter(threads, np.int64, len(events))
        first = self._append("host_events", len(events), columns)
        rows = np.flatnonzero(gloo).tolist()
        inputs = decode_arguments([events[i].args for i in rows], GlooArguments)
        self.host_collectives += [(first + i, a, events[i].name) for i, a in zip(rows, inputs, strict=True)]
        self._shapes(first, events, np.flatnonzero(self._is_shaped(name) != 0).tolist())

    def _shapes(self, first: int, events: list[Complete], rows: list[int]) -> None:
        decoded = decode_arguments([events[i].args for i in rows], ShapeArguments)
        shaped = [(first + i, a) for i, a in zip(rows, decoded, strict=True) if a.dims != NULL]
        columns = {
            "event": [row for row, _ in shaped],
            "dims": [self._texts[bytes(a.dims)] for _, a in shaped],
            "types": [self._texts[bytes(a.types)] for _, a in shaped],
            "concrete": [self._texts[bytes(a.concrete)] for _, a in shaped],
        }
        self._builder.add("shapes", len(shaped), columns)

    def _sync(self, events: list[Complete], route: Routes, columns: dict[str, Any]) -> None:  # noqa: ARG002
        decoded = device_columns([event.args for event in events])
        columns |= {key: decoded[key] for key in ("device", "stream", "correlation")}
        waits = decode_arguments([event.args for event in events], SyncArguments)
        for name in ("awaited_stream", "record"):
            found = np.array([integer(getattr(one, name)) for one in waits], np.int64)
            columns[name] = np.where(found < 0, NA, found)
        self._append("syncs", len(events), columns)

    def _name_thread(self, event: Metadata) -> None:
        if event.name == "thread_name" and event.args and isinstance(event.pid, int) and isinstance(event.tid, int):
            self._builder.name_thread(event.pid, event.tid, str(event.args.get("name", "")))


def _fill(column: npt.NDArray[np.int64], otherwise: Sequence[Any]) -> None:
    """What the arguments leave open follows from the row that the event is drawn in."""
    for row in np.flatnonzero(column == NA).tolist():
        column[row] = integer(otherwise[row])


def _kernel_kind(name: str) -> Kind:
    return Kind.COMMUNICATION if kinds.is_communication_kernel(name) else Kind.COMPUTE


def _copy_kind(name: str) -> str:
    for direction in _DIRECTIONS:
        if direction in name:
            return direction + (" pageable" if "Pageable" in name else "")
    return "memcpy"
