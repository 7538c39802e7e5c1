"""The graph of a rank with a device: what the host launches, streams in order, and who waits for whom.

Kept as measured: durations of operations and of host segments, the staging of copies that block the host.
One constant each per rank: the latency of a launch, the pause between queued operations, the delay after an
operation on another stream, the return of a call that waited. Everything else follows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.idleness.launching_threads import blocking_calls, queue_waits
from gpuscope.analyzers.device_time.kernels.kernel_facts import KernelFacts, kernel_facts
from gpuscope.analyzers.device_time.stream_waits import node_waits, recorded_waits
from gpuscope.analyzers.facts.message_sizes.accumulated_gradients import gradient_hooks
from gpuscope.analyzers.host_time.blocking_sites import sites
from gpuscope.analyzers.replay.from_trace.draining_calls import draining_calls
from gpuscope.analyzers.replay.from_trace.gradients import with_gradients
from gpuscope.analyzers.replay.from_trace.graph_builder import (
    ISSUES,
    Builder,
    Point,
    backward,
    causes,
    median,
    not_before,
    passes,
)
from gpuscope.analyzers.replay.from_trace.recorded_steps import UNLINKED_FRAC, Window
from gpuscope.analyzers.replay.graph import (
    ALLOCATION,
    CAUSES,
    COPY_CALL_NS,
    NONE,
    QUEUE,
    Call,
    Edge,
    Graph,
    Node,
    Trait,
    UnreplayableError,
)
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.table import Array, Mask, Table, Times
from gpuscope.trace.intervals import Spans, join, measure_within, subtract, union
from gpuscope.trace.launch_links import innermost, outermost
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

LAUNCH_NS = 6_000
"""Latency of a launch where none is seen on an idle stream: 5–7 µs on PCIe GPUs of 2017–2023."""
HAND_OVER_NS = 20_000
"""An operation that starts within this time of another stream's end, and of nothing else, waited for it: an event
takes 1–10 µs to be seen by another stream."""
CLOCK_NS = 2_000
"""By which a profiler's host and device stamps of one rank may disagree."""
PAUSE_NS = 10_000
"""A GPU starts a queued kernel 1–3 µs after the one before it; a pause longer than this has another reason."""
CALL_NS = 5_000
"""What a call that finds nothing to wait for costs at most."""
_OPTIMIZER = ("Optimizer.step", "gpuscope::optimizer", "optimizer")


@dataclass(frozen=True)
class Operations:
    """Device operations of a window, in order of start."""

    rows: Times
    start: Times
    end: Times
    stream: Times
    work: Times
    launch: Times
    """Row of the host call, or NA."""
    at: Times
    """When it was launched, or its start."""
    call: Times
    """The same number for what one call launched; NA where the launch is not recorded."""
    before: Times
    """Place of the operation before it on its stream, `NONE` of the first."""


@dataclass(frozen=True)
class Delays:
    """ns, one of each per rank."""

    launch: Array
    """By kind of work."""
    queue: int
    event: int


