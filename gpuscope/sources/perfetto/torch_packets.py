"""What torch.profiler's CUPTI back end writes in a Perfetto trace, as blocks of the same rows as its JSON gives.

Encoder: pytorch `torch/csrc/profiler/cuspy/cuspy_pftrace.cpp` (2.15). Host slices are track events, device work is
render stages, counters are GPU counter events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.perfetto.host_slices import HostSlices
from gpuscope.sources.perfetto.packet_rows import (
    CLEARED,
    DROPPED,
    FLAGS,
    KIND,
    SEQUENCE,
    Integers,
    PacketKind,
    PacketRows,
)
from gpuscope.sources.perfetto.perfetto_messages import BOOTTIME, REALTIME
from gpuscope.sources.perfetto.reading import Reading
from gpuscope.sources.perfetto.render_stages import RenderStages
from gpuscope.sources.perfetto.sequence_state import counter_names
from gpuscope.trace.builder import TraceBuilder

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
