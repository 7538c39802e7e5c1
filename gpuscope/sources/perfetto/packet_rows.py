"""Packets of a block of a Perfetto trace, as rows of whole numbers.

The native core fills the rows of events as torch.profiler writes them; any other packet, and without the core every
one, is parsed by the protobuf runtime. Both give the same rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclasses_field
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError
from numpy import typing as npt

from gpuscope import native
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.perfetto.packets import LARGEST, whole
from gpuscope.sources.protobuf_messages import message_classes
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import Codes, NamePool
from gpuscope.trace.schema import NA

# The messages of a Perfetto trace that torch.profiler writes, as classes of the protobuf runtime.
#
# Names and numbers as in google/perfetto `protos/perfetto/trace/**`; a field that is not listed is skipped when a
# message
# is parsed. Text is declared as bytes, so that names that are not UTF-8 can be counted and shown.

_MESSAGES: dict[str, str] = {
    # Fields that only other recorders write are declared to tell what is in their traces.
    "TracePacket": """timestamp:8:uint64 timestamp_clock_id:58:uint32 sequence:10:uint32 sequence_flags:13:uint32
        incremental_state_cleared:41:bool previous_packet_dropped:42:bool clock_snapshot:6:ClockSnapshot
        track_event:11:TrackEvent interned_data:12:InternedData gpu_counter_event:52:GpuCounterEvent
        gpu_render_stage_event:53:GpuRenderStageEvent track_descriptor:60:TrackDescriptor trace_stats:35:TraceStats
        ftrace_events:1:bytes process_tree:2:bytes chrome_events:5:bytes sys_stats:7:bytes process_stats:9:bytes
        trace_config:33:bytes profile_packet:37:bytes power_rails:38:bytes android_log:39:bytes system_info:45:bytes
        compressed_packets:50:bytes heap_graph:56:bytes perf_sample:66:bytes cpu_info:67:bytes vulkan_api_event:65:bytes
        trace_packet_defaults:59:bytes""",
    "ClockSnapshot": "clocks:1:Clock*",
    "Clock": "clock_id:1:uint32 timestamp:2:uint64",
    "TrackDescriptor": """uuid:1:uint64 name:2:bytes process:3:ProcessDescriptor thread:4:ThreadDescriptor
        parent_uuid:5:uint64""",
    "ProcessDescriptor": "pid:1:int32 process_name:6:bytes",
    "ThreadDescriptor": "pid:1:int32 tid:2:int64 thread_name:5:bytes",
    "TrackEvent": """type:9:int32 track_uuid:11:uint64 name_iid:10:uint64 name:23:bytes category_iids:3:uint64*
        categories:22:bytes* debug_annotations:4:DebugAnnotation* flow_ids:47:fixed64* terminating_flow_ids:48:fixed64*
        gpu_correlation:3000:GpuCorrelation""",
    "GpuCorrelation": "submitted_event_ids:1:uint64*",
    "DebugAnnotation": """name:10:bytes bool_value:2:bool uint_value:3:uint64 int_value:4:int64 double_value:5:double
        string_value:6:bytes dict_entries:11:DebugAnnotation* array_values:12:DebugAnnotation*""",
    "InternedData": """event_categories:1:Interned* event_names:2:Interned* gpu_specifications:24:Specification*
        gpu_counter_descriptors:47:CounterDescriptor*""",
    "Interned": "iid:1:uint64 name:2:bytes",
    "Specification": "iid:1:uint64 name:2:bytes description:3:bytes category:4:int32",
    "CounterDescriptor": "iid:1:uint64 descriptor:2:GpuCounterDescriptor gpu_id:3:int32",
    "GpuCounterDescriptor": "specs:1:CounterSpec*",
    "CounterSpec": "counter_id:1:uint32 name:2:bytes",
    "GpuCounterEvent": """counter_descriptor:1:GpuCounterDescriptor counters:2:CounterValue* gpu_id:3:int32
        counter_descriptor_iid:4:uint64""",
    "CounterValue": "counter_id:1:uint32 int_value:2:int64 double_value:3:double",
    "GpuRenderStageEvent": """event_id:1:uint64 duration:2:uint64 extra_data:6:ExtraData* gpu_id:11:int32
        hw_queue_iid:13:uint64 stage_iid:14:uint64 event_wait_ids:18:uint64* name_iid:20:uint64""",
    "ExtraData": "name:1:bytes value:2:bytes",
    "TraceStats": "buffer_stats:1:BufferStats*",
    "BufferStats": "chunks_overwritten:3:uint64 chunks_discarded:18:uint64 trace_writer_packet_loss:19:uint64",
}

_CLASSES = message_classes("gpuscope.perfetto", _MESSAGES)
TracePacket: Any = _CLASSES["TracePacket"]
DebugAnnotation: Any = _CLASSES["DebugAnnotation"]
BEGIN, END = 1, 2
"""`TrackEvent.Type`."""
STATE_CLEARED, NEEDS_STATE = 1, 2
"""`TracePacket.SequenceFlags`."""
REALTIME, BOOTTIME = 1, 6
"""`BuiltinClock`."""


Integers = npt.NDArray[np.int64]
Wait = tuple[int, int]
"""Event waited for and event that waited, by their ids."""

LIMIT = 1 << 62
"""Times, durations and numbers of arguments from here on are none."""

# Columns: of every packet, of slices, of render stages (gpuscope/native/packet_scan.h). What is unsigned stands there
# as the int64 of the same bits; spans are offset << 32 | length, 0 where there is nothing.
KIND, AT, SIZE, SEQUENCE, FLAGS, TIME, NAME, CORRELATION = range(8)
TRACK, CATEGORY, EXTERNAL, DIMS, TYPES, CONCRETE, STRIDES = range(8, 15)
EVENT, STAGE, STREAM, DEVICE, BYTES, GRAPH, DURATION, GPU, QUEUE = range(8, 17)
COLUMNS = 17

CLEARED, DROPPED, SYNC, BY_MESSAGE = 1, 2, 4, 8
"""Flags: names of the sequence are void; packets before it were lost; a slice with `cuda_sync_kind`; name, category and
recorded inputs have to be taken from the message."""


class PacketKind(IntEnum):
    """What a packet holds."""

    UNUSUAL = 0
    BEGIN = BEGIN
    END = END
    STAGE = 3
    OTHER_EVENT = 4
    """Instants and counters of tracks."""
    COUNTERS = 5
    STRUCTURE = 6
    UNDECODABLE = 7


class PacketRows:
    """The whole packets at the beginning of a text."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._messages: dict[int, Any] = {}
        if native.COMPILED:
            end, rows, waits = native.core.packets(text, LARGEST)
            self.end = int(end)
            self.rows: Integers = np.frombuffer(rows, np.int64).reshape(-1, COLUMNS)
            """Shape (packets, COLUMNS)."""
        else:
            bounds = list(whole(text))
            self.end, waits = bounds[-1][1] if bounds else 0, b""
            self.rows = np.zeros((len(bounds), COLUMNS), np.int64)
            self.rows[:, (CORRELATION, EXTERNAL)] = NA
            self.rows[:, (AT, SIZE)] = [(start, end - start) for start, end in bounds] or np.empty((0, 2))
        unusual = np.flatnonzero(self.rows[:, KIND] == PacketKind.UNUSUAL)
        found, more = self.rows[unusual].tolist(), list[Wait]()
        for row, own in zip(unusual.tolist(), found, strict=True):
            try:
                packet = self._messages[row] = TracePacket.FromString(text[own[AT] : own[AT] + own[SIZE]])
            except DecodeError:
                own[KIND] = PacketKind.UNDECODABLE
            else:
                more += _fill(own, packet)
        self.rows[unusual] = found or np.empty((0, COLUMNS))
        self.waits: Integers = np.concatenate([np.frombuffer(waits, np.int64).reshape(-1, 2), _pairs(more)])
        """Event waited for and event that waited, by their ids; shape (n, 2)."""

    def message(self, row: int) -> Any:
        """The message of a row, with every field."""
        message = self._messages.get(row)
        if message is None:
            at, size = self.rows[row, [AT, SIZE]].tolist()
            message = self._messages[row] = TracePacket.FromString(self.text[at : at + size])
        return message


