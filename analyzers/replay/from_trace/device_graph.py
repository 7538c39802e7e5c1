"""The graph of a rank with a device: what the host launches, streams in order, and who waits for whom.

Kept as measured: durations of operations and of host segments, the staging of copies that block the host.
One constant each per rank: the latency of a launch, the pause between queued operations, the delay after an
operation on another stream, the return of a call that waited. Everything else follows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.kernels.kernel_facts import KernelFacts, kernel_facts
from gpuscope.analyzers.facts.message_sizes.accumulated_gradients import gradient_hooks
from gpuscope.analyzers.replay.from_trace.between_streams import (
    between_streams,
    inferred_pairs,
    node_pairs,
    recorded_pairs,
)
from gpuscope.analyzers.replay.from_trace.gradients import with_gradients
from gpuscope.analyzers.replay.from_trace.graph_builder import (
    ISSUES,
    Builder,
    Point,
    backward,
    causes,
    not_before,
    passes,
)
from gpuscope.analyzers.replay.from_trace.host_returns import Returns, returns_of, waits
from gpuscope.analyzers.replay.from_trace.operations import Delays, Operations, delays_of, operations
from gpuscope.analyzers.replay.from_trace.recorded_steps import UNLINKED_FRAC, Window
from gpuscope.analyzers.replay.graph import (
    CAUSES,
    COPY_CALL_NS,
    NONE,
    Call,
    Edge,
    Graph,
    Node,
    Trait,
    UnreplayableError,
)
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.table import Table, Times, rows_of_rank, rows_where
from gpuscope.trace.intervals import Spans, join, measure_within, subtract, union
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace


def device_graph(trace: Trace, view: LaneView, window: Window) -> Graph:
    """The graph of one lane. Raises `UnreplayableError` where launches are not recorded."""
    ops = operations(trace, view, window)
    unlinked = int((ops.call == NA).sum())
    if unlinked > UNLINKED_FRAC * len(ops.rows) or bool((ops.launch == NA).all()):
        how = "profile a warm-up step first, for profilers lose calls as they start"
        if bool((trace["device_events"]["correlation"][ops.rows] == NA).mean() > UNLINKED_FRAC):
            how = "no call launched them, as it is with migrations of unified memory, or their ids are not recorded"
        raise UnreplayableError(
            f"the launches of {unlinked} of {len(ops.rows)} device operations are not recorded: {how}"
        )
    builder = Builder(view.lane.rank)
    rows = _meanwhile(trace["host_events"], view.lane.rank, ops, window)
    step_of = np.searchsorted([step.start for step in window.steps], ops.start, "right") - 1
    returns = returns_of(trace, view, ops, rows)
    points, launcher, waiter = _points(ops, step_of, returns, trace["host_events"]["thread"])
    threads = np.unique(trace["host_events"]["thread"][ops.launch[ops.launch != NA]])
    parts = causes(trace, rows, threads)
    launching = rows[np.isin(trace["host_events"]["thread"][rows], threads)]
    unlaunching, parts["optimizing"] = _not_for_launches(trace, ops, launching)
    for cause in CAUSES:
        unlaunching = subtract(unlaunching, parts[cause])
    parts |= {"staging": _staging(trace, ops), "unlaunching": unlaunching}
    ends = builder.host(points, points[0].at, parts)
    delays = delays_of(ops)
    nodes = _device_nodes(trace, builder, ops, step_of, backward(trace, rows))
    issued = ops.at[[place for place, pair in enumerate(nodes) if builder.nodes[pair[0]].get("call", NONE) >= 0]]
    hooks = gradient_hooks(trace, rows)
    builder.calls = with_gradients(trace, view.lane.rank, hooks, builder.calls, issued, window.start)
    _order(builder, ops, nodes, ends, launcher, delays)
    waitable = not_before(hooks, ops.at, step_of)
    known = node_pairs(trace, ops)
    pairs, inferred = recorded_pairs(trace, view.lane.rank, ops), 0
    if pairs is None:
        # A node of a graph waits for nothing but the nodes before it, and where these are recorded, they are all.
        nodes_after = {dst for _, dst in known}
        pairs = {
            pair: None
            for pair in inferred_pairs(trace, view.lane.rank, ops, delays, waitable)
            if pair[1] not in nodes_after
        }
        inferred = len(pairs)
    between_streams(builder, ops, nodes, delays, {**dict.fromkeys(pairs, 0), **known})
    waits(trace, builder, ops, nodes, ends, waiter, returns)
    return replace(builder.finish(_marks(builder, ops, nodes, window)), inferred=inferred)


def _meanwhile(host: Table, rank: int, ops: Operations, window: Window) -> Times:
    """The host events of a rank that touch the time of the window's operations and their launches."""
    low = min(
        window.start, int(ops.at.min()), int(ops.start.min()), int(host["start"][ops.launch[ops.launch != NA]].min())
    )
    high = max(window.end, int(ops.at.max()), int(ops.end.max()))
    start, end = host["start"], host["end"]
    # What is issued as a range ends belongs to it (`in_hooks`).
    return rows_where(*rows_of_rank(host, rank), lambda rows: (start[rows] <= high + 1) & (end[rows] >= low - 1))


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


def _points(ops: Operations, step_of: Times, returns: Returns, threads: Times) -> tuple[list[Point], Times, list[int]]:
    """What the host does in order; per operation the place of its launch (or `NONE`), per return its place. `threads`:
    of host events."""
    linked = np.flatnonzero(ops.call != NA)
    _, first = np.unique(ops.call[linked], return_index=True)
    entries = [(int(ops.at[op]), 0, int(op)) for op in linked[first].tolist()]
    entries += [(int(end), 1, place) for place, end in enumerate(returns.end.tolist())]
    entries.sort()
    points: list[Point] = []
    place_of: dict[int, int] = {}
    waiter = [-1] * len(returns.rows)
    step, thread = 0, NA
    for at, what, which in entries:
        row = int((returns.rows if what else ops.launch)[which])
        before, thread = thread, thread if row == NA else int(threads[row])
        turned = thread != before != NA
        if what == 0:
            step = int(step_of[which])
            place_of[int(ops.call[which])] = len(points)
            points.append(Point(at, at, step=step, turned=turned))
        else:
            waiter[which], begin = len(points), int(returns.begin[which])
            points.append(Point(at, begin, True, returns.labels[which], step, returns.sites[which], turned))
    launcher = np.array([place_of.get(call, NONE) for call in ops.call.tolist()], np.int64)
    return points, launcher, waiter


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
    own = np.flatnonzero((ops.work == Kind.COMMUNICATION) & (ops.launch != NA))
    costs = np.zeros(len(ops.rows), np.int64)
    if not len(own):
        return costs
    issuing = trace.names.matching(lambda name: name.startswith(ISSUES))[host["name"]]
    launch = ops.launch[own]
    operator = innermost(host, issuing & (host["category"] == Category.OP), host["thread"][launch], ops.at[own])
    own, operator = own[operator != NA], operator[operator != NA]
    _, of, count = np.unique(operator, return_inverse=True, return_counts=True)
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
