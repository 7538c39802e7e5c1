"""The graph of a rank with a device: what the host launches, streams in order, and who waits for whom.

Kept as measured: durations of operations and of host segments, the staging of copies that block the host.
One constant each per rank: the latency of a launch, the pause between queued operations, the delay after an
operation on another stream, the return of a call that waited. Everything else follows.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.kernel_facts import kernel_facts
from gpuscope.analyzers.facts.message_sizes import gradient_hooks
from gpuscope.analyzers.replay.graph import (
    CAUSES,
    COPY_CALL_NS,
    NONE,
    Edge,
    Graph,
    Node,
    Trait,
    UnreplayableError,
    node_defaults,
    operation_number,
)
from gpuscope.analyzers.replay.graph_builder import (
    ISSUES,
    UNLINKED_FRAC,
    Builder,
    Points,
    Window,
    backward,
    call_of,
    causes,
    median,
    not_before,
    passes,
    with_gradients,
)
from gpuscope.analyzers.replay.host_returns import (
    CLOCK_NS,
    HAND_OVER_NS,
    Delays,
    Operations,
    Returns,
    delays_of,
    operations,
    returns_of,
    waits,
)
from gpuscope.analyzers.replay.structure import gradients_by_structure
from gpuscope.trace.intervals import Spans, join, measure_within, subtract, union
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import NO_NAME, PerName
from gpuscope.trace.optimizer_ranges import update_begins
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Table, Times, rows_of_rank, rows_where
from gpuscope.trace.trace import Trace

# What a stream waited for on another, as recorded (`cudaStreamWaitEvent`, or another node of a CUDA graph) or
# inferred from when operations start.

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


def device_graph(trace: Trace, view: LaneView, window: Window) -> Graph:
    """The graph of one lane. Raises `UnreplayableError` where launches are not recorded."""
    ops = operations(trace, view, window)
    unlinked = int((ops.call == NA).sum())
    if unlinked > UNLINKED_FRAC * len(ops.rows) or bool((ops.launch == NA).all()):
        how = "profile a warm-up step first, for profilers lose calls as they start"
        if bool((trace["device_events"].at("correlation", ops.rows) == NA).mean() > UNLINKED_FRAC):
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
    ends = builder.host(points, int(points.at[0]), parts)
    delays = delays_of(ops)
    behind = backward(trace, rows)
    begun = passes(behind, ops.at[ops.work == Kind.COMPUTE])
    nodes = _device_nodes(trace, builder, ops, step_of, (behind, begun))
    issued = ops.at[builder.nodes["call"][nodes[0]] >= 0]
    hooks = gradient_hooks(trace, rows)
    since = np.sort(np.append(window.start, begun))
    builder.calls = with_gradients(trace, view.lane.rank, hooks, builder.calls, issued, since)
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
    waits(trace, builder, ops, nodes[1].tolist(), ends[waiter].tolist(), returns)
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


def _points(ops: Operations, step_of: Times, returns: Returns, threads: Times) -> tuple[Points, Times, Times]:
    """What the host does in order; per operation the place of its launch (or `NONE`), per return its place. `threads`:
    of host events."""
    linked = np.flatnonzero(ops.call != NA)
    calls, first = np.unique(ops.call[linked], return_index=True)
    launches = linked[first]
    at = np.concatenate((ops.at[launches], returns.end))
    # Of one instant launches first, each kind in its own order.
    which = np.concatenate((launches, np.arange(len(returns.end))))
    order = np.lexsort((which, np.arange(len(at)) >= len(launches), at))
    waits = order >= len(launches)
    # A return is of the step of the launch before it.
    before = np.maximum.accumulate(np.where(waits, NONE, np.arange(len(order))))
    step = np.where(before == NONE, 0, np.append(step_of[launches], 0 * returns.end)[order][before])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    launcher, waiter = np.full(len(ops.call), NONE, np.int64), place[len(launches) :]
    launcher[linked] = place[np.searchsorted(calls, ops.call[linked])]
    own = (order[waits] - len(launches)).tolist()
    begin = np.concatenate((ops.at[launches], returns.begin))[order]
    labels, sites = ([texts[one] for one in own] for texts in (returns.labels, returns.sites))
    row = np.concatenate((ops.launch[launches], returns.rows))[order]
    last = np.maximum.accumulate(np.where(row == NA, NONE, np.arange(len(row))))
    thread = np.where(last == NONE, NA, threads[np.where(last == NONE, 0, row[last])])
    return Points(at[order], begin, step, waits, labels, sites, thread), launcher, waiter


def _device_nodes(
    trace: Trace, builder: Builder, ops: Operations, step_of: Times, backwards: tuple[Spans, Times]
) -> tuple[Times, Times]:
    """The first and last node of each operation: one, or the arrival and transfer of a collective."""
    collective, memory = ops.work == Kind.COMMUNICATION, ops.work == Kind.MEMORY
    call = np.full(len(ops.rows), NONE, np.int64)
    call[collective] = _calls(trace, builder, ops, step_of, *backwards)
    label, copied = np.full(len(ops.rows), NONE, np.int64), trace["device_events"].at("copy_kind", ops.rows[memory])
    places = {code: builder.label(trace.names[code]) for code in dict.fromkeys(copied.tolist())}
    label[memory] = [places[code] for code in copied.tolist()]
    columns = {
        "lane": ops.stream,
        "step": step_of,
        "work": ops.work,
        "call": call,
        "label": label,
        "bytes": np.where(memory, np.maximum(trace["device_events"].at("bytes", ops.rows), 0), 0),
        **_of_kernels(trace, ops),
    }
    of = np.repeat(np.arange(len(ops.rows)), 1 + collective)
    transfer = np.append(False, of[1:] == of[:-1])
    arrival = collective[of] & ~transfer
    kind = np.where(transfer, Node.TRANSFER, np.where(arrival, Node.ARRIVAL, Node.DEVICE))
    start, end = ops.start[of], np.where(arrival, ops.start[of], ops.end[of])
    low = builder.add(
        kind, len(of), dur=end - start, start=start, end=end, **{name: own[of] for name, own in columns.items()}
    )
    first = low + np.flatnonzero(~transfer)
    builder.join(first[collective], first[collective] + 1, 0, Edge.JOIN)
    return first, first + collective


def _calls(trace: Trace, builder: Builder, ops: Operations, step_of: Times, behind: Spans, begun: Times) -> list[int]:
    """The place of the call of each collective among the operations, or `NONE`. Backward passes were `begun` then."""
    row_of = {event: row for row, event in enumerate(trace["collectives"]["event"].tolist()) if event != NA}
    in_backward = measure_within(behind, ops.at, ops.at + 1) > 0
    began = np.full(int(step_of.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(began, step_of[in_backward], ops.at[in_backward])
    behind_it = ~in_backward & (ops.at > began[step_of])
    number = np.searchsorted(begun, ops.at, "right").tolist()
    costs = _issue_costs(trace, ops).tolist()
    places = np.flatnonzero(ops.work == Kind.COMMUNICATION).tolist()
    rows = [row_of.get(int(ops.rows[place])) for place in places]
    calls = {place: call_of(trace, row, False) for place, row in zip(places, rows, strict=True) if row is not None}
    structural = not in_backward.any()
    if structural:
        in_backward, behind_it = gradients_by_structure(ops, step_of, list(calls.items()))
    return [
        builder.call(
            replace(
                calls[place],
                backward=bool(in_backward[place]),
                behind=bool(behind_it[place]),
                passes=number[place],
                issue=costs[place],
                by_structure=structural and bool(in_backward[place] or behind_it[place]),
            )
        )
        if place in calls
        else NONE
        for place in places
    ]


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


def _of_kernels(trace: Trace, ops: Operations) -> dict[str, Times]:
    """The columns of kernels' nodes; of copies, too, what they are part of."""
    facts, rows = kernel_facts(trace), ops.rows
    kernel = ops.work == Kind.COMPUTE
    traits = (
        (Trait.LAYOUT, facts.layout[rows]),
        (Trait.ATTENTION, facts.attention[rows]),
        (Trait.FLASH_2, facts.flash_2[rows]),
        (Trait.ODD, facts.odd[rows] > 0),
        (Trait.GRADIENT_COPY, facts.gradient_copy[rows]),
        (Trait.BY_MEMORY, facts.roofs.by_memory[rows]),
    )
    found = sum(trait * own.astype(np.int64) for trait, own in traits)
    columns = {
        "category": facts.category,
        "precision": facts.precision,
        "floor": facts.roofs.floor,
        "chain": facts.chain,
        "operation": _operations(trace, facts.roofs.operator),
    }
    absent = node_defaults()
    return {
        "kernel": np.where(kernel, trace["device_events"].at("name", rows), absent["kernel"]),
        **{name: np.where(kernel, own[rows], absent[name]) for name, own in columns.items()},
        "traits": np.where(ops.work == Kind.COMMUNICATION, 0, found),
    }


