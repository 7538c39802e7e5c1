"""All ranks of a run in Perfetto's own format, on one clock: the same processes, threads, spans and arrows as
`chrome_trace_export` writes, in a fraction of the bytes.

Messages: google/perfetto `protos/perfetto/trace/track_event/**`. Perfetto closes slices by a stack per track, so that
spans of one thread or stream that overlap without nesting stand on further tracks of the same name.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.sources.perfetto.packet_rows import BEGIN, END, NEEDS_STATE, STATE_CLEARED, TracePacket
from gpuscope.sources.perfetto.packets import framed
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Array, Table
from gpuscope.trace.trace import Trace

_SEQUENCE = 1
_LABELS = [*(label.name.lower() for label in Kind), *(label.name.lower() for label in Category)]
_FIRST_OF_HOST = len(Kind)
_THREAD_IDS = 1 << 20
"""Thread ids of streams are below it, those of host threads from it on."""


def write(trace: Trace, path: Path) -> None:
    """Write the trace to `path`, gzipped where its name ends in .gz."""
    with gzip.open(path, "wb", compresslevel=3) if path.suffix == ".gz" else path.open("wb") as file:
        _write(trace, file.write)


def _write(trace: Trace, put: Callable[[bytes], object]) -> None:
    clock = RunFacts(trace, ()).clocks
    device, host = trace["device_events"], trace["host_events"]
    starts = [clock.common(table["rank"], table["start"]) for table in (device, host)]
    base = min((int(start.min()) for start in starts if len(start)), default=0)
    put(framed(_names(trace).SerializeToString()))
    tracks = _Tracks(trace, put)
    arrow = np.flatnonzero((device["launch"] != NA) & (device["device"] != NA))
    arrows: dict[int, list[int]] = {}
    for row in arrow.tolist():
        arrows.setdefault(int(device["launch"][row]), []).append(row + 1)
    launched = {row: [row + 1] for row in arrow.tolist()}
    lanes = _lanes(device, ("rank", "device", "stream"))
    for (rank, ordinal, stream), rows in lanes:
        name = "training thread" if ordinal == NA else f"device {ordinal} stream {stream if stream != NA else '?'}"
        spans = _Spans(device, starts[0] - base, device["kind"], launched)
        tracks.write(rank, 1 + len(tracks.names), name, spans, rows)
    for (rank, thread), rows in _lanes(host, ("rank", "thread")):
        spans = _Spans(host, starts[1] - base, host["category"] + _FIRST_OF_HOST, arrows)
        tracks.write(rank, _THREAD_IDS + thread, _thread_name(trace, thread), spans, rows)


def _names(trace: Trace) -> Any:
    packet = TracePacket(sequence=_SEQUENCE, sequence_flags=STATE_CLEARED)
    for code, name in enumerate(trace.names.names):
        packet.interned_data.event_names.add(iid=code + 1, name=name.encode("utf-8", "replace"))
    for number, label in enumerate(_LABELS):
        packet.interned_data.event_categories.add(iid=number + 1, name=label.encode())
    return packet


def _lanes(table: Table, columns: tuple[str, ...]) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Rows of each thread or stream, in order of start, the longer one first."""
    if not len(table):
        return
    keys = np.stack([table[name] for name in columns])
    order = np.lexsort((-table["end"], table["start"], *keys[::-1]))
    ordered = keys[:, order]
    bounds = np.flatnonzero(np.any(np.diff(ordered, axis=1) != 0, axis=0)) + 1
    for rows in np.split(order, bounds):
        yield tuple(int(key) for key in keys[:, rows[0]]), rows


class _Spans:
    """Rows of a table as slices."""

    def __init__(self, table: Table, starts: Array, labels: Array, arrows: dict[int, list[int]]) -> None:
        self.table, self.starts, self.labels, self.arrows = table, starts, labels, arrows

    def bounds(self, row: int) -> tuple[int, int]:
        """Start and end, ns from the run's first event."""
        start = int(self.starts[row])
        return start, start + int(self.table["end"][row] - self.table["start"][row])

    def begin(self, row: int, track: int) -> Any:
        """The packet that begins a slice."""
        packet = TracePacket(timestamp=self.bounds(row)[0], sequence=_SEQUENCE, sequence_flags=NEEDS_STATE)
        event = packet.track_event
        event.type, event.track_uuid = BEGIN, track
        event.name_iid = int(self.table["name"][row]) + 1
        event.category_iids.append(int(self.labels[row]) + 1)
        event.flow_ids.extend(self.arrows.get(row, ()))
        event.debug_annotations.add(name=b"row", int_value=row)
        return packet


class _Tracks:
    """Describes tracks as they are needed, and writes what stands on them."""

    def __init__(self, trace: Trace, put: Callable[[bytes], object]) -> None:
        self.names: list[str] = []
        self._write = put
        for rank in trace.ranks:
            packet = TracePacket(sequence=_SEQUENCE)
            packet.track_descriptor.uuid = self._process(rank)
            packet.track_descriptor.process.pid = rank
            packet.track_descriptor.process.process_name = f"rank {rank}".encode()
            self._put(packet)

    def _process(self, rank: int) -> int:
        return rank + 1

    def write(self, rank: int, tid: int, name: str, spans: _Spans, rows: Array) -> None:
        """Write the slices of one thread or stream; `rows` in order of start."""
        open_slices: list[list[int]] = []
        tracks: list[int] = []
        for row in rows.tolist():
            start, end = spans.bounds(row)
            for lane, ends in enumerate(open_slices):
                self._close(ends, start, tracks[lane])
                if not ends or end <= ends[-1]:
                    break
            else:
                lane = len(open_slices)
                open_slices.append([])
                tracks.append(self._describe(rank, tid, name))
            self._put(spans.begin(row, tracks[lane]))
            open_slices[lane].append(end)
        for track, ends in zip(tracks, open_slices, strict=True):
            self._close(ends, None, track)

    def _close(self, ends: list[int], until: int | None, track: int) -> None:
        while ends and (until is None or ends[-1] <= until):
            packet = TracePacket(timestamp=ends.pop(), sequence=_SEQUENCE)
            packet.track_event.type, packet.track_event.track_uuid = END, track
            self._put(packet)

    def _describe(self, rank: int, tid: int, name: str) -> int:
        self.names.append(name)
        uuid = 1_000_000_000 + len(self.names)
        packet = TracePacket(sequence=_SEQUENCE)
        track = packet.track_descriptor
        track.uuid, track.parent_uuid = uuid, self._process(rank)
        track.name = name.encode("utf-8", "replace")
        if not any(known == name for known in self.names[:-1]):
            track.thread.pid, track.thread.tid, track.thread.thread_name = rank, tid, track.name
        self._put(packet)
        return uuid

    def _put(self, packet: Any) -> None:
        self._write(framed(packet.SerializeToString()))


def _thread_name(trace: Trace, thread: int) -> str:
    code = int(trace["threads"]["name"][thread])
    return trace.names[code] if code != NO_NAME else f"thread {int(trace['threads']['tid'][thread])}"
