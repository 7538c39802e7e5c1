"""Small Perfetto traces written by hand from the events of `helpers.kineto`, in the layout of torch.profiler's encoder.

What the encoder leaves out is left out here (arrows, metadata, a copy's direction); ends are not cut per stream.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpuscope.sources.perfetto.packet_rows import (
    BEGIN,
    BOOTTIME,
    END,
    NEEDS_STATE,
    REALTIME,
    STATE_CLEARED,
    TracePacket,
)
from helpers.kineto import Event

BASE_NS = 1_700_000_000_000_000_000
STAGES = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3, "graph_event_node": 5, "graph_host_node": 6}
_MASK = 0x7FFFFFFF
GROUPS = ("cpu", "cuda_runtime", "cuda_driver", "overhead", "cuda_sync")


class PftraceWriter:
    """Collects packets; `bytes` are the file's."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self._interned: dict[str, dict[str, int]] = {"event_names": {}, "event_categories": {}}
        self.tracks: dict[tuple[int, int | None], int] = {}
        self._descriptors: list[Any] = []
        self.events: list[Any] = []
        self._counters: dict[int, dict[str, int]] = {}

    def packet(self, time: int | None = None, **fields: Any) -> Any:
        """A packet of the one sequence."""
        packet = TracePacket(sequence=1, **fields)
        if time is not None:
            packet.timestamp = time
        return packet

    def number(self, table: str, name: str) -> int:
        return self._interned[table].setdefault(name, len(self._interned[table]) + 1)

    def track(self, pid: int, tid: int, process: str, thread: str) -> int:
        """The uuid of a thread's track."""
        for key, parent in (((pid, None), None), ((pid, tid), (pid, None))):
            if key in self.tracks:
                continue
            uuid = self.tracks[key] = len(self.tracks) + 1
            packet = TracePacket()
            packet.track_descriptor.uuid = uuid
            if parent is None:
                packet.track_descriptor.process.pid = pid & _MASK
                packet.track_descriptor.process.process_name = process.encode()
            else:
                packet.track_descriptor.parent_uuid = self.tracks[parent]
                packet.track_descriptor.thread.pid = pid & _MASK
                packet.track_descriptor.thread.tid = tid & _MASK
                packet.track_descriptor.thread.thread_name = thread.encode()
            self._descriptors.append(packet)
        return self.tracks[pid, tid]

    def slices(self, events: Iterable[Event]) -> None:
        """One group: all begins, then all ends."""
        ends = []
        for event in events:
            is_sync = event["cat"] == "cuda_sync"
            pid, tid = (event["args"]["device"], event["args"]["stream"]) if is_sync else (event["pid"], event["tid"])
            process = f"GPU {pid}" if is_sync else "Overhead" if event["cat"] == "overhead" else "python"
            track = self.track(pid, tid, process, f"thread {tid}")
            begin = self.packet(ns(event["ts"]), sequence_flags=NEEDS_STATE)
            begin.track_event.type, begin.track_event.track_uuid = BEGIN, track
            begin.track_event.name_iid = self.number("event_names", event["name"])
            if event["cat"] not in ("cuda_sync", "overhead"):
                begin.track_event.category_iids.append(self.number("event_categories", event["cat"]))
            for name, value in event["args"].items():
                _annotate(begin.track_event.debug_annotations.add(name=name.encode()), value)
            end = self.packet(ns(event["ts"]) + ns(event["dur"], 0))
            end.track_event.type, end.track_event.track_uuid = END, track
            self.events.append(begin)
            ends.append(end)
        self.events += ends

    def stage(self, number: int, event: Event, after: Iterable[int] = ()) -> None:
        """A render stage: a kernel, copy, set or other node of a graph; `after` are numbers of those it waited for."""
        packet = self.packet(ns(event["ts"]), sequence_flags=NEEDS_STATE)
        stage, args = packet.gpu_render_stage_event, event["args"]
        stage.event_id, stage.duration, stage.stage_iid = number, ns(event["dur"], 0), STAGES[event["cat"]]
        stage.gpu_id, stage.hw_queue_iid = args["device"], 100
        if event["cat"] == "kernel":
            stage.name_iid = self.number("event_names", event["name"])
        stage.event_wait_ids.extend(after)
        told = {"device id": args["device"], "stream id": args["stream"]}
        told |= {key: value for key, value in args.items() if key not in ("device", "stream")}
        for key, value in told.items():
            stage.extra_data.add(name=key.encode(), value=str(value).encode())
        self.events.append(packet)

    def counter(self, event: Event) -> None:
        """A sample of `GPU n Counters`."""
        gpu = int(event["pid"].split()[1])
        names = self._counters.setdefault(gpu, {})
        packet = self.packet(ns(event["ts"]), sequence_flags=NEEDS_STATE)
        packet.gpu_counter_event.counter_descriptor_iid = gpu + 1
        number = names.setdefault(event["name"], len(names))
        packet.gpu_counter_event.counters.add(counter_id=number, double_value=float(event["args"][""]))
        self.events.append(packet)

    def all_packets(self) -> Iterator[Any]:
        """In the encoder's order."""
        clock = self.packet(BASE_NS)
        for number in (BOOTTIME, REALTIME):
            clock.clock_snapshot.clocks.add(clock_id=number, timestamp=BASE_NS)
        yield clock
        yield from self._descriptors
        names = self.packet(sequence_flags=STATE_CLEARED)
        for table, numbers in self._interned.items():
            for name, number in numbers.items():
                getattr(names.interned_data, table).add(iid=number, name=name.encode())
        for number, name in enumerate(("Kernel", "Memcpy", "Memset", "Annotation", "EventRecord", "HostNode"), 1):
            names.interned_data.gpu_specifications.add(iid=number, name=name.encode())
        names.interned_data.gpu_specifications.add(iid=100, name=b"[07] stream 7")
        for gpu, counters in self._counters.items():
            told = names.interned_data.gpu_counter_descriptors.add(iid=gpu + 1, gpu_id=gpu)
            for name, number in counters.items():
                told.descriptor.specs.add(counter_id=number, name=name.encode())
        yield names
        yield from self.events

    def bytes(self) -> bytes:
        """The file."""
        return b"".join(framed(packet.SerializeToString()) for packet in self.all_packets())


