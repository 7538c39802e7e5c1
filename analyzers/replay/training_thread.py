"""The graph of a rank without a device: its training thread is the device, gloo's threads carry its collectives.

A collective is issued on the training thread, carried out on a thread of gloo's own in order, and waited for:
at an operator that waits, or at a pause of the training thread that ends when the collective does.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import takewhile

import numpy as np

from gpuscope import native
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.facts.message_sizes import gradient_hooks, in_hooks
from gpuscope.analyzers.facts.pipeline_facts import KINDS
from gpuscope.analyzers.replay.graph import Edge, Graph, Node
from gpuscope.analyzers.replay.graph_builder import (
    ISSUES,
    Builder,
    Points,
    Window,
    backward,
    call_of,
    causes,
    mean,
    not_before,
    with_gradients,
)
from gpuscope.trace.intervals import Spans, measure_within, union
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.launch_links import (
    EARLY_NS,
    ended_by,
    innermost,
    is_waiting_op,
    longer_first,
    outermost,
    pauses,
    training_threads,
)
from gpuscope.trace.optimizer_ranges import update_begins
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Mask, Table, Times, among, distinct_values, rows_of_rank, those
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# What of a computation does not shrink with its batch.
#
# On a rank whose training thread is the device: Python between operators, and of each operator its dispatch. Half of a
# model's operators are views, reshapes and small ones that do hardly anything else, so the median of what an operator
# takes itself is taken for it. On a GPU: the pauses between its kernels, and what each takes to begin and end.

COMPUTATIONS_KEPT = 100
"""Of a rank, those looked at: enough for a mean."""
KERNEL_NS = 1_000
"""What a kernel takes whatever it does: profilers show 1 to 2 us for an empty one."""


def fixed_shares(trace: Trace, rank: int, operations: Table) -> dict[str, float]:
    """By kind of computation (F, B, W), the share of its time that its batch does not change; none without operators.

    `operations` are those of this trace, on the rank's own clock.
    """
    host = trace["host_events"]
    kinds = {trace.names.find(op): kind for op, kind in KINDS.items()}
    own = np.flatnonzero((operations["rank"] == rank) & np.isin(operations["op"], list(kinds)))[:COMPUTATIONS_KEPT]
    if not len(own):
        return {}
    low, high = rows_of_rank(host, rank)
    threads = training_threads(host, trace.names, np.arange(low, high))
    between = [operations["start"][own].min(), operations["end"][own].max()]
    rows = np.arange(*(low + np.searchsorted(host["start"][low:high], between)))
    rows = rows[(host["category"][rows] == Category.OP) & among(host["thread"][rows], threads)]
    rows = longer_first(host, rows)
    start, end = host["start"][rows], host["end"][rows]
    found: dict[str, list[float]] = defaultdict(list)
    for op, begin, until in zip(*(operations[column][own].tolist() for column in ("op", "start", "end")), strict=True):
        low, high = np.searchsorted(start, [begin, until]).tolist()
        inside = end[low:high] <= until
        first, last = start[low:high][inside], end[low:high][inside]
        if len(first):
            itself = own_times(first, last)
            python = until - begin - union(first, last).total
            dispatch = float(np.minimum(itself, np.median(itself)).sum())
            found[kinds[op]].append((python + dispatch) / (until - begin))
    return {kind: float(np.mean(shares)) for kind, shares in found.items()}


def fixed_shares_on_device(
    trace: Trace, view: LaneView, operations: Table, kernel_ns: int = KERNEL_NS
) -> dict[str, float]:
    """The same of a rank with a GPU, of whose kernels each takes `kernel_ns` whatever it does; `operations` on the
    rank's own clock."""
    device = trace["device_events"]
    rows = view.rows[device["kind"][view.rows] == Kind.COMPUTE]
    start, busy = device["start"][rows], union(device["start"][rows], device["end"][rows])
    kinds = {trace.names.find(op): kind for op, kind in KINDS.items()}
    own = np.flatnonzero((operations["rank"] == view.lane.rank) & np.isin(operations["op"], list(kinds)))
    own = own[:COMPUTATIONS_KEPT]
    begin, until = operations["start"][own], operations["end"][own]
    kernels = np.searchsorted(start, until) - np.searchsorted(start, begin)
    fixed = until - begin - measure_within(busy, begin, until) + kernels * kernel_ns
    found: dict[str, list[float]] = defaultdict(list)
    for op, ns, whole in zip(operations["op"][own].tolist(), fixed.tolist(), (until - begin).tolist(), strict=True):
        if whole > 0:
            found[kinds[op]].append(min(1.0, ns / whole))
    return {kind: float(np.mean(shares)) for kind, shares in found.items()}