def device_graph(trace: Trace, view: LaneView, window: Window) -> Graph:
    """The graph of one lane. Raises `UnreplayableError` where launches are not recorded."""
    ops = _operations(trace, view, window)
    unlinked = int((ops.call == NA).sum())
    if unlinked > UNLINKED_FRAC * len(ops.rows) or bool((ops.launch == NA).all()):
        how = "profile a warm-up step first, for profilers lose calls as they start"
        if bool((trace["device_events"]["correlation"][ops.rows] == NA).mean() > UNLINKED_FRAC):
            how = "no call launched them, as it is with migrations of unified memory, or their ids are not recorded"
        raise UnreplayableError(
            f"the launches of {unlinked} of {len(ops.rows)} device operations are not recorded: {how}"
        )
    builder = Builder(view.lane.rank)
    rows = np.flatnonzero(trace["host_events"]["rank"] == view.lane.rank)
    step_of = np.searchsorted([step.start for step in window.steps], ops.start, "right") - 1
    returns = _returns(trace, view, ops, rows)
    points, launcher, waiter = _points(ops, step_of, returns)
    threads = np.unique(trace["host_events"]["thread"][ops.launch[ops.launch != NA]])
    parts = causes(trace, rows, threads)
    launching = rows[np.isin(trace["host_events"]["thread"][rows], threads)]
    unlaunching, parts["optimizing"] = _not_for_launches(trace, ops, launching)
    for cause in CAUSES:
        unlaunching = subtract(unlaunching, parts[cause])
    parts |= {"staging": _staging(trace, ops), "unlaunching": unlaunching}
    ends = builder.host(points, points[0].at, parts)
    delays = _delays(ops)
    nodes = _device_nodes(trace, builder, ops, step_of, backward(trace, rows))
    issued = ops.at[[place for place, pair in enumerate(nodes) if builder.nodes[pair[0]].get("call", NONE) >= 0]]
    hooks = gradient_hooks(trace, rows)
    builder.calls = with_gradients(trace, view.lane.rank, hooks, builder.calls, issued, window.start)
    _order(builder, ops, nodes, ends, launcher, delays)
    waitable = not_before(hooks, ops.at, step_of)
    known = _of_nodes(trace, ops)
    pairs, inferred = _recorded(trace, view.lane.rank, ops), 0
    if pairs is None:
        # A node of a graph waits for nothing but the nodes before it, and where these are recorded, they are all.
        nodes_after = {dst for _, dst in known}
        pairs = {pair: None for pair in _inferred(trace, ops, delays, rows, waitable) if pair[1] not in nodes_after}
        inferred = len(pairs)
    _between_streams(builder, ops, nodes, delays, {**dict.fromkeys(pairs, 0), **known})
    _waits(trace, builder, ops, nodes, ends, waiter, returns)
    return replace(builder.finish(_marks(builder, ops, nodes, window)), inferred=inferred)


def _operations(trace: Trace, view: LaneView, window: Window) -> Operations:
    device, host = trace["device_events"], trace["host_events"]
    start = device["start"][view.rows]
    low, high = np.searchsorted(start, [window.start, window.end])
    # The operation that begins the step behind the window ends the last one.
    high = min(int(high) + (not window.closed), len(start))
    rows = view.rows[int(low) : high]
    stream, launch = device.at("stream", rows), device.at("launch", rows)
    start, end = device["start"][rows], device["end"][rows]
    at = np.where(launch == NA, start, host["start"][np.where(launch == NA, 0, launch)])
    call = launch.copy()
    lost = np.flatnonzero((launch == NA) & (device["correlation"][rows] != NA))
    before = _call_before(trace, view, device["correlation"][rows][lost])
    # The call itself was lost: it was made after the last one before it that was not.
    at[lost] = np.where(before == NA, start[lost], np.minimum(host["end"][np.maximum(before, 0)], start[lost]))
    call[lost] = np.where(before == NA, NA, -2 - lost)
    before = np.full(len(rows), NONE, np.int64)
    for own in (np.flatnonzero(stream == which) for which in np.unique(stream)):
        before[own[1:]] = own[:-1]
    return Operations(rows, start, end, stream, device["kind"][rows].astype(np.int64), launch, at, call, before)


def _call_before(trace: Trace, view: LaneView, correlation: Times) -> Times:
    """The last recorded runtime call with a lower id: ids count a process's calls in order. NA where there is none."""
    host = trace["host_events"]
    known = (host["rank"] == view.lane.rank) & (host["category"] == Category.RUNTIME) & host.known("correlation")
    calls = np.flatnonzero(known)
    calls = calls[np.argsort(host["correlation"][calls], kind="stable")]
    at = np.searchsorted(host["correlation"][calls], correlation) - 1
    return np.where(at >= 0, calls[np.maximum(at, 0)], NA) if len(calls) else np.full(len(correlation), NA, np.int64)


