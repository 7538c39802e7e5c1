"""What torch.profiler's CUPTI back end writes in a Perfetto trace, as blocks of the same rows as its JSON gives.

Encoder: pytorch `torch/csrc/profiler/cuspy/cuspy_pftrace.cpp` (2.15). Host slices are track events, device work is
render stages, counters are GPU counter events.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from gpuscope.sources.kineto.event_block import CATEGORIES, Block, Rows, Shapes, Work, shapes_of
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.graph_nodes import dependencies
from gpuscope.sources.kineto.launched_collectives import RANGE
from gpuscope.sources.perfetto.annotation_values import arguments, as_json, collective_arguments, number_in, text
from gpuscope.sources.perfetto.perfetto_messages import BEGIN, BOOTTIME, END, REALTIME, STATE_CLEARED, TracePacket
from gpuscope.sources.perfetto.sequence_state import Interned, Tracks, counter_names
from gpuscope.sources.perfetto.slices import Slice, SliceGroup
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.naming.kinds import is_communication_kernel
from gpuscope.trace.naming.shaped_operators import is_shaped
from gpuscope.trace.schema import NA, Category

LIMIT_NS = 2**62
STAGES: dict[bytes, Work] = {b"Kernel": Work.KERNEL, b"Memcpy": Work.COPY, b"Memset": Work.SET}
HELPERS = {b"EventRecord": 0, b"HostNode": 1}
"""Nodes of graphs that are no work on the device, and whether they take time on the host."""
NO_WORK = frozenset({b"Annotation", *HELPERS})
"""Those, and host ranges repeated on the device's clock."""
WHOLE_WORLD = "default_pg"
"""Description of the process group of all ranks (`torch.distributed.distributed_c10d`)."""
_ROWS_IN_A_BLOCK = 50_000
_LANE = re.compile(rb"stream (-?\d+)")
_STRUCTURE = frozenset({"clock_snapshot", "track_descriptor", "interned_data", "trace_packet_defaults", "trace_config",
                        "system_info", "trace_stats", "track_event", "gpu_render_stage_event",
                        "gpu_counter_event"})  # fmt: skip
_ABOUT_THE_PACKET = frozenset({"timestamp", "timestamp_clock_id", "sequence", "sequence_flags",
                               "incremental_state_cleared", "previous_packet_dropped"})  # fmt: skip


