"""Builds one rank's graph: the chain of its host, what the host launches, what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView, StepWindow
from gpuscope.analyzers.facts.message_sizes import EVALUATED, accumulated, in_hooks
from gpuscope.analyzers.replay.graph import (
    CAUSES,
    EDGE_COLUMNS,
    NODE_COLUMNS,
    NONE,
    Call,
    Edge,
    Gradient,
    Graph,
    Node,
    edge_columns,
    node_columns,
    node_defaults,
)
from gpuscope.catalogue.suggestion import COVERING
from gpuscope.trace.intervals import EMPTY, Spans, join, measure_within, subtract, union, union_at
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import Mask, Table, Times, among, compact, distinct_values, those
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Which steps of a rank are replayed: a few whole ones from the middle, so that memory stays bounded.

STEPS_KEPT = 10
"""Steps replayed at most: enough to see how steps vary, a bounded graph for runs of thousands."""
STEPS_WANTED = 3
"""Steps below which further ranks are not worth what they take: the first one begins as recorded, whatever changes."""
EVENTS_KEPT = 20_000
"""Device events per rank up to which further steps are taken: a graph of them takes about half a second."""
LARGEST_STEP = 100_000
"""Device events of the largest step that is still kept: about 30 MB of graph."""
RUN_KEPT = 400_000
"""Device events over all ranks: a graph of them takes some hundred MB, a prediction some ten seconds."""


UNLINKED_FRAC = 0.05
"""Share of operations whose launch may be unknown: each keeps its measured start, and no change moves it."""


@dataclass(frozen=True)
class Window:
    """The steps replayed, whole and in a row; where the trace has no steps, one of all it holds."""

    steps: tuple[StepWindow, ...]
    closed: bool
    """Whether it ends where the trace does, so that its last step ends with its last device event."""

    @property
    def start(self) -> int:
        """ns."""
        return self.steps[0].start

    @property
    def end(self) -> int:
        """ns."""
        return self.steps[-1].end


def window(trace: Trace, view: LaneView, ranks: int = 1) -> Window | None:
    """The steps of a lane of a run of so many ranks to replay; None where not even one of them is small enough.

    The middle ones of the longest run of steps whose launches are recorded: profilers lose calls at the start. A rank
    does not know which of them are steady on all ranks, so its own durations do not choose: all ranks of a run that
    record the same keep the same ones, and the replay of the run looks at the steady ones among them.
    """
    steps = [step for step in view.steps if step.step != NA] or [StepWindow(NA, *view.window)]
    device = trace["device_events"]
    bounds = np.array([step.start for step in steps] + [steps[-1].end])
    places = np.searchsorted(device["start"][view.rows], bounds)
    low, high = _longest(_linked(device, view.rows, places)) if view.lane.device != NA else (0, len(steps))
    largest = max(1, int(np.diff(places)[low:high].max()))
    share = RUN_KEPT // ranks
    if largest > min(LARGEST_STEP, share):
        return None
    kept = min(STEPS_KEPT, max(1, min(EVENTS_KEPT, share) // largest), high - low)
    first = low + (high - low - kept) // 2
    chosen = steps[first : first + kept]
    closed = chosen[-1].end == view.window[1]
    # A single annotated step begins before its device works and may end after that: none of that is replayed.
    begin, end = int(device["start"][view.rows].min()), int(device["end"][view.rows].max())
    chosen[0] = StepWindow(chosen[0].step, max(chosen[0].start, begin), chosen[0].end)
    chosen[-1] = StepWindow(chosen[-1].step, chosen[-1].start, min(chosen[-1].end, end))
    return Window(tuple(chosen), closed)


def _linked(device: Table, rows: Times, places: Times) -> Mask:
    """Per step, whether the launches of its operations are recorded, but for a few."""
    lost = np.concatenate(([0], np.cumsum((device.at("launch", rows) == NA) & (device.at("correlation", rows) != NA))))
    counts = np.diff(places)
    return np.asarray(lost[places[1:]] - lost[places[:-1]] <= UNLINKED_FRAC * counts)


def _longest(linked: Mask) -> tuple[int, int]:
    """The longest run, as [low, high); all where there is none: then the graph says what is missing."""
    best, begin = (0, 0), 0
    for place, good in enumerate([*linked.tolist(), False]):
        if not good:
            best = max(best, (begin, place), key=lambda run: run[1] - run[0])
            begin = place + 1
    return best if best[1] else (0, len(linked))


# Which gradients a bucket holds, and when each was there: what other buckets rest on.

ELEMENT_BYTES = (1, 2, 4, 8)
PADDING = 0.02
"""By which a bucket's bytes may exceed those of its gradients: alignment."""