def _not_for_launches(trace: Trace, ops: Operations, rows: Times) -> tuple[Spans, Spans]:
    """Host time that is not the way to a launch: within named ranges that launch nothing (DDP's buffers, its search for
    unused parameters) and in an optimizer's own code, outside operators; and all of the optimizer's."""
    host, names = trace["host_events"], trace.names
    annotated = host["category"][rows] == Category.ANNOTATION
    of_ddp = names.matching(lambda name: name.startswith("torch.distributed."))[host["name"][rows]]
    named = rows[annotated | of_ddp]
    launched = np.sort(ops.launch[ops.launch != NA])
    first = np.searchsorted(host["start"][launched], host["start"][named])
    inside = np.append(host["start"][launched], np.iinfo(np.int64).max)[first] < host["end"][named]
    still = named[~inside]
    stepping = named[names.matching(lambda name: name.startswith("Optimizer."))[host["name"][named]]]
    optimizing = union(host["start"][stepping], host["end"][stepping])
    inner = rows[np.isin(host["category"][rows], (Category.OP, Category.RUNTIME))]
    own = subtract(optimizing, union(host["start"][inner], host["end"][inner]))
    return join(union(host["start"][still], host["end"][still]), own), optimizing


def _staging(trace: Trace, ops: Operations) -> Spans:
    """When the host was in a call that copies from pageable memory to the device: it stages the data itself."""
    device, host = trace["device_events"], trace["host_events"]
    staged = trace.names.matching(lambda name: name.startswith("HtoD pageable"))
    linked = (ops.launch != NA) & (device["copy_kind"][ops.rows] != NO_NAME)
    calls = np.unique(ops.launch[linked][staged[device["copy_kind"][ops.rows][linked]]])
    # The call itself, which an asynchronous copy takes too, is no staging.
    return union(np.minimum(host["start"][calls] + COPY_CALL_NS, host["end"][calls]), host["end"][calls])


@dataclass(frozen=True)
class Returns:
    """Host calls of a window that waited for the device, in order of return."""

    rows: Times
    begin: Times
    end: Times
    labels: list[str]
    sites: list[str]
    """The places of the program, as the report's `host_calls` tells them apart."""
    queue: Mask
    """Launches that waited for room in the queue; they begin as that wait does."""
    drains: Mask
    """Allocator calls that waited for all that was launched, and then went to work."""


def _returns(trace: Trace, view: LaneView, ops: Operations, rows: Times) -> Returns:
    host = trace["host_events"]
    launches = ops.launch[ops.launch != NA]
    found = blocking_calls(trace, view)
    inside = (host["start"][found] >= host["start"][launches].min()) & (host["end"][found] <= ops.at.max())
    found = found[inside & np.isin(host["thread"][found], np.unique(host["thread"][launches]))]
    full, excess = queue_waits(trace, view, np.unique(launches))
    kept = np.isin(full, launches) & (host["end"][full] <= ops.at.max()) & ~np.isin(full, found)
    full, excess = full[kept], excess[kept]
    drains = _drains(trace, ops, rows)
    parts = (found, full, drains)
    every = np.concatenate(parts)
    end = host["end"][every]
    begin = np.concatenate((host["start"][found], host["end"][full] - excess, host["start"][drains]))
    labels = [*_labels(trace, found, rows), *[QUEUE] * len(full), *[ALLOCATION] * len(drains)]
    places = [*sites(trace, view, rows, found), *[""] * (len(full) + len(drains))]
    order = np.argsort(end, kind="stable")
    part = np.repeat(range(len(parts)), [len(own) for own in parts])[order]
    labels, places = ([own[place] for place in order.tolist()] for own in (labels, places))
    return Returns(every[order], begin[order], end[order], labels, places, part == 1, part == 2)


def _drains(trace: Trace, ops: Operations, rows: Times) -> Times:
    """Allocator calls of the launching threads that waited for the device."""
    host, launches = trace["host_events"], ops.launch[ops.launch != NA]
    rows = rows[np.isin(host["thread"][rows], np.unique(host["thread"][launches]))]
    rows = rows[(host["start"][rows] >= host["start"][launches].min()) & (host["end"][rows] <= ops.at.max())]
    return draining_calls(trace, rows, ops.at, ops.end, CLOCK_NS)


