"""Kineto's events, block by block, into columns.

Millions of events pass through here, so what is asked of each in Python is little: its fields are taken out
list by list, and what follows from a name or a category is asked once per name and looked up for all.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from numpy import typing as npt

from gpuscope import native, when_used
from gpuscope.problems import reading
from gpuscope.sources.kineto.chrome_json import Counted, Event, Instant, Metadata
from gpuscope.sources.kineto.decimal_time import to_ns
from gpuscope.sources.kineto.event_arguments import (
    RANGE,
    CommunicationArguments,
    CopyArguments,
    GlooArguments,
    GridArguments,
    SyncArguments,
    decode_arguments,
    device_columns,
    integer,
)
from gpuscope.sources.kineto.event_block import Block, Decoded, Native, Numbered, Rows, Work
from gpuscope.sources.kineto.graph_nodes import NODE_BITS, Dependency, Flows, joined, low_half, nodes_of
from gpuscope.trace import kinds
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.intervals import LONG_NS, small
from gpuscope.trace.name_pool import NO_NAME, PerName, is_shaped
from gpuscope.trace.schema import NA, Category, Kind

# Kineto's `[memory]` events (`profile_memory=True`): the allocator's totals at each allocation and free.

_NAME = b'"[memory]"'
_CPU = 0
"""c10::DeviceType of host memory, of which PyTorch keeps no totals."""
_LIMIT = 1 << 62


class MemoryArguments(msgspec.Struct, gc=False):
    """The arguments of one event; sizes are bytes."""

    device_type: int = msgspec.field(default=_CPU, name="Device Type")
    device: int = msgspec.field(default=NA, name="Device Id")
    allocated: int = msgspec.field(default=NA, name="Total Allocated")
    reserved: int = msgspec.field(default=NA, name="Total Reserved")


class MemoryEvents:
    """Collects the samples; rank and clock base are not known yet."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []

    def take(self, events: Sequence[Instant]) -> None:
        """Take in those of a block's instant events that are of device memory."""
        own = [event for event in events if bytes(event.name) == _NAME]
        decoded = decode_arguments([event.args for event in own], MemoryArguments)
        for time, one in zip(to_ns([event.ts for event in own]).tolist(), decoded, strict=True):
            sizes = (one.device, one.allocated)
            if one.device_type != _CPU and time != NA and all(0 <= value < _LIMIT for value in sizes):
                self._rows.append((time, one.device, one.allocated, one.reserved if 0 < one.reserved < _LIMIT else NA))

    def finish(self, builder: TraceBuilder, rank: int, base: int) -> None:
        """Hand the samples to the builder; `base` is the clock's zero in ns."""
        if self._rows:
            time, device, allocated, reserved = np.array(self._rows, np.int64).T
            columns = {"time": time + base, "device": device, "allocated": allocated, "reserved": reserved}
            builder.add("memory_samples", len(time), {"rank": rank, **columns})


# Samples of GPU counters in torch.profiler's traces: power, clocks, and what PM sampling measured (SM, DRAM, NVLink…).
#
# The CUPTI back end of torch 2.15 writes one counter per event of the process «GPU n Counters», with an empty key;
# Kineto
# (`cat: hardware_counters`, pytorch/kineto PR 1527) the metrics by name, with the device as process. A unit stands in
# brackets at the name's end.

PARTS = 1000
"""Values are kept in thousandths of their unit."""
_PROCESS = when_used.pattern(r"GPU (\d+) Counters$")
_UNIT = when_used.pattern(r"\(([^()]*)\)$")
_OF_KINETO = "hardware_counters"
_GPU_COUNTERS_LIMIT = 2**62
ENVIRONMENT = ("Power (W)", "Temperature (C)", "SM Clock (MHz)", "Memory Clock (MHz)", "Fan Speed (%)")
"""What CUPTI's environment records give (pytorch PR 188939): measuring these changes nothing."""
DERIVED = "Cycles (Current Kernel)"
"""One per kernel: its duration times the median SM clock."""