def _operations(trace: Trace, operator: Times) -> Times:
    """The number of the name of each kernel's operator, 0 without one."""
    host, found = trace["host_events"], np.zeros(len(operator), np.int64)
    known = np.flatnonzero(operator != NA)
    if len(known):
        found[known] = PerName(trace.names, operation_number)(host["name"][operator[known]])
    return found


def _order(
    builder: Builder, ops: Operations, nodes: tuple[Times, Times], ends: Times, launcher: Times, delays: Delays
) -> None:
    """Launch → operation, and operation → the next of its stream."""
    first, last = nodes
    copies = np.array([label.startswith(("HtoD", "DtoH")) for label in builder.labels] + [False])
    linked = np.flatnonzero(launcher >= 0)
    builder.nodes["release"][first[launcher < 0]] = ops.start[launcher < 0]
    # A host that is ahead issued the window's first operation long before what precedes the window let it begin.
    builder.nodes["release"][first[0]] = ops.start[0]
    free = (ops.before < 0) | (ops.end[ops.before] <= ops.at)
    first_of_call = np.zeros(len(first), np.bool_)
    first_of_call[linked[np.unique(ops.launch[linked], return_index=True)[1]]] = True
    staged = copies[builder.nodes["label"][first]] & free & first_of_call  # the host stages the copy
    lag = np.where(staged, np.maximum(0, ops.start - ops.at), delays.launch[ops.work])
    behind = np.flatnonzero(ops.before >= 0)
    order = np.argsort(np.concatenate((behind, linked)), kind="stable")
    src = np.concatenate((last[ops.before[behind]], ends[launcher[linked]]))
    lags = np.concatenate((np.full(len(behind), delays.queue), lag[linked]))
    why = np.repeat([Edge.STREAM, Edge.LAUNCH], [len(behind), len(linked)])
    builder.join(src[order], first[np.concatenate((behind, linked))[order]], lags[order], why[order])


def _marks(builder: Builder, ops: Operations, nodes: tuple[Times, Times], window: Window) -> list[int]:
    """The first operation of each step, and the end of the last one."""
    places = np.searchsorted(ops.start, [step.start for step in window.steps])
    first, end = nodes
    marks: list[int] = first[places].tolist()
    if not window.closed:
        return [*marks, int(first[np.searchsorted(ops.start, window.end)])]
    last = builder.add(Node.MARK, 1, start=int(ops.end.max()), end=int(ops.end.max()), step=len(window.steps) - 1)
    for which in np.unique(ops.stream):
        builder.edge(int(end[np.flatnonzero(ops.stream == which)[-1]]), last, 0, Edge.STREAM)
    return [*marks, last]