def own_times(start: Times, end: Times) -> Times:
    """ns of each operator less those within it; by start, outer ones first."""
    spent = end - start
    around = native.parents(start, end, np.zeros(len(start), np.int64), spent > 0)
    inside = np.flatnonzero(around != NA)
    found = spent.copy()
    np.subtract.at(found, around[inside], spent[inside])
    return np.asarray(np.maximum(found, 0))


DISPATCH_NS = 100_000
WOKE_NS = 50_000
"""From issuing a collective to gloo's thread taking it up, and from its end to the training thread going on, where
neither is seen. Where they are, one mean each per rank: on a busy machine delays have a long tail, and its time counts.
"""
QUEUE_NS = 10_000
"""Between two collectives on one of gloo's threads, where none was seen to wait for another."""
_GATHERS = "FSDP::all_gather"
_OPTIMIZER = ("Optimizer.step", "gpuscope::optimizer", "optimizer")


@dataclass(frozen=True)
class Collectives:
    """Collectives of the window in order of issue."""

    rows: Times
    """Of the table."""
    start: Times
    end: Times
    thread: Times
    issued: Times
    worker: Mask
    """Carried out on a thread of gloo's own."""
    waitable: Times
    """ns before which nothing waits for it."""
    cost: Times
    """ns of the training thread that issuing it took; 0 where that is unknown."""


def thread_graph(trace: Trace, view: LaneView, window: Window) -> Graph:
    """The graph of a rank whose training thread is the device."""
    host, rank = trace["host_events"], view.lane.rank
    rows = np.arange(*rows_of_rank(host, rank))
    threads = np.array(training_threads(host, trace.names, rows), np.int64)
    own = rows[among(host.at("thread", rows), threads) & (host.at("category", rows) != Category.COMMUNICATION)]
    hooks = gradient_hooks(trace, own)
    collectives = _collectives(trace, rows, own, threads, hooks, window)
    waits = _Waits(trace, own[_within(trace, own, window)], threads, collectives).found(window)
    builder = Builder(rank)
    parts = {**causes(trace, rows, threads), "compute": _compute(trace, view)}
    points, issues, marks, waiters = _points(window, collectives, waits)
    ends = builder.host(points, window.start, parts)
    _carry_out(trace, builder, collectives, ends[issues], backward(trace, own))
    builder.calls = with_gradients(trace, rank, hooks, builder.calls, collectives.issued, np.array([window.start]))
    _wait(trace, builder, collectives, waits, ends[waiters].tolist(), (own, ends, points))
    return builder.finish([_mark(builder, int(ends[place])) for place in marks])


def _within(trace: Trace, rows: Times, window: Window) -> Mask:
    """Host events that touch the window."""
    host = trace["host_events"]
    return np.asarray((host["start"][rows] < window.end) & (host["end"][rows] > window.start))


def _compute(trace: Trace, view: LaneView) -> Spans:
    device = trace["device_events"]
    rows = view.rows[device["kind"][view.rows] == Kind.COMPUTE]
    return union(device["start"][rows], device["end"][rows])


def _collectives(trace: Trace, rows: Times, own: Times, threads: Times, hooks: Spans, window: Window) -> Collectives:
    table, host = trace["collectives"], trace["host_events"]
    found = np.flatnonzero(np.isin(table["host_event"], rows))
    found = _in_order_of_issue(trace, found[np.argsort(table["start"][found], kind="stable")])
    issues = trace.names.matching(lambda name: name.startswith(ISSUES))
    issuing = those(own, lambda rows: issues[host["name"][rows]] & (host["category"][rows] == Category.OP))
    issuing = issuing[np.argsort(host["start"][issuing], kind="stable")]
    start, thread = table["start"][found], host["thread"][table["host_event"][found]]
    # One operator issues one collective, in order; where that does not hold, gloo's own start has to do.
    issued, cost = start, np.zeros(len(found), np.int64)
    if len(issuing) == len(found) and bool((host["start"][issuing] <= start).all()):
        issued = np.minimum(host["end"][issuing], start)
        cost = _costs(hooks, _begun(trace, own, issuing), issued)
    inside = (issued >= window.start) & (issued < window.end)
    found, start, thread, issued, cost = (column[inside] for column in (found, start, thread, issued, cost))
    step_of = np.searchsorted([step.start for step in window.steps], issued, "right")
    waitable = not_before(hooks, issued, step_of)
    worker = ~np.isin(thread, threads)
    return Collectives(found, start, table["end"][found], thread, issued, worker, waitable, cost)


def _begun(trace: Trace, own: Times, issuing: Times) -> Times:
    """When the host began to issue: FSDP allocates and fills what a gather sends before it calls the operator."""
    host = trace["host_events"]
    ranges = np.zeros(len(host), np.bool_)
    ranges[own[trace.names.matching(lambda name: name.startswith(_GATHERS))[host["name"][own]]]] = True
    found = innermost(host, ranges, host["thread"][issuing], host["start"][issuing])
    return np.where(found == NA, host["start"][issuing], host["start"][np.where(found == NA, 0, found)])