class TorchPackets:
    """Sorts packets into columns; what they hold besides is counted."""

    def __init__(self, builder: TraceBuilder, columns: EventColumns) -> None:
        self.undecodable = 0
        """Packets that are no valid message, and slices and stages that name what was never given."""
        self.unpaired = 0
        self.invalid_utf8 = 0
        self.dropped = 0
        """Packets and chunks that the recorder says it lost."""
        self.events = 0
        self.other: Counter[str] = Counter()
        """Packets of kinds that torch.profiler does not write."""
        self.work = 0
        """Rows that torch.profiler's categories and stages gave."""
        self.world: dict[str, int] = {}
        """`rank` and `world_size`, where a collective over all ranks says them."""
        self._builder, self._columns = builder, columns
        self._interned: defaultdict[int, Interned] = defaultdict(Interned)
        self._tracks = Tracks()
        self._group = SliceGroup()
        self._stages: list[tuple[Work, int, int, int, dict[bytes, bytes], int, int]] = []
        self._rows: dict[int, int] = {}
        """Row in device_events, or -1 - place among the helpers, by the event's id."""
        self._helpers: list[int] = []
        """ns of the nodes that are no work."""
        self._after: list[tuple[int, int]] = []
        """(event waited for, event that waited), by their ids."""
        self._shift: int | None = None
        self._wanted: dict[int, bool] = {}

    def take(self, data: bytes) -> None:
        """Take in one packet."""
        try:
            packet = TracePacket.FromString(data)
        except DecodeError:
            self.undecodable += 1
            return
        self.dropped += packet.previous_packet_dropped
        if packet.sequence_flags & STATE_CLEARED or packet.incremental_state_cleared:
            self._interned.pop(packet.sequence, None)
        if packet.HasField("track_event"):
            self._track_event(packet)
        elif packet.HasField("gpu_render_stage_event"):
            self._stage(packet)
        elif packet.HasField("gpu_counter_event"):
            self._counters(packet)
        else:
            self._structure(packet)

    def finish(self, cut_off: bool) -> None:
        """Hand over what is left; `cut_off` where the file ends early."""
        self._close_group(cut_off)
        self._flush_stages()
        rows = self._rows
        edges = [(rows[one], rows[other]) for one, other in self._after if one in rows and other in rows]
        spent = {-1 - place: ns for place, ns in enumerate(self._helpers)}
        self._columns.dependencies += dependencies(edges, spent)
        for (pid, tid), name in self._tracks.names.items():
            self._builder.name_thread(pid, tid, name)

    def _structure(self, packet: Any) -> None:
        """What is no event."""
        if packet.HasField("interned_data"):
            self.invalid_utf8 += self._interned[packet.sequence].take(packet.interned_data, self._builder.names)
        if packet.HasField("track_descriptor"):
            self._tracks.take(packet.track_descriptor)
        if packet.HasField("clock_snapshot") and self._shift is None:
            clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
            if REALTIME in clocks and BOOTTIME in clocks:
                self._shift = clocks[REALTIME] - clocks[BOOTTIME]
        for stats in packet.trace_stats.buffer_stats:
            self.dropped += stats.chunks_overwritten + stats.chunks_discarded + stats.trace_writer_packet_loss
        for field, _ in packet.ListFields():
            if field.name not in _STRUCTURE and field.name not in _ABOUT_THE_PACKET:
                self.other[field.name] += 1

    def _time(self, packet: Any) -> int:
        """Time of a packet, ns since the epoch; `NA` where it is beyond any clock."""
        time = int(packet.timestamp) + (self._shift or 0)
        return time if 0 < time < LIMIT_NS else NA

    def _track_event(self, packet: Any) -> None:
        event, interned = packet.track_event, self._interned[packet.sequence]
        self.events += 1
        time = self._time(packet)
        if event.type == END:
            self._group.end(time, event.track_uuid)
            return
        if event.type != BEGIN:
            self.other["instants and counters of tracks"] += 1
            return
        if self._group.is_ending:
            self._close_group()
        name = interned.names.get(event.name_iid)
        if name is None:
            name = self._builder.names.code(text(event.name))
            self.undecodable += event.name_iid != 0
        self._group.begin(self._slice(event, time, name, _category(event, interned.categories)))

    def _slice(self, event: Any, time: int, name: int, category: str) -> Slice:
        """A slice that begins, with what of its arguments is used."""
        number, wanted = NA, self._is_wanted(name)
        if not category:  # the encoder gives neither of these one
            is_sync = any(one.name == b"cuda_sync_kind" for one in event.debug_annotations)
            category = "cuda_sync" if is_sync else "overhead" if self._tracks.is_overhead(event.track_uuid) else ""
            wanted = is_sync
        elif CATEGORIES.get(category) == Category.RUNTIME:
            number = _annotated(event, b"correlation")
        elif category == "cpu_op":
            number = _annotated(event, b"External id")
        told = as_json(arguments(event.debug_annotations)) if wanted else None
        return Slice(time, event.track_uuid, name, category, told, number)

    def _is_wanted(self, code: int) -> bool:
        """Whether arguments of slices of that name are used."""
        wanted = self._wanted.get(code)
        if wanted is None:
            name = self._builder.names[code]
            wanted = self._wanted[code] = bool(is_shaped(name)) or name.startswith("gloo:") or name == RANGE
        return wanted

    def _close_group(self, cut_off: bool = False) -> None:
        slices, unpaired = self._group.paired(cut_off)
        self.unpaired += unpaired
        block = Block(other=Counter[str]())
        routed: dict[bool, list[tuple[int, Slice]]] = {True: [], False: []}
        other: Counter[str] = Counter()
        for one in slices:
            route = CATEGORIES.get(one.category.lower(), Work.OTHER)
            if one.start == NA or one.end == NA:
                block.bad_times += 1
            elif route == Work.OTHER or Work.KERNEL <= route < Work.SYNC:
                other[one.category.lower()] += 1
            else:
                routed[route == Work.SYNC].append((int(route), one))
        block.other = other
        block.sync = _sync_rows(routed[True])
        block.host = self._host_rows(routed[False])
        if block.host is not None:
            ids = [one.number for route, one in routed[False] if route == Category.OP]
            block.operator_ids = np.array([number for number in ids if number != NA], np.int64)
        self.work += len(routed[True]) + len(routed[False])
        self._columns.take(block)

    def _host_rows(self, slices: Sequence[tuple[int, Slice]]) -> Rows | None:
        if not slices:
            return None
        texts = [msgspec.Raw(b"{}") if one.told is None else one.told for _, one in slices]
        for (_, one), told in zip(slices, texts, strict=True):
            if one.told is not None and self._builder.names[one.name] == RANGE:
                self._learn_world(msgspec.json.decode(told))
        threads, tracks = self._columns.threads, self._tracks

        def shapes(rows: Sequence[int]) -> Shapes:
            return shapes_of(rows, [texts[row] for row in rows], self._columns.texts)

        columns = _times([one for _, one in slices])
        columns["correlation"] = np.array(
            [one.number if route == Category.RUNTIME else NA for route, one in slices], np.int64
        )
        columns["thread"] = np.array([threads[tracks.thread(one.track)] for _, one in slices], np.int64)
        route = np.array([number for number, _ in slices], np.int8)
        return Rows(route, columns, lambda rows: [texts[row] for row in rows], shapes)

    def _learn_world(self, told: dict[str, Any]) -> None:
        size, rank = told.get("Group size"), told.get("Rank")
        if told.get("Process Group Description") == WHOLE_WORLD and isinstance(size, int) and 0 < size < LIMIT_NS:
            self.world.setdefault("world_size", size)
            if isinstance(rank, int) and 0 <= rank < size:
                self.world.setdefault("rank", rank)

    def _stage(self, packet: Any) -> None:
        event, interned = packet.gpu_render_stage_event, self._interned[packet.sequence]
        self.events += 1
        stage = interned.specifications.get(event.stage_iid)
        self._after += [(waited_for, event.event_id) for waited_for in event.event_wait_ids]
        if stage in NO_WORK:
            if stage in HELPERS and event.duration < LIMIT_NS:
                self._rows[event.event_id] = -1 - len(self._helpers)
                self._helpers.append(event.duration * HELPERS[stage])
            return
        work = STAGES.get(stage or b"")
        if work is None or stage is None:
            self.other["render stages of other programs" if stage else "render stages without a name"] += 1
            self.undecodable += stage is None
            return
        name = interned.names.get(event.name_iid)
        if name is None:
            self.undecodable += event.name_iid != 0
            name = self._builder.names.code(text(stage))
        start = self._time(packet)
        end = start + event.duration if start != NA and event.duration < LIMIT_NS else NA
        extra = {one.name: one.value for one in event.extra_data}
        if b"stream id" not in extra and (lane := _LANE.search(interned.specifications.get(event.hw_queue_iid, b""))):
            extra[b"stream id"] = lane[1]
        self._stages.append((work, start, end, name, extra, event.gpu_id, event.event_id))
        if len(self._stages) >= _ROWS_IN_A_BLOCK:
            self._flush_stages()

    def _flush_stages(self) -> None:
        stages, self._stages = self._stages, []
        good = [one for one in stages if one[1] != NA and one[2] != NA]
        block = Block(bad_times=len(stages) - len(good))
        self.work += len(good)
        if good:
            first = self._columns.device_rows
            self._rows.update((one[6], first + place) for place, one in enumerate(good) if one[6])
            extras = [one[4] for one in good]
            columns = {name: np.array([one[place] for one in good], kind)
                       for place, (name, kind) in enumerate(_TIMES.items(), 1)}  # fmt: skip
            columns |= {name: np.array([_number(extra, key) for extra in extras], np.int64)
                        for name, key in _NUMBERS.items()}  # fmt: skip
            columns["device"] = np.where(columns["device"] == NA, np.array([one[5] for one in good]), columns["device"])
            codes = set(columns["name"].tolist())
            communicating = {code for code in codes if is_communication_kernel(self._builder.names[code])}
            for one in good:
                if one[3] in communicating:
                    self._learn_world(collective_arguments(one[4]))

            def texts(rows: Sequence[int]) -> list[Any]:
                return [as_json(collective_arguments(extras[row])) for row in rows]

            route = np.array([one[0] for one in good], np.int8)
            block.device = Rows(route, columns, texts, lambda rows: Shapes())  # noqa: ARG005
        self._columns.take(block)

    def _counters(self, packet: Any) -> None:
        event, interned = packet.gpu_counter_event, self._interned[packet.sequence]
        self.events += 1
        if event.HasField("counter_descriptor"):
            gpu, names = event.gpu_id, counter_names(event.counter_descriptor)
        else:
            gpu, names = interned.counters.get(event.counter_descriptor_iid, (0, {}))
        time = self._time(packet)
        for one in event.counters:
            name = names.get(one.counter_id)
            if name is None:
                self._columns.counters.unreadable += 1
                continue
            value = one.int_value if one.HasField("int_value") else one.double_value
            self._columns.counters.add(gpu, name, time, value)


