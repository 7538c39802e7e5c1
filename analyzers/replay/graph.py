"""The graph of a replay: what happened, how long it took, and what each thing waited for.

One node per host segment between two points at which the host launches or waits, per device operation, per
arrival and transfer of a collective. Durations are as measured; start times are not kept to replay with, they
follow from the edges. Columns are numpy arrays, so a rank of 50,000 nodes takes some megabytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum, IntFlag
from functools import cached_property
from itertools import chain
from typing import Any
from zlib import crc32

import numpy as np

from gpuscope.catalogue.suggestion import SHOWN_BY_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.when_used import dataclass

CAUSES = tuple(cause.code for cause in SHOWN_BY_NAME)
"""Parts of a host segment that a change can take away (docs/definitions.md: «Stalls»)."""


NONE = -1
"""No place: of a node without a call or label, of what has nothing before it."""


QUEUE = "launch queue"
"""Label of a wait for room in the launch queue."""
ALLOCATION = "allocation"
"""Label of an allocator call that waits for all the device's work; its own time is the node's `allocator`."""
COPY_CALL_NS = 6_000
"""What issuing an asynchronous copy costs the host, 5–7 µs as of a launch."""


class UnreplayableError(Exception):
    """Why a trace, or a change to it, can't be replayed, and what to record so that it can; `code` names a reason that
    rules ask for."""

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code


class Node(IntEnum):
    """What a node is."""

    HOST = 0
    """The launching thread (or, without a device, the training thread) between two points."""
    WAIT = 1
    """A call that returns when device work or a collective is done."""
    DEVICE = 2
    """A kernel or copy."""
    ARRIVAL = 3
    """A rank ready for a collective; takes no time."""
    TRANSFER = 4
    """A collective or message from the last arrival on, as one rank saw it."""
    JOIN = 5
    """All ranks of a collective have arrived."""
    MARK = 6
    """The end of what is replayed, or a step's begin on a training thread."""


class Edge(IntEnum):
    """Why one node waits for another."""

    PROGRAM = 0
    """Order of a thread."""
    LAUNCH = 1
    """The host's launch or issue → the operation."""
    STREAM = 2
    """Order of a stream, or of a thread that carries out collectives."""
    EVENT = 3
    """An operation on another stream."""
    SYNC = 4
    """An operation → the call that waited for it."""
    JOIN = 5
    """Ranks of a collective."""


def operation_number(operator: str) -> int:
    """The number that stands for an operator's name in a node, the same in every process; never 0."""
    return crc32(operator.encode()) & 0x7FFFFFFF or 1


class Trait(IntFlag):
    """What a kernel is part of."""

    LAYOUT = 1
    """A conversion between the layouts of images."""
    ATTENTION = 2
    """An attention that runs as products with a softmax between them."""
    FLASH_2 = 4
    """FlashAttention 2."""
    ODD = 8
    """A product with sizes that tensor cores handle badly."""
    BY_MEMORY = 32
    """A kernel whose floor is set by its bytes, not by its FLOPs."""
    GRADIENT_COPY = 16
    """A copy between a gradient and DDP's bucket, which gradients that are views of the buckets spare."""


NODE_COLUMNS = (
    "kind",
    "rank",
    "lane",
    "dur",
    "release",
    "step",
    "start",
    "end",
    "work",
    "call",
    "label",
    "bytes",
    "kernel",
    "site",
    "compute",
    "staging",
    "unlaunching",
    "optimizing",
    "thread",
    "category",
    "precision",
    "floor",
    "chain",
    "operation",
    "traits",
    *CAUSES,
)
EDGE_COLUMNS = ("src", "dst", "lag", "why")


EdgeRow = tuple[int, int, int, int]
"""An edge's columns."""


@dataclass(frozen=True)
class Gradient:
    """Part of a collective: its bytes, and how long before the collective's issue they were there, in ns."""

    bytes: int
    early: int


