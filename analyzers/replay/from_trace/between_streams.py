"""What a stream waited for on another, as recorded or inferred from when operations start."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from gpuscope.analyzers.device_time.stream_waits import node_waits, recorded_waits
from gpuscope.analyzers.replay.from_trace.graph_builder import Builder, median
from gpuscope.analyzers.replay.from_trace.operations import CLOCK_NS, HAND_OVER_NS, Delays, Operations
from gpuscope.analyzers.replay.graph import Edge
from gpuscope.trace.columns.table import Times, rows_of_rank, rows_where
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace

_OPTIMIZER = ("Optimizer.step", "gpuscope::optimizer", "optimizer")


def between_streams(
    builder: Builder, ops: Operations, nodes: tuple[Times, Times], delays: Delays,
    pairs: dict[tuple[int, int], int],
) -> None:  # fmt: skip
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
        (src, dst): host for (src, dst), host in waits.items()
        if ops.end[src] <= ops.start[dst] + CLOCK_NS and (host or ops.stream[src] != ops.stream[dst])
    }  # fmt: skip


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
        (src, dst): None for src, dst in pairs
        if ops.work[src] != Kind.COMMUNICATION or waitable[src] <= ops.at[dst] or ops.call[src] == NA
    }  # fmt: skip
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
    begins = np.sort(host["start"][named])
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