def _costs(hooks: Spans, begun: Times, issued: Times) -> Times:
    """What issuing cost the training thread: the call, and in a gradient's hook all that other hooks do not take."""
    found = issued - begun
    if not len(hooks.start) or not len(found):
        return found
    place = np.maximum(np.searchsorted(hooks.start, issued, "right") - 1, 0)
    inside = in_hooks(hooks, issued)
    taken = hooks.end - hooks.start
    others = np.delete(taken, place[inside])
    usual = int(np.median(others)) if len(others) else 0
    return np.where(inside, np.maximum(taken[place] - usual, 0), found)


def _in_order_of_issue(trace: Trace, found: Times) -> Times:
    """Rows in order of start, a group's by their sequence numbers: of two on two threads of gloo's either may start
    first. A group with messages keeps the order of start, since its numbers are of two kinds."""
    table = trace["collectives"]
    placed = found.copy()
    messages = trace.names.matching(lambda name: name in POINT_TO_POINT)[table["op"][found]]
    for group in distinct_values(table["group"][found]).tolist():
        own = np.flatnonzero(table["group"][found] == group)
        numbers = table["seq"][found[own]]
        if not messages[own].any() and (numbers != NA).all() and len(distinct_values(numbers)) == len(numbers):
            placed[own] = found[own][np.argsort(numbers)]
    return placed


@dataclass(frozen=True)
class Wait:
    """The training thread waits from `begin` to `end` for collectives (places)."""

    begin: int
    end: int
    sources: tuple[int, ...]
    label: str


class _Waits:
    """Finds where the training thread waited, and for what."""

    def __init__(self, trace: Trace, own: Times, threads: Times, collectives: Collectives) -> None:
        self.trace, self.own, self.threads, self.collectives = trace, own, threads, collectives

    def found(self, window: Window) -> list[Wait]:
        """The waits, in order, none over another."""
        spans = [*self._operators(), *self._pauses()]
        spans = sorted(span for span in spans if span[0] >= window.start and span[1] <= window.end)
        waits: list[Wait] = []
        last = window.start
        ended, waitable = self.collectives.end.tolist(), self.collectives.waitable.tolist()
        issued, left = self.collectives.issued.tolist(), list(range(len(ended)))
        for begin, end, label in spans:
            begin = max(begin, last)
            if end <= begin:
                continue
            asked = takewhile(lambda place, begin=begin: issued[place] <= begin, left)  # type: ignore[misc]
            sources = {place for place in asked if waitable[place] <= begin and ended[place] <= end + EARLY_NS}
            if not sources and not label:
                continue
            left = [place for place in left if place not in sources]
            waits.append(Wait(begin, end, tuple(sorted(sources)), label))
            last = end
        return waits

    def _operators(self) -> list[tuple[int, int, str]]:
        host, names = self.trace["host_events"], self.trace.names
        picked = self.own[names.matching(is_waiting_op)[host["name"][self.own]]]
        found: list[tuple[int, int, str]] = []
        for thread in self.threads.tolist():
            top = outermost(host, picked[host["thread"][picked] == thread])
            found += [
                (int(host["start"][row]), int(host["end"][row]), names[int(host["name"][row])]) for row in top.tolist()
            ]
        return found

    def _pauses(self) -> list[tuple[int, int, str]]:
        paused = pauses(self.trace["host_events"], self.trace.names, self.own, self.threads)
        spans = ended_by(paused, distinct_values(self.collectives.end))
        return [(begin, end, "") for begin, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True)]


def _points(
    window: Window, collectives: Collectives, waits: list[Wait]
) -> tuple[Points, list[int], list[int], list[int]]:
    """What the thread does in order; the places of issues, of step begins (and the end) and of waits."""
    bounds = [*(step.start for step in window.steps), window.end]
    entries = [(at, 0, place) for place, at in enumerate(collectives.issued.tolist())]
    entries += [(at, 1, place) for place, at in enumerate(bounds)]
    entries += [(wait.end, 2, place) for place, wait in enumerate(waits)]
    at, what, which = (np.array(column, np.int64) for column in zip(*sorted(entries), strict=True))
    places: list[list[int]] = []
    for kind in range(3):  # in order of the entries' own places
        own = np.flatnonzero(what == kind)
        places.append(own[np.argsort(which[own])].tolist())
    begun = np.maximum.accumulate(np.where(what == 1, which, 0))
    step = np.minimum(begun, len(window.steps) - 1)
    asked = [waits[place] for place in which[what == 2].tolist()]
    begin = at.copy()
    begin[what == 2] = [wait.begin for wait in asked]
    labels = [wait.label for wait in asked]
    points = Points(at, begin, step, what == 2, labels, [""] * len(asked), np.full(len(at), NA))
    return points, places[0], places[1], places[2]


