"""Packets of a block of a Perfetto trace, as rows of whole numbers.

The native core fills the rows of events as torch.profiler writes them; any other packet, and without the core every
one, is parsed by the protobuf runtime. Both give the same rows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from gpuscope import native
from gpuscope.sources.perfetto.packets import LARGEST, whole
from gpuscope.sources.perfetto.perfetto_messages import BEGIN, END, STATE_CLEARED, TracePacket
from gpuscope.trace.schema import NA

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
