"""All ranks of a run as one Chrome trace, on one clock, for ui.perfetto.dev.

Format: «Trace Event Format» (Google, 2016), JSON object form; times are decimal µs with three places, so
that no nanosecond is lost. One process per rank and device; its streams and host threads are threads.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

_BATCH = 20_000
_STREAMS = 1 << 12
_FIRST_THREAD = 1 << 20
"""Thread ids of streams are below it, those of host threads from it on: viewers sort by them."""


def write(trace: Trace, path: Path) -> None:
    """Write the trace to `path`, gzipped where its name ends in .gz."""
    with gzip.open(path, "wb", compresslevel=3) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        batch: list[bytes] = []
        separator = b""
        for event in _events(trace):
            batch.append(event)
            if len(batch) == _BATCH:
                file.write(separator + b",\n".join(batch))
                separator, batch = b",\n", []
        if batch:
            file.write(separator + b",\n".join(batch))
        file.write(b"\n]}\n")


def _events(trace: Trace) -> Iterator[bytes]:
    clock = RunFacts(trace, ()).clocks
    names = [msgspec.json.encode(name) for name in trace.names.names]
    device, host = trace["device_events"], trace["host_events"]
    starts = [int(table["start"].min()) for table in (device, host) if len(table)]
    base = min(starts, default=0)
    yield from _metadata(trace)
    yield from _spans(device, names, clock, base, [label.name.lower() for label in Kind])
    yield from _spans(host, names, clock, base, [label.name.lower() for label in Category])
    yield from _flows(trace, clock, base)


def _spans(table: Table, names: list[bytes], clock: Clocks, base: int, labels: list[str]) -> Iterator[bytes]:
    is_device = "stream" in table.columns
    kind = table["kind" if is_device else "category"]
    starts = clock.common(table["rank"], table["start"]) - base
    for row in range(len(table)):
        rank = int(table["rank"][row])
        start = int(starts[row])
        duration = int(table["end"][row] - table["start"][row])
        tid = _stream_tid(table, row) if is_device else _FIRST_THREAD + int(table["thread"][row])
        yield b'{"ph":"X","cat":"%s","name":%s,"pid":%d,"tid":%d,"ts":%s,"dur":%s,"args":{"row":%d}}' % (
            labels[int(kind[row])].encode(),
            names[int(table["name"][row])],
            rank,
            tid,
            _us(start),
            _us(duration),
            row,
        )


def _stream_tid(device: Table, row: int) -> int:
    ordinal, stream = int(device["device"][row]), int(device["stream"][row])
    return 1 + max(ordinal, 0) * _STREAMS + max(stream, 0) % _STREAMS


def _us(ns: int) -> bytes:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}".encode()


def _flows(trace: Trace, clock: Clocks, base: int) -> Iterator[bytes]:
    """An arrow from each launch to what it launched."""
    device, host = trace["device_events"], trace["host_events"]
    at, begun = (clock.common(table["rank"], table["start"]) - base for table in (device, host))
    for row in np.flatnonzero((device["launch"] != NA) & (device["device"] != NA)).tolist():
        rank, launch = int(device["rank"][row]), int(device["launch"][row])
        head = b'"cat":"launch","name":"launch","id":%d,"pid":%d' % (row, rank)
        yield b'{"ph":"s",%s,"tid":%d,"ts":%s}' % (
            head,
            _FIRST_THREAD + int(host["thread"][launch]),
            _us(int(begun[launch])),
        )
        yield b'{"ph":"f","bp":"e",%s,"tid":%d,"ts":%s}' % (head, _stream_tid(device, row), _us(int(at[row])))


def _metadata(trace: Trace) -> Iterator[bytes]:
    def named(what: str, pid: int, tid: int, label: str) -> bytes:
        return msgspec.json.encode({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": label}})

    for rank in trace.ranks:
        yield named("process_name", rank, 0, f"rank {rank}")
    device, threads = trace["device_events"], trace["threads"]
    lanes = {(int(device["rank"][row]), _stream_tid(device, row)): row for row in range(len(device))}
    for (rank, tid), row in lanes.items():
        ordinal, stream = int(device["device"][row]), int(device["stream"][row])
        label = "training thread" if ordinal == NA else f"device {ordinal} stream {stream if stream != NA else '?'}"
        yield named("thread_name", rank, tid, label)
    for row in range(len(threads)):
        code = int(threads["name"][row])
        label = trace.names[code] if code != NO_NAME else f"thread {int(threads['tid'][row])}"
        yield named("thread_name", int(threads["rank"][row]), _FIRST_THREAD + row, label)