def _pairs(waits: list[Wait]) -> Integers:
    return np.array(waits, np.int64).reshape(-1, 2)


def _fill(own: list[int], packet: Any) -> list[Wait]:
    """Fill a row from its message; returns what its event waited for."""
    cleared = packet.sequence_flags & STATE_CLEARED or packet.incremental_state_cleared
    own[FLAGS] = BY_MESSAGE | CLEARED * bool(cleared) | DROPPED * packet.previous_packet_dropped
    own[SEQUENCE] = packet.sequence
    own[TIME] = below_limit(packet.timestamp)
    if packet.HasField("track_event"):
        _read_slice(own, packet.track_event)
    elif packet.HasField("gpu_render_stage_event"):
        _read_stage(own, packet.gpu_render_stage_event)
        event = signed(packet.gpu_render_stage_event.event_id)
        return [(signed(one), event) for one in packet.gpu_render_stage_event.event_wait_ids]
    else:
        own[KIND] = PacketKind.COUNTERS if packet.HasField("gpu_counter_event") else PacketKind.STRUCTURE
    return []


def _read_slice(row: list[int], event: Any) -> None:
    row[KIND] = event.type if event.type in (BEGIN, END) else PacketKind.OTHER_EVENT
    row[TRACK], row[NAME] = signed(event.track_uuid), signed(event.name_iid)
    row[CATEGORY] = signed(event.category_iids[0]) if event.category_iids else 0
    named = {one.name: one for one in reversed(event.debug_annotations)}
    for column, key in _ANNOTATED.items():
        if key in named:
            value = int(named[key].uint_value if named[key].HasField("uint_value") else named[key].int_value)
            row[column] = value if abs(value) < LIMIT else NA
    if b"cuda_sync_kind" in named:
        row[FLAGS] |= SYNC