def with_gradients(
    trace: Trace, rank: int, hooks: Spans, calls: Sequence[Call], issued: Times, begun: Times
) -> list[Call]:
    """The calls of a rank with gradients' hooks, each issued at an instant, with the gradients that they hold.

    A call that a gradient's hook issued holds those that became ready since the one before was issued (and since
    the window, the first of what has `begun`), in the backward pass it is of: passes before may have accumulated alone
    (`no_sync`). Calls behind the backward pass, with no gradient between them, hold all since then together, and are
    taken to send them in the order in which they became ready. Where recorded gradients do not make up a call's bytes,
    they stay unknown.
    """
    gradients_of = accumulated(trace, rank)
    at, elements = gradients_of.at, gradients_of.elements
    hooked = in_hooks(hooks, issued)
    reducing = [
        place
        for place in np.argsort(issued, kind="stable").tolist()
        if calls[place].op == "all_reduce" or (calls[place].op == "reduce_scatter" and not hooked[place])
    ]
    ready = np.searchsorted(at, issued, "right")
    found = list(calls)
    first = np.searchsorted(at, begun, "right")
    own_pass = first[np.maximum(np.searchsorted(begun, issued, "right") - 1, 0)]
    groups = [reducing]
    # What another group reduces in between (tensor parallelism) may hold none of them.
    groups += [
        [place for place in reducing if calls[place].group == group]
        for group in dict.fromkeys(calls[place].group for place in reducing)
    ]
    since = int(first[0]), own_pass
    each = [dict(_by_issue(own, hooked, ready, since, (at, elements), calls, issued)) for own in groups]

    def explained(held: dict[int, tuple[Gradient, ...]]) -> tuple[int, int]:
        by_hooks = sum(bool(hooked[place]) for place in held)
        # Where hooks send gradients, others with the bytes of some have them by coincidence.
        return by_hooks, -len(held) if by_hooks else len(held)

    for place, gradients in max(each, key=explained).items():
        found[place] = replace(calls[place], gradients=gradients)
    return found


def _by_issue(
    places: Sequence[int],
    hooked: Mask,
    ready: Times,
    since: tuple[int, Times],
    gradients: tuple[Times, Times],
    calls: Sequence[Call],
    issued: Times,
) -> Iterator[tuple[int, tuple[Gradient, ...]]]:
    """Of collectives in order of issue, each with what became ready since the one before (at first: `since` a place),
    of its own pass if that makes up its bytes."""
    (at, elements), (low, own_pass) = gradients, since
    for _, same in groupby(places, lambda place: place if hooked[place] else -1 - int(ready[place])):
        own = list(same)
        high = int(ready[own[0]])
        for first in dict.fromkeys((max(low, int(own_pass[own[0]])), low)):
            if held := list(_held(at[first:high], elements[first:high], own, calls, issued)):
                yield from held
                break
        low = high


def _held(
    at: Times, elements: Times, places: Sequence[int], calls: Sequence[Call], issued: Times
) -> Iterator[tuple[int, tuple[Gradient, ...]]]:
    """The calls (by place) among which these gradients were sent one after the other, each with what it holds."""
    sizes = [calls[place].bytes or 0 for place in places]
    total, count = sum(sizes), int(elements.sum())
    if not count or not bool(elements.all()) or not all(sizes):
        return
    if not any(0 <= total / (count * own) - 1 <= PADDING for own in ELEMENT_BYTES):
        return
    ends = np.rint(np.cumsum(elements) / count * total).astype(np.int64)
    begin = 0
    for place, size in zip(places, sizes, strict=True):
        first = int(np.searchsorted(ends, begin, "right"))
        last = int(np.searchsorted(ends, begin + size, "left"))
        cuts = np.minimum(ends[first : last + 1], begin + size)
        early = issued[place] - at[first : last + 1]
        if calls[place].backward and last + 1 == len(ends):
            early[-1] = 0  # what the bucket waited for
        bytes_of = np.diff(cuts, prepend=begin).tolist()
        yield place, tuple(Gradient(*pair) for pair in zip(bytes_of, early.tolist(), strict=True))
        begin += size