def _labels(trace: Trace, calls: Times, rows: Times) -> list[str]:
    """Outermost operator, innermost operator and call, as `aten::item/aten::_local_scalar_dense/cudaMemcpyAsync`."""
    host, names = trace["host_events"], trace.names
    if not len(calls):
        return []
    operators = np.zeros(len(host), np.bool_)
    operators[rows] = host["category"][rows] == Category.OP
    inner = innermost(host, operators, host["thread"][calls], host["start"][calls])
    found: list[str] = []
    tops = {thread: outermost(host, np.flatnonzero(operators & (host["thread"] == thread)))
            for thread in np.unique(host["thread"][calls]).tolist()}  # fmt: skip
    for call, own in zip(calls.tolist(), inner.tolist(), strict=True):
        top = tops[int(host["thread"][call])]
        at = int(np.searchsorted(host["start"][top], host["start"][call], "right")) - 1
        chain = [int(top[at])] if own != NA and at >= 0 else []
        chain += [own] if own != NA else []
        found.append("/".join(dict.fromkeys(names[int(host["name"][row])] for row in (*chain, call))))
    return found


def _points(ops: Operations, step_of: Times, returns: Returns) -> tuple[list[Point], Times, list[int]]:
    """What the host does in order; per operation the place of its launch (or `NONE`), per return its place."""
    linked = np.flatnonzero(ops.call != NA)
    _, first = np.unique(ops.call[linked], return_index=True)
    entries = [(int(ops.at[op]), 0, int(op)) for op in linked[first].tolist()]
    entries += [(int(end), 1, place) for place, end in enumerate(returns.end.tolist())]
    entries.sort()
    points: list[Point] = []
    place_of: dict[int, int] = {}
    waiter = [-1] * len(returns.rows)
    step = 0
    for at, what, which in entries:
        if what == 0:
            step = int(step_of[which])
            place_of[int(ops.call[which])] = len(points)
            points.append(Point(at, at, step=step))
        else:
            waiter[which] = len(points)
            points.append(Point(at, int(returns.begin[which]), True, returns.labels[which], step, returns.sites[which]))
    launcher = np.array([place_of.get(call, NONE) for call in ops.call.tolist()], np.int64)
    return points, launcher, waiter


def _delays(ops: Operations) -> Delays:
    previous = np.where(ops.before >= 0, ops.end[ops.before], ops.at)
    linked = (ops.launch != NA) & (ops.before >= 0)
    idle = linked & (previous + CLOCK_NS < ops.at)
    # Several operations of one call: only the first waits for the call.
    idle &= np.concatenate(([True], ops.launch[1:] != ops.launch[:-1]))
    idle &= ~_began_as_another_ended(ops)
    waited = (ops.start - ops.at)[idle]
    overall = median(waited, LAUNCH_NS)
    by_kind = np.full(len(Kind), overall, np.int64)
    for kind in Kind:
        own = (ops.start - ops.at)[idle & (ops.work == kind)]
        by_kind[kind] = median(own, overall) if len(own) >= 5 else overall
    queued = linked & (ops.at + 2 * overall < previous)
    pause = (ops.start - previous)[queued]
    return Delays(by_kind, median(pause[(pause >= 0) & (pause <= PAUSE_NS)], 1_500), 2_000)


def _began_as_another_ended(ops: Operations) -> Mask:
    """Operations that began as one of another stream ended, which had been launched before and ran on then: they waited
    for it, not for their launch."""
    by_end = np.argsort(ops.end, kind="stable")
    last = by_end[np.maximum(np.searchsorted(ops.end[by_end], ops.start, "right") - 1, 0)]
    since = ops.start - ops.end[last]
    other = (ops.stream[last] != ops.stream) & (ops.at[last] < ops.at) & (ops.end[last] > ops.at)
    return np.asarray(other & (since >= 0) & (since <= HAND_OVER_NS))