_ANNOTATED = {CORRELATION: b"correlation", EXTERNAL: b"External id"}


def _read_stage(row: list[int], event: Any) -> None:
    row[KIND] = PacketKind.STAGE
    row[EVENT], row[STAGE], row[NAME], row[QUEUE] = (
        signed(one) for one in (event.event_id, event.stage_iid, event.name_iid, event.hw_queue_iid)
    )
    row[DURATION], row[GPU] = below_limit(event.duration), event.gpu_id
    extra = {one.name: one.value for one in event.extra_data}
    keys = {
        CORRELATION: b"correlation",
        STREAM: b"stream id",
        DEVICE: b"device id",
        BYTES: b"bytes",
        GRAPH: b"graph id",
    }
    for column, key in keys.items():
        row[column] = number_in(extra.get(key, b""))


_DIGITS = 18


def number_in(value: bytes) -> int:
    """A whole number written in digits; `NA` for anything else."""
    digits = value[1:] if value[:1] == b"-" else value
    return int(value) if digits.isdigit() and len(digits) <= _DIGITS else NA


def below_limit(time: int) -> int:
    """A time, or `NA` where it is beyond any clock."""
    return time if time < LIMIT else NA


def signed(number: int) -> int:
    """The int64 with the bits of a uint64."""
    return number - (1 << 64) if number >= 1 << 63 else number


# Debug annotations and extra data of Perfetto events as the arguments that torch.profiler's JSON has.

_NUMBERS = frozenset({"In msg nelems", "Out msg nelems", "Group size", "Seq", "Src Rank", "Dst Rank", "Rank"})
"""Arguments of a collective that are numbers; extra data of a render stage are always text."""


def arguments(annotations: Iterable[Any]) -> dict[str, Any]:
    """The annotations of a track event by name."""
    return {text(one.name): value_of(one) for one in annotations}


def value_of(annotation: Any) -> Any:
    """What an annotation holds; an empty list, where it holds nothing: the encoder writes empty lists so."""
    for field, value in annotation.ListFields():
        kind = field.name
        if kind == "string_value":
            return text(value)
        if kind in ("int_value", "uint_value", "double_value", "bool_value"):
            return value
        if kind == "array_values":
            return [value_of(one) for one in value]
        if kind == "dict_entries":
            return arguments(value)
    return []


def collective_arguments(extra: dict[bytes, bytes]) -> dict[str, Any]:
    """Extra data of a render stage, with the numbers of a collective as numbers."""
    found: dict[str, Any] = {}
    for key, value in extra.items():
        name, told = text(key), text(value)
        number = number_in(value) if name in _NUMBERS else NA
        found[name] = told if number == NA else number
    return found


def as_json(found: dict[str, Any]) -> msgspec.Raw:
    """Arguments as JSON text, as the readers of torch.profiler's JSON take them."""
    return msgspec.Raw(msgspec.json.encode(found))


def text(value: bytes) -> str:
    """UTF-8, with � for what is not."""
    return value.decode("utf-8", "replace")


# What packets of a sequence refer to by number: interned names, and the tracks that slices are drawn on.

_MASKED = 0x7FFFFFFF
"""The encoder masks negative ids with it: −1."""
OVERHEAD = b"Overhead"


@dataclass
class Interned:
    """The names of one sequence, until it says that they are void."""

    names: dict[int, int] = dataclasses_field(default_factory=dict)
    """Event names: number → code in the pool."""
    categories: dict[int, str] = dataclasses_field(default_factory=dict)
    specifications: dict[int, bytes] = dataclasses_field(default_factory=dict)
    """Render stages and hardware queues."""
    counters: dict[int, tuple[int, dict[int, str]]] = dataclasses_field(default_factory=dict)
    """Descriptors: (GPU, counters by number)."""

    def take(self, data: Any, pool: NamePool) -> int:
        """Take in interned data; returns how many names are not UTF-8."""
        bad = 0
        for one in data.event_names:
            name = text(one.name)
            bad += "\ufffd" in name
            self.names[one.iid] = pool.code(name)
        for one in data.event_categories:
            self.categories[one.iid] = text(one.name)
        for one in data.gpu_specifications:
            self.specifications[one.iid] = one.name
        for one in data.gpu_counter_descriptors:
            self.counters[one.iid] = (one.gpu_id, counter_names(one.descriptor))
        return bad


