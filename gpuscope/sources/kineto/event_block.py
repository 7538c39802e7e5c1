"""One block of Kineto events, sorted by table: what `EventColumns` takes, however the JSON was decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.sources.kineto.event_arguments import (
    NULL,
    ShapeArguments,
    correlations,
    decode_arguments,
    device_columns,
    integer,
    operator_numbers,
)
from gpuscope.sources.kineto.text.chrome_json import Complete, Counted, Event, Instant, Metadata
from gpuscope.sources.kineto.text.decimal_time import to_ns
from gpuscope.trace.columns.name_pool import NamePool
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