def _device_nodes(
    trace: Trace, builder: Builder, ops: Operations, step_of: Times, behind: Spans
) -> list[tuple[int, int]]:
    """(first, last) node of each operation: one, or the arrival and transfer of a collective."""
    table, names, device = trace["collectives"], trace.names, trace["device_events"]
    row_of = {event: row for row, event in enumerate(table["event"].tolist()) if event != NA}
    in_backward = measure_within(behind, ops.at, ops.at + 1) > 0
    began = np.full(int(step_of.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(began, step_of[in_backward], ops.at[in_backward])
    behind_it = ~in_backward & (ops.at > began[step_of])
    begun = passes(behind, ops.at[ops.work == Kind.COMPUTE], ops.at).tolist()
    costs = _issue_costs(trace, ops).tolist()
    found: list[tuple[int, int]] = []
    columns = (ops.rows, ops.start, ops.end, ops.stream, step_of, ops.work)
    facts = kernel_facts(trace)
    for event, start, end, stream, step, work in zip(*(column.tolist() for column in columns), strict=True):
        common = {"lane": stream, "step": step, "work": work}
        if work != Kind.COMMUNICATION:
            label = builder.label(_copy_label(names, device, event)) if work == Kind.MEMORY else NONE
            size = max(0, int(device["bytes"][event])) if work == Kind.MEMORY else 0
            own = _kernel(facts, device, event) if work == Kind.COMPUTE else {"traits": _traits(facts, event)}
            node = builder.node(
                Node.DEVICE, dur=end - start, start=start, end=end, label=label, bytes=size, **own, **common
            )
            found.append((node, node))
            continue
        row = row_of.get(event)
        place, call = len(found), NONE
        if row is not None:
            own_call = call_of(trace, row, bool(in_backward[place]))
            call = builder.call(
                replace(own_call, behind=bool(behind_it[place]), passes=begun[place], issue=costs[place])
            )
        arrival = builder.node(Node.ARRIVAL, start=start, end=start, call=call, **common)
        transfer = builder.node(Node.TRANSFER, dur=end - start, start=start, end=end, call=call, **common)
        builder.edge(arrival, transfer, 0, Edge.JOIN)
        found.append((arrival, transfer))
    return found


def _issue_costs(trace: Trace, ops: Operations) -> Times:
    """Of each collective the host time of the operator that issued it, by how many it issued; else 0."""
    host = trace["host_events"]
    issuing = trace.names.matching(lambda name: name.startswith(ISSUES))[host["name"]]
    own = np.flatnonzero((ops.work == Kind.COMMUNICATION) & (ops.launch != NA))
    launch = ops.launch[own]
    operator = innermost(host, issuing & (host["category"] == Category.OP), host["thread"][launch], ops.at[own])
    own, operator = own[operator != NA], operator[operator != NA]
    _, of, count = np.unique(operator, return_inverse=True, return_counts=True)
    costs = np.zeros(len(ops.rows), np.int64)
    costs[own] = (host["end"][operator] - host["start"][operator]) // count[of]
    return costs


def _kernel(facts: KernelFacts, device: Table, event: int) -> dict[str, int]:
    """The columns of a kernel's node."""
    return {
        "kernel": int(device["name"][event]), "category": int(facts.category[event]),
        "precision": int(facts.precision[event]), "floor": int(facts.floor[event]), "chain": int(facts.chain[event]),
        "traits": _traits(facts, event),
    }  # fmt: skip


def _traits(facts: KernelFacts, event: int) -> int:
    return int(
        Trait.LAYOUT * int(facts.layout[event])
        | Trait.ATTENTION * int(facts.attention[event])
        | Trait.FLASH_2 * int(facts.flash_2[event])
        | Trait.ODD * int(event in facts.odd)
        | Trait.GRADIENT_COPY * int(facts.gradient_copy[event])
    )


def _copy_label(names: NamePool, device: Table, event: int) -> str:
    code = int(device["copy_kind"][event])
    return "" if code == NO_NAME else names[code]


def call_of(trace: Trace, row: int, behind: bool) -> Call:
    """A row of `collectives` as a call."""
    table, names = trace["collectives"], trace.names
    size, members, group = int(table["bytes"][row]), int(table["group_size"][row]), int(table["group"][row])
    basis = int(table["size_basis"][row])
    return Call(
        rank=int(table["rank"][row]), op=names[int(table["op"][row])], start=int(table["start"][row]),
        end=int(table["end"][row]), bytes=None if size == NA else size,
        group="" if group == NO_NAME else names[group], group_size=None if members == NA else members, backward=behind,
        size_basis="" if basis == NO_NAME else names[basis],
    )  # fmt: skip


def _order(
    builder: Builder, ops: Operations, nodes: list[tuple[int, int]], ends: list[int], launcher: Times,
    delays: Delays,
) -> None:  # fmt: skip
    """Launch → operation, and operation → the next of its stream."""
    copies = [label.startswith(("HtoD", "DtoH")) for label in builder.labels]
    seen: set[int] = set()
    # A host that is ahead issued the window's first operation long before what precedes the window let it begin.
    builder.nodes[nodes[0][0]]["release"] = int(ops.start[0])
    for place, (first, _) in enumerate(nodes):
        before = int(ops.before[place])
        if before >= 0:
            builder.edge(nodes[before][1], first, delays.queue, Edge.STREAM)
        point = int(launcher[place])
        if point < 0:
            builder.nodes[first]["release"] = int(ops.start[place])
            continue
        lag = int(delays.launch[ops.work[place]])
        call = int(ops.launch[place])
        free = before < 0 or ops.end[before] <= ops.at[place]
        crossing = builder.nodes[first].get("label", NONE) >= 0 and copies[builder.nodes[first]["label"]]
        if crossing and free and call not in seen:
            lag = max(0, int(ops.start[place] - ops.at[place]))  # the host stages the copy
        seen.add(call)
        builder.edge(ends[point], first, lag, Edge.LAUNCH)


def _recorded(trace: Trace, rank: int, ops: Operations) -> dict[tuple[int, int], None] | None:
    """What streams waited for on another, as recorded; None where nothing is."""
    waits = recorded_waits(trace, rank, ops.rows)
    if waits is None:
        return None
    # A wait for what ends later than its stream went on was for an earlier use of the event.
    kept = ops.end[waits[0]] <= ops.start[waits[1]] + CLOCK_NS
    return dict.fromkeys(zip(waits[0][kept].tolist(), waits[1][kept].tolist(), strict=True))


def _of_nodes(trace: Trace, ops: Operations) -> dict[tuple[int, int], int]:
    """What nodes of graphs waited for, with the ns of host functions between; the order of a stream says the rest."""
    waits = node_waits(trace, ops.rows)
    return {
        (src, dst): host for (src, dst), host in waits.items()
        if ops.end[src] <= ops.start[dst] + CLOCK_NS and (host or ops.stream[src] != ops.stream[dst])
    }  # fmt: skip


def _inferred(
    trace: Trace, ops: Operations, delays: Delays, rows: Times, waitable: Times
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
    _waited_collectives(trace, ops, pairs, rows, waitable)
    return pairs


def _between_streams(
    builder: Builder, ops: Operations, nodes: list[tuple[int, int]], delays: Delays,
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
    for (src, dst), host in pairs.items():
        most = max(0, int(ops.start[dst] - ops.end[src]))
        builder.edge(nodes[src][1], nodes[dst][0], min(lag + host, most), Edge.EVENT)


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
    trace: Trace, ops: Operations, pairs: dict[tuple[int, int], None], rows: Times, waitable: Times
) -> None:
    """Collectives whose wait left no mark, for they were done in time: waited for together with one that came
    later, else by the optimizer, the first that can't do without."""
    compute = np.flatnonzero(ops.work == Kind.COMPUTE)
    waited = {src for src, _ in pairs if ops.work[src] == Kind.COMMUNICATION}
    visible = sorted(
        {dst for src, dst in pairs if ops.work[src] == Kind.COMMUNICATION and ops.work[dst] == Kind.COMPUTE}
    )
    host = trace["host_events"]
    named = rows[trace.names.matching(lambda name: name.startswith(_OPTIMIZER))[host["name"][rows]]]
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


def _waits(
    trace: Trace, builder: Builder, ops: Operations, nodes: list[tuple[int, int]], ends: list[int],
    waiter: list[int], returns: Returns,
) -> None:  # fmt: skip
    """Operation → the call that waited for it: on each stream the last one launched before and done by then."""
    copied = {int(call): place for place, call in enumerate(ops.launch.tolist()) if call != NA}
    own_copy = np.array([copied.get(call, NONE) for call in returns.rows.tolist()], np.int64)
    own_copy[returns.queue | returns.drains] = NONE
    sources = _waited_for(ops, returns, own_copy)
    reached = [max((int(ops.end[source]) for source in found), default=NA) for found in sources]
    # Calls of one name that copy in one direction return in the same way.
    copy_kind = np.where(own_copy < 0, NO_NAME, trace["device_events"]["copy_kind"][ops.rows][own_copy])
    names = np.where(returns.queue, NO_NAME, trace["host_events"]["name"][returns.rows]).tolist()
    same: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, key in enumerate(zip(names, copy_kind.tolist(), strict=True)):
        if not returns.drains[place]:
            same[key].append(place)
    for place in np.flatnonzero(returns.drains).tolist():
        own = max(0, int(returns.end[place]) - max(int(returns.begin[place]), reached[place]))
        builder.nodes[ends[waiter[place]]] |= {"dur": own, "allocator": own}
        for source in sources[place]:
            builder.edge(nodes[source][1], ends[waiter[place]], 0, Edge.SYNC)
    for key, places in same.items():
        held = [place for place in places if reached[place] > returns.begin[place] + CLOCK_NS]
        delay = median(np.array([returns.end[place] - reached[place] for place in held], np.int64), 0)
        free = [int(returns.end[place] - returns.begin[place]) for place in places if place not in held]
        # With room in the queue a launch waits for nothing; what it costs itself is the host's.
        own = 0 if key[0] == NO_NAME else min(median(np.array(free, np.int64), CALL_NS), CALL_NS)
        for place in held:
            node = builder.nodes[ends[waiter[place]]]
            node["dur"] = min(node["dur"], own)
            for source in sources[place]:
                builder.edge(nodes[source][1], ends[waiter[place]], delay - node["dur"], Edge.SYNC)
        # One that came when all was done waits once the host comes sooner.
        for place in set(places).difference(held) if key[0] != NO_NAME else ():
            for source in sources[place]:
                slack = int(returns.begin[place] - ops.end[source])
                builder.edge(nodes[source][1], ends[waiter[place]], min(delay - own, slack), Edge.SYNC)


def _waited_for(ops: Operations, returns: Returns, own_copy: Times) -> list[list[int]]:
    """Per call, what it waited for: the copy it makes, in stream order behind all else, or on each stream the last
    operation launched before the call and done by its return."""
    streams = [np.flatnonzero(ops.stream == which) for which in np.unique(ops.stream)]
    found: list[list[int]] = []
    for begin, end, copy in zip(returns.begin.tolist(), returns.end.tolist(), own_copy.tolist(), strict=True):
        ready = [
            own[(ops.at[own] <= begin + CLOCK_NS) & (ops.end[own] <= end + CLOCK_NS)]
            for own in (streams if copy < 0 else ())
        ]
        found.append([copy] if copy >= 0 else [int(own[-1]) for own in ready if len(own)])
    return found


def _marks(builder: Builder, ops: Operations, nodes: list[tuple[int, int]], window: Window) -> list[int]:
    """The first operation of each step, and the end of the last one."""
    places = np.searchsorted(ops.start, [step.start for step in window.steps])
    marks = [nodes[place][0] for place in places.tolist()]
    if not window.closed:
        return [*marks, nodes[int(np.searchsorted(ops.start, window.end))][0]]
    last = builder.node(Node.MARK, start=int(ops.end.max()), end=int(ops.end.max()), step=len(window.steps) - 1)
    for which in np.unique(ops.stream):
        builder.edge(nodes[int(np.flatnonzero(ops.stream == which)[-1])][1], last, 0, Edge.STREAM)
    return [*marks, last]
