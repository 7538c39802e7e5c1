"""What torch.profiler's CUPTI back end writes in a Perfetto trace, as blocks of the same rows as its JSON gives.

Encoder: pytorch `torch/csrc/profiler/cuspy/cuspy_pftrace.cpp` (2.15). Host slices are track events, device work is
render stages, counters are GPU counter events.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from gpuscope import when_used
from gpuscope.sources.kineto.event_block import Block, Rows, Shapes, Work
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.graph_nodes import dependencies
from gpuscope.sources.perfetto.host_slices import HostSlices
from gpuscope.sources.perfetto.packet_rows import (
    BOOTTIME,
    BYTES,
    CLEARED,
    CORRELATION,
    DEVICE,
    DROPPED,
    DURATION,
    EVENT,
    FLAGS,
    GPU,
    GRAPH,
    KIND,
    MISSING,
    QUEUE,
    REALTIME,
    SEQUENCE,
    STAGE,
    STREAM,
    Integers,
    Interned,
    PacketKind,
    PacketRows,
    Reading,
    as_json,
    collective_arguments,
    counter_names,
)
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.kinds import is_communication_kernel
from gpuscope.trace.name_pool import Codes, PerName
from gpuscope.trace.schema import NA

# Work on the device: render stages, one packet for each kernel, copy, set and node of a graph.

WORK: dict[bytes, Work] = {b"Kernel": Work.KERNEL, b"Memcpy": Work.COPY, b"Memset": Work.SET}
_EVENT_NODE, _HOST_NODE, _ANNOTATION, _FOREIGN = range(32, 36)
"""What else a stage may be: nodes of graphs that are no work on the device, a host range repeated on its clock, and
another program's."""
_STAGES = {**WORK, b"EventRecord": _EVENT_NODE, b"HostNode": _HOST_NODE, b"Annotation": _ANNOTATION}
_LANE = when_used.pattern(rb"stream (-?\d{1,18})")
_NUMBERS = {"correlation": CORRELATION, "stream": STREAM, "device": DEVICE, "bytes": BYTES, "graph": GRAPH}
_NOTHING = msgspec.Raw(b"{}")


