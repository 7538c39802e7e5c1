"""Builds one rank's graph: the chain of its host, what the host launches, what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np

from gpuscope.analyzers.facts.message_sizes.accumulated_gradients import EVALUATED, in_hooks
from gpuscope.analyzers.replay.graph import (
    CAUSES,
    EDGE_COLUMNS,
    NODE_COLUMNS,
    NONE,
    Call,
    Edge,
    Graph,
    Node,
    edge_columns,
    node_columns,
    node_defaults,
)
from gpuscope.catalogue.cause_table import COVERING
from gpuscope.trace.columns.distinct import among, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Times, compact, those
from gpuscope.trace.intervals import EMPTY, Spans, join, measure_within, subtract, union, union_at
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

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
    basis = int(table["size_basis"][row])
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
    )