@dataclass(frozen=True)
class Call:
    """A collective or message as one rank saw it."""

    rank: int
    op: str
    start: int
    """As recorded, ns on the rank's own clock: with rank and end it identifies the row of `collectives`."""
    end: int
    bytes: int | None
    """Of the whole array."""
    group: str
    group_size: int | None
    backward: bool
    """Issued while the rank was in its backward pass."""
    issue: int = 0
    """ns of its thread that issuing it took; 0 where that is not recorded."""
    gradients: tuple[Gradient, ...] = ()
    """What it holds, in the order in which it became ready; empty where that is not recorded."""
    size_basis: str = ""
    """What `bytes` is estimated from; empty where it is recorded."""
    behind: bool = False
    """Issued behind the first launch of its step's backward pass, and not within one."""
    passes: int = 0
    """Backward passes begun in the window until its issue: of accumulated gradients, several in a step."""
    by_structure: bool = False
    """Whether it is taken to carry gradients by its sizes and its place in the step, with no backward pass recorded."""
    dtype: str = ""
    """Of its elements; empty where that is not recorded."""


@dataclass(frozen=True)
class Graph:
    """`nodes[column]` and `edges[column]` are int64 arrays of one length each.

    Of a node: `kind` (`Node`), `rank`, `lane` (stream or thread; -1 the host), `dur` ns, `release` (never starts
    before, ns; `NA` where nothing of before the window holds it), `step` (place among the replayed steps),
    `start` and `end` as measured, ns, for comparison only, `work` (`Kind` of a device operation), `call` (place in
    `calls`), `label` and `site` (place in `labels`; a site is where the
    program waits), `bytes` (of a copy), `kernel` (the same number for kernels of
    one name on one rank); of a kernel `category` and `precision` (codes of `kernel_facts`), `floor` (ns at the device's
    peaks; 0 where not known), `chain` (the chain of memory-bound kernels it is in, -1 outside one), `operation`
    (`operation_number` of its operator, 0 where its work is not known) and `traits` (bits of `Trait`); `compute`,
    `staging` (of copies from pageable memory) and the causes: ns of a host segment's `dur`; `thread`: which one it is
    of.
    Of an edge: `src` ends `lag` ns before `dst` starts at the earliest; `why` (`Edge`).
    """

    nodes: dict[str, Times]
    edges: dict[str, Times]
    calls: tuple[Call, ...]
    labels: tuple[str, ...]
    marks: dict[int, Times]
    """Per rank, the nodes whose starts bound its steps: one more than steps."""
    inferred: int = 0
    """Waits of a stream for another that are not recorded but inferred from when operations start."""

    def __len__(self) -> int:
        return len(self.nodes["kind"])

    def check(self) -> None:
        """Raise `ValueError` where columns are missing or of several lengths, or lead to what is not there."""
        for name, columns, expected in (("nodes", self.nodes, NODE_COLUMNS), ("edges", self.edges, EDGE_COLUMNS)):
            if set(columns) != set(expected) or len({len(column) for column in columns.values()}) != 1:
                raise ValueError(f"{name} of a graph without columns of one length each")
        places = [(self.edges[side], 0, len(self)) for side in ("src", "dst")]
        places += [(self.nodes["call"], NONE, len(self.calls)), (self.nodes["kind"], 0, len(Node))]
        places += [(self.nodes[name], NONE, len(self.labels)) for name in ("label", "site")]
        places += [(marks, 0, len(self)) for marks in self.marks.values()]
        if any(len(column) and not low <= column.min() <= column.max() < limit for column, low, limit in places):
            raise ValueError("a graph leads to what is not there")

    def with_nodes(self, **columns: Array) -> Graph:
        """The same graph with other values in some columns of its nodes."""
        return replace(self, nodes={**self.nodes, **columns})

    def with_edges(self, **columns: Array) -> Graph:
        """The same graph with other values in some columns of its edges."""
        return replace(self, edges={**self.edges, **columns})

    def keep_edges(self, keep: Mask) -> Graph:
        """Only those edges."""
        return replace(self, edges={name: column[keep] for name, column in self.edges.items()})

    def add(
        self, nodes: Sequence[dict[str, int]], edges: Sequence[tuple[int, int, int, int]], calls: Iterable[Call] = ()
    ) -> Graph:
        """With further nodes (numbered from `len(self)` on), edges (src, dst, lag, why) and calls."""
        more = node_columns(nodes) if nodes else {}
        return replace(
            self,
            nodes=self.nodes | {name: np.concatenate((self.nodes[name], column)) for name, column in more.items()},
            edges={name: np.concatenate((self.edges[name], column)) for name, column in edge_columns(edges).items()},
            calls=(*self.calls, *calls),
        )

    def of(self, *kinds: Node) -> Mask:
        """Per node, whether it is of one of these kinds."""
        found = np.zeros(len(self), np.bool_)
        for kind in kinds:  # two comparisons take a tenth of numpy.isin
            found |= self.nodes["kind"] == int(kind)
        return found

    def blocking(self) -> Mask:
        """Per node, whether it is a call that waits; a launch into a full queue is none, nor is an allocation."""
        others = np.array([label in (QUEUE, ALLOCATION) for label in self.labels] + [False], np.bool_)
        return np.asarray(self.of(Node.WAIT) & ~others[self.nodes["label"]])

    def allocating(self) -> Mask:
        """Per node, whether it is an allocator call that waits for the device."""
        own = np.array([label == ALLOCATION for label in self.labels] + [False], np.bool_)
        return np.asarray(self.of(Node.WAIT) & own[self.nodes["label"]])

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """What rewrites of this very graph keep for each other."""
        return {}

    @cached_property
    def around_calls(self) -> tuple[Mapping[int, list[EdgeRow]], Mapping[int, list[EdgeRow]]]:
        """Edges into arrivals by arrival, and edges from transfers by transfer, in their order."""
        into: defaultdict[int, list[EdgeRow]] = defaultdict(list)
        out: defaultdict[int, list[EdgeRow]] = defaultdict(list)
        src, dst, lag, why = (self.edges[name] for name in EDGE_COLUMNS)
        arrives, leaves = self.of(Node.ARRIVAL)[dst], self.of(Node.TRANSFER)[src]
        for found, which, key in ((into, arrives, 1), (out, leaves, 0)):
            for row in zip(*(column[which].tolist() for column in (src, dst, lag, why)), strict=True):
                found[row[key]].append(row)
        return into, out

    @property
    def ranks(self) -> list[int]:
        """The ranks replayed, ascending."""
        return sorted(self.marks)


