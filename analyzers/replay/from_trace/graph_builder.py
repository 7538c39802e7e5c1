"""Builds one rank's graph node by node: the chain of its host, what the host launches, what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from gpuscope.analyzers.facts.message_sizes.accumulated_gradients import EVALUATED, in_hooks
from gpuscope.analyzers.replay.graph import CAUSES, NONE, Call, Edge, Graph, Node, edge_columns, node_columns
from gpuscope.catalogue.cause_table import COVERING
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import EMPTY, Spans, join, measure_within, subtract, union
from gpuscope.trace.schema import Category
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

ISSUES = (
    "c10d::allreduce", "c10d::allgather", "c10d::_allgather", "c10d::reduce_scatter", "c10d::_reduce_scatter",
    "c10d::broadcast", "c10d::reduce_", "c10d::gather", "c10d::scatter", "c10d::alltoall", "c10d::barrier",
    "c10d::send", "c10d::recv",
)  # fmt: skip
"""Operators that issue a collective."""
_BACKWARD = (EVALUATED, "gpuscope::backward")


@dataclass(frozen=True)
class Point:
    """Something the host does at an instant: a launch or issue, or the return of a call that waited."""

    at: int
    """ns: when it launches or issues; when the call returned."""
    begin: int
    """ns: when a call that waits began; `at` of everything else."""
    waits: bool = False
    label: str = ""
    step: int = 0
    site: str = ""
    """The place of the program that waits."""
    turned: bool = False
    """By another thread than what is before it."""


@dataclass
class Builder:
    """Nodes and edges of one rank so far."""

    rank: int
    nodes: list[dict[str, int]] = field(default_factory=list)
    edges: list[tuple[int, int, int, int]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def node(self, kind: Node, **columns: int) -> int:
        """Add a node; its number."""
        self.nodes.append({"kind": kind, "rank": self.rank, **columns})
        return len(self.nodes) - 1

    def edge(self, src: int, dst: int, lag: int, why: Edge) -> None:
        """`dst` starts at the earliest `lag` ns after `src` ends."""
        self.edges.append((src, dst, lag, why))

    def label(self, text: str) -> int:
        """The place of a label."""
        return self.labels.setdefault(text, len(self.labels)) if text else NONE

    def call(self, call: Call) -> int:
        """The place of a call."""
        self.calls.append(call)
        return len(self.calls) - 1

    def host(self, points: Sequence[Point], origin: int, parts: Mapping[str, Spans]) -> list[int]:
        """The chain of the host from `origin` on; per point the node whose end is that point.

        Before a point that waits stands a segment of what the host did until then; the wait itself takes its
        whole measured time here, and `waited` shortens it where an operation explains it.
        """
        begin = np.array([origin, *(point.at for point in points[:-1])], np.int64)
        end = np.array([max(point.begin, before) for point, before in zip(points, begin.tolist(), strict=True)])
        columns = {name: measure_within(spans, begin, end) for name, spans in parts.items()}
        found: list[int] = []
        for place, point in enumerate(points):
            low, high = int(begin[place]), int(end[place])
            node = self.node(
                Node.HOST, dur=high - low, start=low, end=high, step=point.step, turned=point.turned,
                **{name: int(column[place]) for name, column in columns.items()},
            )  # fmt: skip
            if found:
                self.edge(found[-1], node, 0, Edge.PROGRAM)
            else:
                self.nodes[node]["release"] = origin
            if point.waits:
                segment, node = node, self.node(
                    Node.WAIT, dur=point.at - high, start=high, end=point.at, step=point.step,
                    label=self.label(point.label), site=self.label(point.site),
                )  # fmt: skip
                self.edge(segment, node, 0, Edge.PROGRAM)
            found.append(node)
        return found

    def finish(self, marks: Sequence[int]) -> Graph:
        """The graph."""
        return Graph(
            node_columns(self.nodes), edge_columns(self.edges), tuple(self.calls), tuple(self.labels),
            {self.rank: np.array(marks, np.int64)},
        )  # fmt: skip


def causes(trace: Trace, rows: Times, threads: Times) -> dict[str, Spans]:
    """Where host events (`rows`: of one rank) of these threads show a cause that a change can remove."""
    host = trace["host_events"]
    rows = rows[np.isin(host["thread"][rows], threads)]
    found: dict[str, Spans] = {}
    taken = EMPTY
    for cause, (categories, predicate) in COVERING:
        picked = rows[np.isin(host["category"][rows], categories)]
        picked = picked[trace.names.matching(predicate)[host["name"][picked]]]
        spans = subtract(union(host["start"][picked], host["end"][picked]), taken)
        found[cause] = join(found.get(cause, EMPTY), spans)
        taken = join(taken, spans)
    return {cause: found.get(cause, EMPTY) for cause in CAUSES}


def backward(trace: Trace, rows: Times) -> Spans:
    """When a rank was in its backward pass, from its host events: where autograd's are not recorded (in CUDA graphs),
    from the end of DDP's forward pass to the next one or the optimizer."""
    host = trace["host_events"]
    rows = rows[np.isin(host["category"][rows], (Category.OP, Category.ANNOTATION))]

    def picked(start: str | tuple[str, ...]) -> Times:
        return rows[trace.names.matching(lambda name: name.startswith(start))[host["name"][rows]]]

    evaluated, forward, stepped = picked(_BACKWARD), picked("DistributedDataParallel.forward"), picked("Optimizer.")
    if len(evaluated) or not len(stepped):
        return union(host["start"][evaluated], host["end"][evaluated])
    ends, bounds = host["end"][forward], np.sort(host["start"][np.concatenate((forward, stepped))])
    behind = np.searchsorted(bounds, ends)
    closed = behind < len(bounds)
    return union(ends[closed], bounds[behind[closed]])


def passes(behind: Spans, launched: Times, at: Times) -> Times:
    """Backward passes begun until each instant: something was `launched` within one (`behind`) after something that was
    not."""
    launched = np.sort(launched)
    inside = measure_within(behind, launched, launched + 1) > 0
    begun = launched[inside & ~np.append(False, inside[:-1])]
    return np.searchsorted(begun, at, "right")


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
    for which in np.unique(step[hooked]).tolist():
        own = hooked & (step == which)
        found[own] = issued[own].max()
    return found