class RenderStages:
    """Sorts render stages into columns, and keeps which waited for which."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._ids: list[tuple[Integers, Integers]] = []
        """Ids of events, and their rows in device_events, or -1 - place among the helpers."""
        self._waits: list[Integers] = []
        self._helpers: list[int] = []
        """ns of the nodes that are no work."""
        self._communicates = PerName(reading.builder.names, is_communication_kernel)

    def take(self, packets: PacketRows, rows: Integers) -> None:
        """Take in the stages at some rows of a block."""
        stage = self._reading.looked_up(packets, rows, STAGE, _stages)
        for helper, on_host in ((_EVENT_NODE, 0), (_HOST_NODE, 1)):
            self._take_helpers(packets, rows[stage == helper], on_host)
        nameless, foreign = int((stage == MISSING).sum()), int((stage == _FOREIGN).sum())
        self._reading.undecodable += nameless
        counted = {"render stages without a name": nameless, "render stages of other programs": foreign}
        self._reading.other.update({what: count for what, count in counted.items() if count})
        is_work = (stage >= Work.KERNEL) & (stage <= Work.SET)
        if is_work.any():
            self._take_work(packets, rows[is_work], stage[is_work])

    def take_waits(self, waits: Integers) -> None:
        """Take in which events waited for which, by their ids; shape (n, 2)."""
        if len(waits):
            self._waits.append(waits)

    def finish(self) -> None:
        """Hand over what the nodes of graphs waited for."""
        if self._waits:
            rows: dict[int, int] = {}
            for ids, places in self._ids:
                rows.update(zip(ids.tolist(), places.tolist(), strict=True))
            edges = [
                (rows[one], rows[other])
                for one, other in np.concatenate(self._waits).tolist()
                if one in rows and other in rows
            ]
            spent = {-1 - place: ns for place, ns in enumerate(self._helpers)}
            self._reading.columns.dependencies += dependencies(edges, spent)

    def _take_helpers(self, packets: PacketRows, rows: Integers, on_host: int) -> None:
        """Nodes that are no work, and whether they take time on the host."""
        rows = rows[packets.rows[rows, DURATION] != NA]
        self._ids.append((packets.rows[rows, EVENT], -1 - len(self._helpers) - np.arange(len(rows))))
        self._helpers += (packets.rows[rows, DURATION] * on_host).tolist()

    def _take_work(self, packets: PacketRows, rows: Integers, work: Codes) -> None:
        reading = self._reading
        start, lasts = reading.times(packets, rows), packets.rows[rows, DURATION]
        good = (start != NA) & (lasts != NA)
        block = Block(bad_times=int(np.count_nonzero(~good)))
        kinds = {int(number): name.decode() for name, number in WORK.items()}
        name = reading.names(packets, rows, lambda row: kinds[int(work[np.searchsorted(rows, row)])])
        name = name[good]
        start, lasts, work, rows = start[good], lasts[good], work[good], rows[good]
        reading.work += len(rows)
        if len(rows):
            ids = packets.rows[rows, EVENT]
            self._ids.append((ids[ids != 0], np.flatnonzero(ids != 0) + reading.columns.device_rows))
            columns = {"start": start, "end": start + lasts, "name": name}
            columns |= {column: packets.rows[rows, place] for column, place in _NUMBERS.items()}
            columns["device"] = np.where(columns["device"] == NA, packets.rows[rows, GPU], columns["device"])
            self._lanes(packets, rows, columns["stream"])
            told = self._texts(packets, rows, work, columns)
            block.device = Rows(work.astype(np.int8), columns, told, lambda rows: Shapes())  # noqa: ARG005
        reading.columns.take(block)

    def _lanes(self, packets: PacketRows, rows: Integers, stream: Integers) -> None:
        """Streams of which the arguments do not tell come from the name of the queue."""
        for place in np.flatnonzero(stream == NA).tolist():
            sequence, queue = packets.rows[rows[place], [SEQUENCE, QUEUE]].tolist()
            lane = _LANE.search(self._reading.interned[sequence].specifications.get(queue, b""))
            stream[place] = int(lane[1]) if lane else NA

    def _texts(self, packets: PacketRows, rows: Integers, work: Codes, columns: dict[str, Any]) -> Any:
        """Gives the arguments of rows as JSON; of a kernel that is neither a collective nor in a graph no one asks for
        any that this format has."""
        communicates = self._communicates(columns["name"]) != 0
        asked = (work != Work.KERNEL) | (columns["graph"] != NA) | communicates

        def arguments(row: int) -> dict[str, Any]:
            extra = packets.message(int(rows[row])).gpu_render_stage_event.extra_data
            return collective_arguments({one.name: one.value for one in extra})

        if len(self._reading.world) < 2:
            for row in np.flatnonzero(communicates).tolist():
                self._reading.learn_world(arguments(row))
        return lambda wanted: [as_json(arguments(row)) if asked[row] else _NOTHING for row in wanted]


def _stages(interned: Interned) -> dict[int, int]:
    return {number: int(_STAGES.get(name, _FOREIGN)) for number, name in interned.specifications.items()}


_STRUCTURE = frozenset(
    {
        "clock_snapshot",
        "track_descriptor",
        "interned_data",
        "trace_packet_defaults",
        "trace_config",
        "system_info",
        "trace_stats",
        "timestamp",
        "timestamp_clock_id",
        "sequence",
        "sequence_flags",
        "incremental_state_cleared",
        "previous_packet_dropped",
    }
)
_NO_EVENT = (PacketKind.STRUCTURE, PacketKind.UNDECODABLE)


class TorchPackets:
    """Sorts packets into columns; what they hold besides is counted."""

    def __init__(self, builder: TraceBuilder, columns: EventColumns) -> None:
        self.invalid_utf8 = 0
        self.dropped = 0
        """Packets and chunks that the recorder says it lost."""
        self.events = 0
        self.reading = Reading(builder, columns)
        self._slices = HostSlices(self.reading)
        self._stages = RenderStages(self.reading)

    @property
    def unpaired(self) -> int:
        """Begins without their end, and ends without their begin."""
        return self._slices.unpaired

    def take(self, text: bytes) -> int:
        """Take in the whole packets at the beginning of a text; returns where they end."""
        packets = PacketRows(text)
        kind, flags = packets.rows[:, KIND], packets.rows[:, FLAGS]
        self._stages.take_waits(packets.waits)
        first = 0
        for row in np.flatnonzero(np.isin(kind, _NO_EVENT) | (flags & (CLEARED | DROPPED) != 0)).tolist():
            self._events(packets, np.arange(first, row))
            self.dropped += bool(flags[row] & DROPPED)
            if flags[row] & CLEARED:
                self.reading.interned.pop(int(packets.rows[row, SEQUENCE]), None)
            self.reading.undecodable += int(kind[row] == PacketKind.UNDECODABLE)
            if kind[row] == PacketKind.STRUCTURE:
                self._structure(packets.message(row))
            first = row + (kind[row] in _NO_EVENT)
        self._events(packets, np.arange(first, len(kind)))
        return packets.end

    def finish(self, cut_off: bool) -> None:
        """Hand over what is left; `cut_off` where the file ends early."""
        self._slices.finish(cut_off)
        self._stages.finish()
        for (pid, tid), name in self.reading.tracks.names.items():
            self.reading.builder.name_thread(pid, tid, name)

    def _events(self, packets: PacketRows, rows: Integers) -> None:
        """Take in packets between which no name changes."""
        self.events += len(rows)
        kind = packets.rows[rows, KIND]
        others = int(np.count_nonzero(kind == PacketKind.OTHER_EVENT))
        self.reading.other.update({"instants and counters of tracks": others} if others else {})
        self._slices.take(packets, rows[(kind == PacketKind.BEGIN) | (kind == PacketKind.END)])
        self._stages.take(packets, rows[kind == PacketKind.STAGE])
        counters = rows[kind == PacketKind.COUNTERS]
        for row, time in zip(counters.tolist(), self.reading.times(packets, counters).tolist(), strict=True):
            self._counters(packets.message(row), time)

    def _structure(self, packet: Any) -> None:
        """What is no event."""
        reading = self.reading
        if packet.HasField("interned_data"):
            self.invalid_utf8 += reading.interned[packet.sequence].take(packet.interned_data, reading.builder.names)
        if packet.HasField("track_descriptor"):
            reading.tracks.take(packet.track_descriptor)
        if packet.HasField("clock_snapshot") and reading.shift is None:
            clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
            if REALTIME in clocks and BOOTTIME in clocks:
                reading.shift = clocks[REALTIME] - clocks[BOOTTIME]
        for stats in packet.trace_stats.buffer_stats:
            self.dropped += stats.chunks_overwritten + stats.chunks_discarded + stats.trace_writer_packet_loss
        for field, _ in packet.ListFields():
            if field.name not in _STRUCTURE:
                reading.other[field.name] += 1

    def _counters(self, packet: Any, time: int) -> None:
        event, interned = packet.gpu_counter_event, self.reading.interned[packet.sequence]
        counters = self.reading.columns.counters
        if event.HasField("counter_descriptor"):
            gpu, names = event.gpu_id, counter_names(event.counter_descriptor)
        else:
            gpu, names = interned.counters.get(event.counter_descriptor_iid, (0, {}))
        for one in event.counters:
            name = names.get(one.counter_id)
            if name is None:
                counters.unreadable += 1
                continue
            counters.add(gpu, name, time, one.int_value if one.HasField("int_value") else one.double_value)