_DEFAULTS = {
    "release": NA,
    "call": -1,
    "label": -1,
    "site": -1,
    "kernel": -1,
    "lane": -1,
    "thread": NA,
    "start": NA,
    "end": NA,
    "work": -1,
    "category": -1,
    "chain": -1,
}


def node_defaults() -> dict[str, int]:
    """What stands in each column of a node where nothing is given."""
    return {name: _DEFAULTS.get(name, 0) for name in NODE_COLUMNS}


def node_columns(nodes: Sequence[dict[str, int]]) -> dict[str, Times]:
    """Columns from nodes given as dicts; what is not given is 0, or absent."""
    found = {name: np.full(len(nodes), absent, np.int64) for name, absent in node_defaults().items()}
    alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, node in enumerate(nodes):
        alike[tuple(node)].append(place)
    for names, places in alike.items():
        rows = np.array([tuple(nodes[place].values()) for place in places], np.int64)
        for name, column in zip(names, rows.T, strict=True):
            found[name][places] = column
    return found


def edge_columns(edges: Sequence[tuple[int, int, int, int]]) -> dict[str, Times]:
    """Columns from edges given as (src, dst, lag, why)."""
    table = np.fromiter(chain.from_iterable(edges), np.int64).reshape(-1, len(EDGE_COLUMNS))
    return {name: table[:, place].copy() for place, name in enumerate(EDGE_COLUMNS)}


def join(graphs: Sequence[Graph]) -> Graph:
    """Graphs side by side, as one; nothing connects them yet."""
    at, calls, labels = 0, 0, 0
    nodes: dict[str, list[Times]] = {name: [] for name in NODE_COLUMNS}
    edges: dict[str, list[Times]] = {name: [] for name in EDGE_COLUMNS}
    marks: dict[int, Times] = {}
    for graph in graphs:
        shift: dict[str, Any] = {"call": calls, "label": labels, "site": labels}
        for name in NODE_COLUMNS:
            column = graph.nodes[name]
            nodes[name].append(np.where(column >= 0, column + shift[name], column) if name in shift else column)
        for name in EDGE_COLUMNS:
            edges[name].append(graph.edges[name] + (at if name in ("src", "dst") else 0))
        marks.update({rank: own + at for rank, own in graph.marks.items()})
        at, calls, labels = at + len(graph), calls + len(graph.calls), labels + len(graph.labels)
    return Graph(
        {name: np.concatenate(columns) for name, columns in nodes.items()},
        {name: np.concatenate(columns) for name, columns in edges.items()},
        tuple(call for graph in graphs for call in graph.calls),
        tuple(label for graph in graphs for label in graph.labels),
        marks,
        sum(graph.inferred for graph in graphs),
    )