ISSUES = (
    "c10d::allreduce",
    "c10d::allgather",
    "c10d::_allgather",
    "c10d::reduce_scatter",
    "c10d::_reduce_scatter",
    "c10d::broadcast",
    "c10d::reduce_",
    "c10d::gather",
    "c10d::scatter",
    "c10d::alltoall",
    "c10d::barrier",
    "c10d::send",
    "c10d::recv",
)
"""Operators that issue a collective."""
_BACKWARD = (EVALUATED, "gpuscope::backward")


@dataclass(frozen=True)
class Points:
    """What the host does at instants, in order: a launch or issue, or the return of a call that waited."""

    at: Times
    """ns: when it launches or issues; when the call returned."""
    begin: Times
    """ns: when a call that waits began; `at` of everything else."""
    step: Times
    waits: Mask
    labels: Sequence[str]
    """Of those that wait."""
    sites: Sequence[str]
    """The places of the program where they do."""
    threads: Times
    """On which thread; `NA` where that is not known."""


@dataclass
class Builder:
    """Nodes and edges of one rank so far."""

    rank: int
    nodes: dict[str, Times] = field(default_factory=lambda: node_columns([]))
    edges: list[tuple[int, int, int, int]] = field(default_factory=list)
    """The latest."""
    joined: list[dict[str, Times]] = field(default_factory=list)
    """Those before them, as columns."""
    calls: list[Call] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def add(self, kind: Node | Times, count: int, **columns: int | Times) -> int:
        """Add so many nodes; the number of the first. What is not given is absent."""
        given = {**node_defaults(), "kind": kind, "rank": self.rank, **columns}
        for name in NODE_COLUMNS:
            self.nodes[name] = np.concatenate((self.nodes[name], np.full(count, given[name], np.int64)))
        return len(self.nodes["kind"]) - count

    def edge(self, src: int, dst: int, lag: int, why: Edge) -> None:
        """`dst` starts at the earliest `lag` ns after `src` ends."""
        self.edges.append((src, dst, lag, why))

    def join(self, src: Times, dst: Times, lag: int | Times, why: Edge | Times) -> None:
        """As `edge`, one for each `src`."""
        lags, whys = (np.full(len(src), column, np.int64) for column in (lag, why))
        self.joined += [edge_columns(self.edges), dict(zip(EDGE_COLUMNS, (src, dst, lags, whys), strict=True))]
        self.edges = []

    def label(self, text: str) -> int:
        """The place of a label."""
        return self.labels.setdefault(text, len(self.labels)) if text else NONE

    def call(self, call: Call) -> int:
        """The place of a call."""
        self.calls.append(call)
        return len(self.calls) - 1

    def host(self, points: Points, origin: int, parts: Mapping[str, Spans]) -> Times:
        """The chain of the host from `origin` on; per point the node whose end is that point.

        Before a point that waits stands a segment of what the host did until then; the wait itself takes its
        whole measured time here, and `waited` shortens it where an operation explains it.
        """
        begin = np.append(origin, points.at[:-1])
        end = np.maximum(points.begin, begin)
        point = np.repeat(np.arange(len(begin)), 1 + points.waits)
        behind = np.append(False, point[1:] == point[:-1])  # the wait behind its segment
        low, high = np.where(behind, end[point], begin[point]), np.where(behind, points.at[point], end[point])
        named = np.full((2, len(point)), NONE, np.int64)
        for place, *texts in zip(np.flatnonzero(behind).tolist(), points.labels, points.sites, strict=True):
            named[:, place] = [self.label(text) for text in texts]
        columns = {name: np.where(behind, 0, measure_within(own, begin, end)[point]) for name, own in parts.items()}
        first = self.add(
            np.where(behind, Node.WAIT, Node.HOST),
            len(point),
            dur=high - low,
            start=low,
            end=high,
            step=points.step[point],
            label=named[0],
            site=named[1],
            thread=points.threads[point],
            **columns,
        )
        self.nodes["release"][first] = origin
        chain = np.arange(first, first + len(point))
        self.join(chain[:-1], chain[1:], 0, Edge.PROGRAM)
        return np.asarray(chain[np.append(~behind[1:], True)], np.int64)

    def finish(self, marks: Sequence[int]) -> Graph:
        """The graph."""
        parts = [*self.joined, edge_columns(self.edges)]
        edges = {name: np.concatenate([part[name] for part in parts]) for name in EDGE_COLUMNS}
        return Graph(
            {name: compact(column) for name, column in self.nodes.items()},
            edges,
            tuple(self.calls),
            tuple(self.labels),
            {self.rank: np.array(marks, np.int64)},
        )