_decoder = msgspec.json.Decoder(dict[str, float | int | str | None])


class GpuCounters:
    """Collects the samples; the clock base is not known yet."""

    def __init__(self) -> None:
        self.unreadable = 0
        """Samples without a time or a finite value."""
        self._samples: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)

    def take(self, events: Sequence[Counted]) -> None:
        """Take in those of a JSON block's counters that are a GPU's; others are of no known kind and left out."""
        for event, time in zip(events, to_ns([event.ts for event in events]).tolist(), strict=True):
            device = _device(_plain(event.pid), _plain(event.cat))
            if device is None:
                continue
            name = _plain(event.name)
            try:
                values = _decoder.decode(event.args)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.unreadable += 1
                continue
            for key, value in values.items():
                self.add(device, key or str(name), time, value)

    def add(self, device: int, counter: str, time: int, value: object) -> None:
        """Take in one sample; `time` in ns or `NA`."""
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not abs(number) * PARTS < _GPU_COUNTERS_LIMIT or time == NA or not 0 <= device < _GPU_COUNTERS_LIMIT:
            self.unreadable += 1
            return
        self._samples[device, counter].append((time, round(number * PARTS)))

    @property
    def pm_sampled(self) -> bool:
        """Whether hardware counters were sampled: CUPTI locks the GPU's clocks for that (pytorch PR 188849)."""
        return any(counter not in (*ENVIRONMENT, DERIVED) for _, counter in self._samples)

    def finish(self, builder: TraceBuilder, source: int, base: int) -> None:
        """Hand the samples to the builder; `base` is the clock's zero in ns.

        A sample holds until the next one of its counter, the last one as long as the one before it.
        """
        code = builder.names.code
        for (device, counter), samples in sorted(self._samples.items()):
            start, value = np.array(sorted(samples), np.int64).T
            length = np.diff(start)
            unit = _UNIT.search(counter)
            columns = {
                "source": source,
                "place": code(f"GPU {device}"),
                "counter": code(counter),
                "unit": code(unit[1] if unit else ""),
                "start": start + base,
                "end": start + base + np.append(length, length[-1:] if len(length) else 0),
                "value": value,
                "parts": PARTS,
            }
            builder.add("counters", len(start), columns)
        builder.problem(reading.COUNTER_UNREADABLE, self.unreadable)
        builder.problem(reading.CLOCKS_LOCKED, int(self.pm_sampled))


def _plain(text: bytes | msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _device(process: object, category: object) -> int | None:
    if isinstance(process, str) and (match := _PROCESS.match(process)):
        return int(match[1])
    if category == _OF_KINETO and isinstance(process, int) and not isinstance(process, bool):
        return process
    return None


_DIRECTIONS = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "HtoA", "AtoH", "AtoD", "DtoA", "AtoA")

UNDIRECTED = "memcpy"
"""The copy kind where none is recorded."""


class _Texts(dict[bytes, int]):
    """JSON values as they stand in the file, to the code of their compact text."""

    def __init__(self, builder: TraceBuilder) -> None:
        super().__init__()
        self.unusable = 0
        """Distinct values that are no recorded inputs."""
        self._names = builder.names

    def __missing__(self, text: bytes) -> int:
        value: Any = 0
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # of an event only its marks were read
            value = msgspec.json.decode(text)
        if not (value is None or (isinstance(value, list) and all(map(_is_input, value)))):
            self.unusable += 1
            value = []
        code = self[text] = self._names.code(msgspec.json.encode(value).decode())
        return code


def _is_input(value: Any, depth: int = 4) -> bool:
    """Whether a value is what torch writes of one input: a size, a type's name, or a list of these."""
    if isinstance(value, list):
        return depth > 0 and all(_is_input(one, depth - 1) for one in value)
    return value is None or isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**62)