def _carry_out(trace: Trace, builder: Builder, collectives: Collectives, issuers: Times, behind: Spans) -> None:
    """Issue → arrival → transfer, in order on each of gloo's threads. The nodes stand in `builder.calls` order."""
    in_backward = measure_within(behind, collectives.issued, collectives.issued + 1) > 0
    last: dict[int, int] = {}
    ended: dict[int, int] = {}
    queued: list[int] = []
    free: list[int] = []
    edges: list[tuple[int, int, Edge]] = []
    count = len(collectives.rows)
    cost = collectives.cost.tolist()
    calls = [
        builder.call(replace(call_of(trace, row, bool(in_backward[place])), issue=cost[place]))
        for place, row in enumerate(collectives.rows.tolist())
    ]
    of, arrives = np.repeat(np.arange(count), 2), np.arange(2 * count) % 2 == 0
    start_of, end_of = collectives.start[of], np.where(arrives, collectives.start[of], collectives.end[of])
    low = builder.add(
        np.where(arrives, Node.ARRIVAL, Node.TRANSFER),
        2 * count,
        dur=end_of - start_of,
        start=start_of,
        end=end_of,
        lane=collectives.thread[of],
        call=np.array(calls, np.int64)[of],
        work=int(Kind.COMMUNICATION),
        step=builder.nodes["step"][issuers][of],
    )
    columns = (collectives.start, collectives.end, collectives.issued, collectives.thread, collectives.worker, issuers)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for arrival, (start, end, issued, thread, worker, issuer) in zip(range(low, low + 2 * count, 2), rows, strict=True):
        builder.edge(arrival, arrival + 1, 0, Edge.JOIN)
        busy = worker and ended.get(thread, issued) > issued
        (queued if busy else free).append(start - (ended[thread] if busy else issued))
        edges.append((issuer, arrival, Edge.LAUNCH))
        if worker:
            if thread in last:
                edges.append((last[thread], arrival, Edge.STREAM))
            last[thread], ended[thread] = arrival + 1, end
    dispatch, pause = mean(free, DISPATCH_NS), mean(queued, QUEUE_NS)
    for src, dst, why in edges:
        builder.edge(src, dst, pause if why == Edge.STREAM else dispatch, why)


def _wait(
    trace: Trace,
    builder: Builder,
    collectives: Collectives,
    waits: list[Wait],
    waiters: list[int],
    chain: tuple[Times, Times, Points],
) -> None:
    transfers = np.flatnonzero(builder.nodes["kind"] == Node.TRANSFER)
    transfer_of = dict(zip(builder.nodes["call"][transfers].tolist(), transfers.tolist(), strict=True))
    reached = [max((int(collectives.end[place]) for place in wait.sources), default=NA) for wait in waits]
    blocked = [at > wait.begin for at, wait in zip(reached, waits, strict=True)]
    woke = mean([wait.end - at for at, wait, held in zip(reached, waits, blocked, strict=True) if held], WOKE_NS)
    for wait, node, held in zip(waits, waiters, blocked, strict=True):
        if held:
            builder.nodes["dur"][node] = 0
        for place in wait.sources:
            builder.edge(transfer_of[place], node, woke if held else 0, Edge.SYNC)
    seen = {place for wait in waits for place in wait.sources}
    _unseen(trace, builder, collectives, [p for p in range(len(collectives.rows)) if p not in seen], transfer_of, chain)


def _unseen(
    trace: Trace,
    builder: Builder,
    collectives: Collectives,
    places: list[int],
    transfer_of: dict[int, int],
    chain: tuple[Times, Times, Points],
) -> None:
    """What was done in time, so that its wait left no mark: the optimizer, or the end, can't do without."""
    host, (own, ends, points) = trace["host_events"], chain
    named = own[trace.names.matching(lambda name: name.startswith(_OPTIMIZER))[host["name"][own]]]
    begins = np.sort(update_begins(host, trace.names, named))
    for place in places:
        at = int(np.searchsorted(begins, collectives.issued[place], "right"))
        since = max(int(collectives.end[place]), int(begins[at]) if at < len(begins) else 0)
        point = int(np.searchsorted(points.at, since, "left"))
        if point < len(points.at):
            # To the point's end: the segment before it may begin earlier than the operation was done.
            segment = int(ends[point])
            builder.edge(transfer_of[place], segment, -int(builder.nodes["dur"][segment]), Edge.SYNC)


def _mark(builder: Builder, end: int) -> int:
    """A node that begins where the segment up to a point ends."""
    at, step = (int(builder.nodes[name][end]) for name in ("end", "step"))
    mark = builder.add(Node.MARK, 1, start=at, end=at, step=step)
    builder.edge(end, mark, 0, Edge.PROGRAM)
    return mark