def framed(packet: bytes) -> bytes:
    """A packet in a trace, its length as a padded varint, as the encoder writes it."""
    size = len(packet)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
    return b"\x0a" + length + packet


def ns(microseconds: float, base: int = BASE_NS) -> int:
    """Whole ns of a time in µs."""
    return base + round(microseconds * 1000)


def write_pftrace(path: Path, *events: Event) -> Path:
    """A trace of those events; gzipped where the name ends in .gz."""
    writer = PftraceWriter()
    groups: dict[str, list[Event]] = {name: [] for name in GROUPS}
    waits = _waits(events)
    number = 0
    for event in events:
        if event["ph"] == "X" and event["cat"] not in STAGES:
            groups[event["cat"] if event["cat"] in groups else "cpu"].append(event)
    for group in groups.values():
        if group:
            writer.slices(group)
    for event in events:
        if event["ph"] == "X" and event["cat"] in STAGES:
            number += 1
            writer.stage(number, event, waits.get(number, ()))
        elif event["ph"] == "C":
            writer.counter(event)
    data = writer.bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def _waits(events: Iterable[Event]) -> dict[int, list[int]]:
    """What the arrows between nodes of graphs lead from, by the number of the stage that they lead to."""
    events = list(events)
    stages = [event for event in events if event["ph"] == "X" and event["cat"] in STAGES]
    by_start = {(one["pid"], one["tid"], one["ts"]): number for number, one in enumerate(stages, 1)}
    by_end = {(one["pid"], one["tid"], one["ts"] + one["dur"]): number for number, one in enumerate(stages, 1)}
    tails = {one["id"]: by_end[one["pid"], one["tid"], one["ts"]] for one in events if one["ph"] == "s"}
    found: dict[int, list[int]] = {}
    for head in (one for one in events if one["ph"] == "f"):
        found.setdefault(by_start[head["pid"], head["tid"], head["ts"]], []).append(tails[head["id"]])
    return found


def _annotate(annotation: Any, value: Any) -> None:
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, list):
        for one in value:
            _annotate(annotation.array_values.add(), one)
    else:
        annotation.string_value = str(value).encode()