def _product(size: object) -> int:
    """Blocks of a grid, or threads of a block; 0 where it is no list of three sizes."""
    if not isinstance(size, list) or len(size) != 3 or not all(type(one) is int and 0 < one < 1 << 16 for one in size):
        return 0
    x, y, z = size
    return int(x * y * z)


class EventColumns:
    """Sorts events into columns of tables; rank, clock base and threads' rows are not known yet."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.chunks: list[tuple[str, int, dict[str, Any]]] = []
        """Table, rows and columns, in the order read."""
        self.collectives: list[tuple[int, CommunicationArguments, str]] = []
        self.host_collectives: list[tuple[int, GlooArguments, str]] = []
        self.communication: list[tuple[int, CommunicationArguments]] = []
        """Ranges `record_param_comms`: row in host_events, arguments."""
        self.memory = MemoryEvents()
        self.counters = GpuCounters()
        self.operator_ids: list[npt.NDArray[np.int64]] = []
        """External ids of operators, block by block."""
        self.sequences: list[npt.NDArray[np.int64]] = []
        """Rows in host_events and autograd's sequence numbers of operators, block by block; shape (n, 2) each."""
        self.records: list[npt.NDArray[np.int64]] = []
        """The same with the ids of their record function."""
        self.bad_times = 0
        self.other: Counter[str] = Counter()
        """Events of categories that are no work, by category."""
        self.dependencies: list[Dependency] = []
        """Between nodes of graphs, by rows in device_events."""
        self.has_short_nodes = False
        """Whether nodes are numbered as the back end does that records dependencies, too, if it was asked to."""
        self.shaped = False
        """Whether the inputs of any operator were recorded."""
        self.drawn_devices: set[Any] = set()
        """Processes that stand for a device, as their names or labels say."""
        self.threads = Numbered()
        """(pid, tid) as written, to the number that stands in the column `thread`."""
        self.texts = _Texts(builder)
        """JSON of recorded inputs to the code of its compact text."""
        self._builder = builder
        self._decoded = Decoded(builder.names, self.threads, self.texts)
        self.scanner = Native(builder.names, self.threads, self.texts) if native.COMPILED else None
        """Makes blocks without msgspec; None without the native core."""
        self._rows = Counter[str]()
        code = builder.names.code
        self._kind = PerName(builder.names, _kernel_kind)
        self._direction = PerName(builder.names, lambda name: code(_copy_kind(name)))
        self._is_wait = PerName(builder.names, kinds.is_device_wait)
        self._is_dma = PerName(builder.names, kinds.is_dma)
        self._is_gloo = PerName(builder.names, lambda name: name.startswith("gloo:"))
        self._is_shaped = PerName(builder.names, is_shaped)

    @property
    def device_rows(self) -> int:
        """Rows of device_events so far."""
        return self._rows["device_events"]

    def take(self, batch: Sequence[Event] | Block) -> None:
        """Take in one block of events."""
        block = batch if isinstance(batch, Block) else self._decoded.block(batch)
        for event in block.metadata:
            self._name_thread(event)
        self.memory.take(block.instants)
        self.counters.take(block.counters)
        self.other.update(block.other)
        self.bad_times += block.bad_times
        if block.device is not None:
            self._device(block.device)
        if block.host is not None:
            self._host(block.host, block)
        if block.sync is not None:
            self._sync(block.sync)

    def _append(self, table: str, length: int, columns: dict[str, Any]) -> int:
        first = self._rows[table]
        self.chunks.append((table, length, columns))
        self._rows[table] += length
        return first

    def _device(self, rows: Rows) -> None:
        columns, route = rows.columns, rows.route
        waits = (route == Work.KERNEL) & (self._is_wait(columns["name"]) != 0)
        if waits.any():
            self._sync(rows.where(waits))
            rows = rows.where(~waits)
            if not len(rows):
                return
            columns, route = rows.columns, rows.route
        name, graph = columns["name"], columns["graph"]
        graph[graph == 0] = NA  # Kineto writes 0 where a kernel was launched outside any graph
        kernel, copy, memset = route == Work.KERNEL, route == Work.COPY, route == Work.SET
        kind = np.full(len(rows), Kind.MEMORY, np.int8)
        kind[kernel] = self._kind(name[kernel])
        copy_kind = np.full(len(rows), NO_NAME, np.int32)
        copy_kind[copy] = self._copy_kinds(rows, np.flatnonzero(copy))
        moves = kernel & (self._is_dma(name) != 0)
        kind[moves], copy_kind[moves] = Kind.MEMORY, self._builder.names.code(UNDIRECTED)
        if memset.any():
            copy_kind[memset] = self._builder.names.code("memset")
        columns |= {"kind": kind, "copy_kind": copy_kind}
        first = self._append("device_events", len(rows), columns)
        self._graph_nodes(rows, first)
        self._small_grids(rows, np.flatnonzero(kernel & (kind == Kind.COMPUTE)), first)
        own = np.flatnonzero(kind == Kind.COMMUNICATION).tolist()
        decoded = decode_arguments(rows.texts(own), CommunicationArguments)
        names = self._builder.names
        self.collectives += [(first + i, a, names[name[i]]) for i, a in zip(own, decoded, strict=True)]

    def _copy_kinds(self, rows: Rows, copies: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
        """Directions, by the names; those that a name leaves open by the arguments, as torch 2.15 writes them."""
        found = self._direction(rows.columns["name"][copies])
        code = self._builder.names.code
        open_ones = np.flatnonzero(found == code(UNDIRECTED)).tolist() if len(copies) else []
        told = decode_arguments(rows.texts([int(copies[place]) for place in open_ones]), CopyArguments)
        for place, one in zip(open_ones, told, strict=True):
            if isinstance(one.kind, str) and one.kind in _DIRECTIONS:
                pageable = "pageable" in (one.source, one.target)
                found[place] = code(one.kind + (" pageable" if pageable else ""))
        return found

    def _small_grids(self, rows: Rows, kernels: npt.NDArray[np.intp], first: int) -> None:
        lasts = rows.columns["end"][kernels] - rows.columns["start"][kernels]
        kernels, lasts = kernels[lasts >= LONG_NS], lasts[lasts >= LONG_NS]
        told = decode_arguments(rows.texts(kernels.tolist()), GridArguments)
        blocks, threads = (
            np.array([_product(size) for size in sizes], np.int64)
            for sizes in ([one.grid for one in told], [one.block for one in told])
        )
        places = small(blocks, lasts)
        columns = {"event": kernels[places] + first, "blocks": blocks[places], "threads": threads[places]}
        self._builder.add("small_grids", len(places), columns)

    def _graph_nodes(self, rows: Rows, first: int) -> None:
        own = np.flatnonzero(rows.columns["graph"] != NA)
        if not len(own):
            return
        ids, parts = nodes_of(rows.texts(own.tolist()))
        known = ids != NA
        self.has_short_nodes |= bool((ids[known] <= NODE_BITS).any())
        annotation = np.array([self._builder.names.code(part) if part else NO_NAME for part in parts], np.int32)
        columns = {"event": own[known] + first, "node": low_half(ids[known]), "annotation": annotation[known]}
        self._builder.add("graph_nodes", int(known.sum()), columns)

    def whole(self, table: str) -> dict[str, npt.NDArray[Any]] | None:
        """The columns of a table so far; None where it has no rows."""
        parts = [columns for name, _, columns in self.chunks if name == table]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else None

    def replace(self, table: str, column: str, values: npt.NDArray[Any]) -> None:
        """Other values for a column of all rows so far."""
        first = 0
        for name, length, columns in self.chunks:
            if name == table:
                columns[column] = values[first : first + length]
                first += length

    def join(self, flows: Flows) -> None:
        """Take in the arrows between nodes of graphs, after all events."""
        device = [columns for table, _, columns in self.chunks if table == "device_events"]
        if not device:
            return
        names = ("device", "stream", "start", "end", "graph")
        whole = {name: np.concatenate([columns[name] for columns in device]) for name in names}
        self.dependencies += joined(flows, whole, np.flatnonzero(whole["graph"] != NA))

    def _host(self, rows: Rows, block: Block) -> None:
        columns, name = rows.columns, rows.columns["name"]
        annotations = np.flatnonzero(rows.route == Category.ANNOTATION)
        gloo = annotations[self._is_gloo(name[annotations]) != 0]
        columns["category"] = rows.route.copy()
        columns["category"][gloo] = Category.COMMUNICATION
        first = self._append("host_events", len(rows), columns)
        self.operator_ids.append(block.operator_ids)
        self.sequences.append(block.sequences + np.array([first, 0]))
        self.records.append(block.records + np.array([first, 0]))
        own = gloo.tolist()
        inputs = decode_arguments(rows.texts(own), GlooArguments)
        names = self._builder.names
        self.host_collectives += [(first + i, a, names[name[i]]) for i, a in zip(own, inputs, strict=True)]
        self._communication(rows, first)
        asked = np.flatnonzero(rows.route != Category.OP) if not block.shaped else np.arange(len(rows))
        shapes = rows.shapes(asked[self._is_shaped(name[asked]) != 0])
        inputs_of = {"dims": shapes.dims, "types": shapes.types, "concrete": shapes.concrete}
        if len(shapes.strides):
            inputs_of["strides"] = shapes.strides
        self.shaped |= len(shapes.rows) > 0
        self._builder.add("shapes", len(shapes.rows), {"event": shapes.rows + first, **inputs_of})

    def _communication(self, rows: Rows, first: int) -> None:
        code = self._builder.names.find(RANGE)
        if code == NO_NAME:
            return
        own = np.flatnonzero((rows.columns["name"] == code) & (rows.route == Category.OP)).tolist()
        told = decode_arguments(rows.texts(own), CommunicationArguments)
        self.communication += [(first + i, arguments) for i, arguments in zip(own, told, strict=True)]

    def _sync(self, rows: Rows) -> None:
        texts = rows.texts(range(len(rows)))
        decoded = device_columns(texts)
        columns = {key: rows.columns[key] for key in ("start", "end", "name")}
        columns |= {key: decoded[key] for key in ("device", "stream", "correlation")}
        waits = decode_arguments(texts, SyncArguments)
        for name in ("awaited_stream", "record"):
            found = np.array([integer(getattr(one, name)) for one in waits], np.int64)
            columns[name] = np.where(found < 0, NA, found)
        self._append("syncs", len(rows), columns)

    def _name_thread(self, event: Metadata) -> None:
        if _is_device_process(event):
            self.drawn_devices.add(event.pid)
        if event.name == "thread_name" and event.args and isinstance(event.pid, int) and isinstance(event.tid, int):
            self._builder.name_thread(event.pid, event.tid, str(event.args.get("name", "")))


_ACCELERATOR = when_used.pattern(r"(MTIA|HPU|XPU|NPU|GPU|TPU) ?\d*\b")
"""How Kineto names and labels the processes that are devices (`output_json.cpp`)."""


def _is_device_process(event: Metadata) -> bool:
    """Whether the name or the label of a process says that it stands for a device."""
    told = (event.args or {}).get("labels" if event.name == "process_labels" else "name")
    return event.name in ("process_labels", "process_name") and _ACCELERATOR.match(str(told)) is not None


def _kernel_kind(name: str) -> Kind:
    return Kind.COMMUNICATION if kinds.is_communication_kernel(name) else Kind.COMPUTE


def _copy_kind(name: str) -> str:
    for direction in _DIRECTIONS:
        if direction in name:
            return direction + (" pageable" if "Pageable" in name else "")
    return UNDIRECTED
