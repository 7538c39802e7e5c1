"""What operations waited for, as recorded: an event on another stream (`cudaStreamWaitEvent`), or another node of their
CUDA graph."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

Pairs = tuple[Times, Times]
"""(operation waited for, operation that waits): places, shape (n,) each."""


def recorded_waits(trace: Trace, rank: int, rows: Times) -> Pairs | None:
    """The waits between operations of a rank, whose rows of `device_events` are given in order of start, as places in
    `rows`; None where the trace records no stream's waits.

    Correlation ids count a process's calls in order, and a stream runs in order: a wait holds the first operation
    that its stream was given afterwards, until the last one that the other was given before the event was recorded.
    """
    device, syncs = trace["device_events"], trace["syncs"]
    own = np.flatnonzero((syncs["rank"] == rank) & (syncs["record"] != NA) & (syncs["stream"] != NA))
    own = own[syncs["correlation"][own] != NA]
    if not len(own):
        return None
    stream, call = device.at("stream", rows), device.at("correlation", rows)
    launched: dict[int, tuple[Times, Times]] = {}
    for which in np.unique(stream).tolist():
        places = np.flatnonzero((stream == which) & (call != NA))
        order = np.argsort(call[places], kind="stable")
        launched[which] = (call[places][order], places[order])
    found: dict[tuple[int, int], None] = {}
    columns = (syncs[name][own].tolist() for name in ("stream", "correlation", "awaited_stream", "record"))
    for waiting, wait, awaited, record in zip(*columns, strict=True):
        if waiting == awaited or waiting not in launched or awaited not in launched:
            continue
        calls, places = launched[awaited]
        source = int(np.searchsorted(calls, record, "right")) - 1
        later, targets = launched[waiting]
        target = int(np.searchsorted(later, wait, "left"))
        if source >= 0 and target < len(later):
            found[int(places[source]), int(targets[target])] = None
    pairs = np.array(list(found), np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def node_waits(trace: Trace, rows: Times) -> dict[tuple[int, int], int]:
    """What nodes of CUDA graphs waited for, by (operation waited for, operation that waits): places in `rows`, which
    are rows of `device_events`. With each the ns that host functions between the two took."""
    table = trace["graph_dependencies"]
    if not len(table):
        return {}
    place = np.full(len(trace["device_events"]), NA, np.int64)
    place[rows] = np.arange(len(rows))
    source, target = place[table["after"]], place[table["event"]]
    kept = (source != NA) & (target != NA)
    pairs = zip(source[kept].tolist(), target[kept].tolist(), strict=True)
    return dict(zip(pairs, table["host_ns"][kept].tolist(), strict=True))
