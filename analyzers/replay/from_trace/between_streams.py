"""What a stream waited for on another, as recorded (`cudaStreamWaitEvent`, or another node of a CUDA graph) or
inferred from when operations start."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from gpuscope.analyzers.replay.from_trace.graph_builder import Builder, median
from gpuscope.analyzers.replay.from_trace.operations import CLOCK_NS, HAND_OVER_NS, Delays, Operations
from gpuscope.analyzers.replay.graph import Edge
from gpuscope.trace.columns.table import Times, rows_of_rank, rows_where
from gpuscope.trace.optimizer_ranges import update_begins
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace

_OPTIMIZER = ("Optimizer.step", "gpuscope::optimizer", "optimizer")


def between_streams(
    builder: Builder,
    ops: Operations,
    nodes: tuple[Times, Times],
    delays: Delays,
    pairs: dict[tuple[int, int], int],
) -> None:
    """Operation → one that waited for it, with the ns that the host had between them."""
    delay = np.array([ops.start[dst] - ops.end[src] for src, dst in pairs], np.int64)
    pair = np.array(list(pairs), np.int64).reshape(-1, 2)
    done, waiting = ops.end[pair[:, 0]], pair[:, 1]
    # Only what was held by nothing else shows how long an event takes to be seen.
    held = ops.at[waiting] + delays.launch[ops.work[waiting]] <= done
    before = ops.before[waiting]
    held &= (before < 0) | (ops.end[before] <= done)
    held &= np.array(list(pairs.values()), np.int64) == 0
    seen = delay[held & (delay >= 0) & (delay <= HAND_OVER_NS)]
    lag = median(seen, delays.event)
    first, last = (own.tolist() for own in nodes)
    for (src, dst), host in pairs.items():
        most = max(0, int(ops.start[dst] - ops.end[src]))
        builder.edge(last[src], first[dst], min(lag + host, most), Edge.EVENT)


def recorded_pairs(trace: Trace, rank: int, ops: Operations) -> dict[tuple[int, int], None] | None:
    """What streams waited for on another, as recorded; None where nothing is."""
    waits = recorded_waits(trace, rank, ops.rows)
    if waits is None:
        return None
    # A wait for what ends later than its stream went on was for an earlier use of the event.
    kept = ops.end[waits[0]] <= ops.start[waits[1]] + CLOCK_NS
    return dict.fromkeys(zip(waits[0][kept].tolist(), waits[1][kept].tolist(), strict=True))


def node_pairs(trace: Trace, ops: Operations) -> dict[tuple[int, int], int]:
    """What nodes of graphs waited for, with the ns of host functions between; the order of a stream says the rest."""
    waits = node_waits(trace, ops.rows)
    return {
        (src, dst): host
        for (src, dst), host in waits.items()
        if ops.end[src] <= ops.start[dst] + CLOCK_NS and (host or ops.stream[src] != ops.stream[dst])
    }


def inferred_pairs(
    trace: Trace, rank: int, ops: Operations, delays: Delays, waitable: Times
) -> dict[tuple[int, int], None]:
    """What streams waited for on another, by when operations start and by how frameworks issue collectives."""
    previous = np.where(ops.before >= 0, ops.end[ops.before] + delays.queue, NA)
    base = np.maximum(ops.at + delays.launch[ops.work], previous)
    late = np.flatnonzero(ops.start - base > CLOCK_NS)
    by_end = np.argsort(ops.end, kind="stable")
    ended = ops.end[by_end]
    pairs: dict[tuple[int, int], None] = {}
    for place in late.tolist():
        low, high = np.searchsorted(ended, [max(base[place], ops.start[place] - HAND_OVER_NS), ops.start[place] + 1])
        found = by_end[low:high]
        # What no recorded call launched (HCCL's collectives) may have been issued long before it began.
        issued = (ops.at[found] < ops.at[place]) | (ops.call[found] == NA)
        found = found[(ops.stream[found] != ops.stream[place]) & issued]
        if len(found):
            pairs[int(found[-1]), place] = None
    pairs = {
        (src, dst): None
        for src, dst in pairs
        if ops.work[src] != Kind.COMMUNICATION or waitable[src] <= ops.at[dst] or ops.call[src] == NA
    }
    pairs.update(_collectives_inputs(ops))
    _waited_collectives(trace, rank, ops, pairs, waitable)
    return pairs


def _collectives_inputs(ops: Operations) -> dict[tuple[int, int], None]:
    """A collective on a stream of its own waits for what was launched last before it elsewhere (the framework
    records an event there); left out where it visibly did not."""
    by_launch = np.argsort(ops.at, kind="stable")
    others = by_launch[ops.work[by_launch] != Kind.COMMUNICATION]
    found: dict[tuple[int, int], None] = {}
    for place in np.flatnonzero(ops.work == Kind.COMMUNICATION).tolist():
        at = int(np.searchsorted(ops.at[others], ops.at[place])) - 1
        if at < 0:
            continue
        source = int(others[at])
        if ops.stream[source] != ops.stream[place] and ops.end[source] <= ops.start[place]:
            found[source, place] = None
    return found


def _waited_collectives(
    trace: Trace, rank: int, ops: Operations, pairs: dict[tuple[int, int], None], waitable: Times
) -> None:
    """Collectives whose wait left no mark, for they were done in time: waited for together with one that came
    later, else by the optimizer, the first that can't do without."""
    if not (ops.work == Kind.COMMUNICATION).any():
        return
    compute = np.flatnonzero(ops.work == Kind.COMPUTE)
    waited = {src for src, _ in pairs if ops.work[src] == Kind.COMMUNICATION}
    visible = sorted(
        {dst for src, dst in pairs if ops.work[src] == Kind.COMMUNICATION and ops.work[dst] == Kind.COMPUTE}
    )
    host = trace["host_events"]
    optimizer = trace.names.matching(lambda name: name.startswith(_OPTIMIZER))
    named = rows_where(*rows_of_rank(host, rank), lambda rows: optimizer[host["name"][rows]])
    begins = np.sort(update_begins(host, trace.names, named))
    launched = compute[np.argsort(ops.at[compute], kind="stable")]
    table = trace["collectives"]
    scatters = table["event"][table["op"] == trace.names.find("reduce_scatter")]
    scattered = set(np.flatnonzero(np.isin(ops.rows, scatters)).tolist())
    for place in np.flatnonzero(ops.work == Kind.COMMUNICATION).tolist():
        if place in waited:
            continue
        at = np.searchsorted(begins, ops.at[place], "right")
        if place in scattered and at < len(begins):
            later = []  # gradients in shares: nobody but the optimizer uses them
        else:
            later = visible[bisect_left(visible, ops.end[place], key=lambda dst: ops.start[dst]) :]
        can = (dst for dst in later if ops.stream[dst] != ops.stream[place] and ops.at[dst] >= waitable[place])
        if (first_later := next(can, None)) is not None:
            pairs[place, first_later] = None
            continue
        if at < len(begins):
            first = launched[np.searchsorted(ops.at[launched], begins[at]) :]
            first = first[(ops.start[first] >= ops.end[place]) & (ops.stream[first] != ops.stream[place])]
            if len(first):
                pairs[place, int(first[0])] = None


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