_TIMES = {"start": np.int64, "end": np.int64, "name": np.int32}
_NUMBERS = {"correlation": b"correlation", "stream": b"stream id", "device": b"device id", "bytes": b"bytes",
            "graph": b"graph id"}  # fmt: skip


def _category(event: Any, interned: Mapping[int, str]) -> str:
    """The first category of a slice; empty where it has none."""
    if event.category_iids:
        return interned.get(event.category_iids[0], "")
    return text(event.categories[0]) if event.categories else ""


def _number(extra: dict[bytes, bytes], key: bytes) -> int:
    value = extra.get(key)
    number = None if value is None else number_in(value)
    return NA if number is None else number


def _annotated(event: Any, name: bytes) -> int:
    """The integer of an annotation, `NA` where there is none."""
    for one in event.debug_annotations:
        if one.name == name:
            value = int(one.uint_value if one.HasField("uint_value") else one.int_value)
            return value if abs(value) < LIMIT_NS else NA
    return NA


def _times(slices: Sequence[Slice]) -> dict[str, Any]:
    return {
        "start": np.array([one.start for one in slices], np.int64),
        "end": np.array([one.end for one in slices], np.int64),
        "name": np.array([one.name for one in slices], np.int32),
    }


def _sync_rows(slices: Sequence[tuple[int, Slice]]) -> Rows | None:
    if not slices:
        return None
    texts = [one.told or msgspec.Raw(b"{}") for _, one in slices]
    route = np.full(len(slices), Work.SYNC, np.int8)
    columns = _times([one for _, one in slices])
    return Rows(route, columns, lambda rows: [texts[row] for row in rows], lambda rows: Shapes())  # noqa: ARG005