def counter_names(descriptor: Any) -> dict[int, str]:
    """Names of counters by number."""
    return {spec.counter_id: text(spec.name) for spec in descriptor.specs}


@dataclass
class Tracks:
    """Threads by the uuid of their track."""

    threads: dict[int, tuple[int | None, int | None]] = dataclasses_field(default_factory=dict)
    names: dict[tuple[int, int], str] = dataclasses_field(default_factory=dict)
    overhead: set[int] = dataclasses_field(default_factory=set)
    """Tracks of the profiler's own work."""

    def take(self, track: Any) -> None:
        """Take in a track descriptor."""
        if track.HasField("thread"):
            pid, tid = _signed(track.thread.pid), _signed(track.thread.tid)
            self.threads[track.uuid] = pid, tid
            if track.thread.thread_name:
                self.names[pid, tid] = text(track.thread.thread_name)
            if track.parent_uuid in self.overhead:
                self.overhead.add(track.uuid)
        elif track.HasField("process"):
            self.threads[track.uuid] = _signed(track.process.pid), 0
            if track.process.process_name == OVERHEAD:
                self.overhead.add(track.uuid)
        else:
            self.threads[track.uuid] = None, track.uuid % _MASKED

    def thread(self, uuid: int) -> tuple[int | None, int | None]:
        """(pid, tid) of a track; of one that was never described its own number stands for the thread."""
        return self.threads.get(uuid, (None, uuid % _MASKED))


def _signed(number: int) -> int:
    return -1 if number == _MASKED else number


# What is known while a Perfetto trace is read, packet after packet.

MISSING = -1
WHOLE_WORLD = "default_pg"
"""Description of the process group of all ranks (`torch.distributed.distributed_c10d`)."""


@dataclass
class Reading:
    """The state of the recorder as its packets give it, and what is counted on the way."""

    builder: TraceBuilder
    columns: EventColumns
    interned: defaultdict[int, Interned] = dataclasses_field(default_factory=lambda: defaultdict(Interned))
    """Names by the number of their sequence."""
    tracks: Tracks = dataclasses_field(default_factory=Tracks)
    shift: int | None = None
    """ns from the trace's clock to the time of day."""
    undecodable: int = 0
    """Packets that are no valid message, and slices and stages that name what was never given."""
    other: Counter[str] = dataclasses_field(default_factory=Counter)
    """Packets of kinds that torch.profiler does not write."""
    work: int = 0
    """Rows that torch.profiler's categories and stages gave."""
    world: dict[str, int] = dataclasses_field(default_factory=dict)
    """`rank` and `world_size`, where a collective over all ranks says them."""

    def times(self, packets: PacketRows, rows: Integers) -> Integers:
        """When each packet's event began or ended, ns since the epoch; `NA` where that is beyond any clock."""
        recorded, shift = packets.rows[rows, TIME], self.shift or 0
        if abs(shift) >= LIMIT:
            return np.full(len(recorded), NA, np.int64)
        times = np.where(recorded == NA, 0, recorded) + shift
        return np.where((recorded == NA) | (times <= 0) | (times >= LIMIT), NA, times)

    def looked_up(
        self, packets: PacketRows, rows: Integers, column: int, table: Callable[[Interned], Mapping[int, int]]
    ) -> npt.NDArray[np.int32]:
        """What the numbers in a column stand for in their sequence's table; `MISSING` where that has none."""
        found = np.empty(len(rows), np.int32)
        sequences = packets.rows[rows, SEQUENCE]
        for sequence in np.unique(sequences).tolist():
            own = np.flatnonzero(sequences == sequence)
            known = table(self.interned[sequence])
            numbers, places = np.unique(packets.rows[rows[own], column].view(np.uint64), return_inverse=True)
            found[own] = np.array([known.get(number, MISSING) for number in numbers.tolist()], np.int32)[places]
        return found

    def names(self, packets: PacketRows, rows: Integers, otherwise: Callable[[int], str]) -> Codes:
        """The code of each name; `otherwise` gives that of a row whose number names nothing."""
        found = self.looked_up(packets, rows, NAME, lambda interned: interned.names)
        missing = np.flatnonzero(found == MISSING)
        self.undecodable += int(np.count_nonzero(packets.rows[rows[missing], NAME]))
        for place in missing.tolist():
            found[place] = self.builder.names.code(otherwise(int(rows[place])))
        return found

    def learn_world(self, told: Mapping[str, Any]) -> None:
        """Take rank and size of the job from the arguments of a collective over all ranks."""
        size, rank = told.get("Group size"), told.get("Rank")
        if told.get("Process Group Description") == WHOLE_WORLD and isinstance(size, int) and 0 < size < LIMIT:
            self.world.setdefault("world_size", size)
            if isinstance(rank, int) and 0 <= rank < size:
                self.world.setdefault("rank", rank)