def causes(trace: Trace, rows: Times, threads: Times) -> dict[str, Spans]:
    """Where host events (`rows`: of one rank) of these threads show a cause that a change can remove."""
    host = trace["host_events"]
    rows = rows[among(host.at("thread", rows), threads)]
    found: dict[str, Spans] = {}
    taken = EMPTY
    for cause, (categories, predicate) in COVERING:
        picked = _called(trace, rows, categories, predicate)
        spans = subtract(union_at(host["start"], host["end"], picked), taken)
        found[cause] = join(found.get(cause, EMPTY), spans)
        taken = join(taken, spans)
    return {cause: found.get(cause, EMPTY) for cause in CAUSES}


def _called(trace: Trace, rows: Times, categories: Iterable[int], predicate: Callable[[str], bool]) -> Times:
    """Those host events that are of some categories and whose names the predicate wants."""
    host, wanted = trace["host_events"], trace.names.matching(predicate)
    return those(rows, lambda rows: wanted[host["name"][rows]] & among(host["category"][rows], categories))


def backward(trace: Trace, rows: Times) -> Spans:
    """When a rank was in its backward pass, from its host events: where autograd's are not recorded (in CUDA graphs),
    from the end of DDP's forward pass to the next one or the optimizer."""
    host = trace["host_events"]

    def picked(start: str | tuple[str, ...]) -> Times:
        return _called(trace, rows, (Category.OP, Category.ANNOTATION), lambda name: name.startswith(start))

    evaluated, forward, stepped = picked(_BACKWARD), picked("DistributedDataParallel.forward"), picked("Optimizer.")
    if len(evaluated) or not len(stepped):
        return union_at(host["start"], host["end"], evaluated)
    ends, bounds = host["end"][forward], np.sort(host["start"][np.concatenate((forward, stepped))])
    behind = np.searchsorted(bounds, ends)
    closed = behind < len(bounds)
    return union(ends[closed], bounds[behind[closed]])


def passes(behind: Spans, launched: Times) -> Times:
    """When backward passes began: something was `launched` within one (`behind`) after something that was not."""
    launched = np.sort(launched)
    inside = measure_within(behind, launched, launched + 1) > 0
    return np.asarray(launched[inside & ~np.append(False, inside[:-1])])


def median(values: Times, otherwise: int) -> int:
    """The median, or `otherwise` of nothing."""
    return int(np.median(values)) if len(values) else otherwise


def mean(values: Sequence[int], otherwise: int) -> int:
    """The mean, or `otherwise` of nothing."""
    return round(sum(values) / len(values)) if values else otherwise


def not_before(hooks: Spans, issued: Times, step: Times) -> Times:
    """Per collective issued at an instant in a step, when it can be waited for at the earliest: from its issue on; one
    that a gradient's hook issued, from the issue of its step's last such one on. A host may be steps ahead of its
    device: `step` is the number of the step that a collective is part of, whenever it was issued."""
    found = issued.copy()
    hooked = in_hooks(hooks, issued)
    for which in distinct_values(step[hooked]).tolist():
        own = hooked & (step == which)
        found[own] = issued[own].max()
    return found


def call_of(trace: Trace, row: int, behind: bool) -> Call:
    """A row of `collectives` as a call."""
    table, names = trace["collectives"], trace.names
    size, members, group = int(table["bytes"][row]), int(table["group_size"][row]), int(table["group"][row])
    basis, dtype = int(table["size_basis"][row]), int(table["dtype"][row])
    return Call(
        rank=int(table["rank"][row]),
        op=names[int(table["op"][row])],
        start=int(table["start"][row]),
        end=int(table["end"][row]),
        bytes=None if size == NA else size,
        group="" if group == NO_NAME else names[group],
        group_size=None if members == NA else members,
        backward=behind,
        size_basis="" if basis == NO_NAME else names[basis],
        dtype="" if dtype == NO_NAME else names[dtype],
    )
