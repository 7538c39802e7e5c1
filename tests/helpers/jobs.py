"""Small jobs as replay graphs, written as what each rank's host does; times in ns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Call, Edge, Graph, Node, edge_columns, node_columns
from gpuscope.trace.schema import Kind


@dataclass(frozen=True)
class Host:
    """A stretch of the host; the causes are parts of `dur`."""

    dur: int
    input: int = 0
    gc: int = 0
    allocator: int = 0
    host_other: int = 0
    unlaunching: int = 0
    optimizing: int = 0
    thread: int = 0


@dataclass(frozen=True)
class Launch:
    """A kernel or copy on a stream, launched without delay."""

    dur: int
    stream: int = 7
    copy: str = ""


@dataclass(frozen=True)
class Issue:
    """A collective on one communication stream; the n-th of all ranks belong together."""

    op: str
    bytes: int
    transfer: int
    backward: bool = True


@dataclass(frozen=True)
class Wait:
    """The host waits for the last launch on a stream, or for collectives by their number."""

    stream: int | None = None
    calls: tuple[int, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Step:
    """A step begins here; the last one marks the end."""


Program = Sequence[Host | Launch | Issue | Wait | Step]
COMMUNICATION_STREAM = 20


def job(*programs: Program) -> Graph:
    """The graph of ranks 0, 1…, with the measured times that it replays to."""
    work = _Work()
    for rank, program in enumerate(programs):
        work.rank(rank, program)
    work.joins()
    graph = Graph(
        node_columns(work.nodes),
        edge_columns(work.edges),
        tuple(work.calls),
        tuple(work.labels),
        {rank: np.array(marks, np.int64) for rank, marks in work.marks.items()},
    )
    told = replay(graph)
    return graph.with_nodes(start=told.start, end=told.end)


def steps(graph: Graph, rank: int = 0) -> list[int]:
    """Replayed step times of a rank."""
    found: list[int] = replay(graph).steps(graph)[rank].tolist()
    return found


class _Work:
    def __init__(self) -> None:
        self.nodes: list[dict[str, int]] = []
        self.edges: list[tuple[int, int, int, int]] = []
        self.calls: list[Call] = []
        self.labels: list[str] = []
        self.marks: dict[int, list[int]] = {}
        self.members: dict[int, list[tuple[int, int]]] = {}

    def node(self, **columns: int) -> int:
        self.nodes.append(columns)
        return len(self.nodes) - 1

    def rank(self, rank: int, program: Program) -> None:
        last = self.node(kind=Node.HOST, rank=rank, release=0)
        ends: dict[int, int] = {}
        transfers: list[int] = []
        step = -1
        self.marks[rank] = []
        for item in program:
            common = {"rank": rank, "step": max(step, 0)}
            if isinstance(item, Step):
                step += 1
                mark = self.node(**{**common, "kind": Node.MARK, "step": step})
                self.edges.append((last, mark, 0, Edge.PROGRAM))
                self.marks[rank].append(mark)
            elif isinstance(item, Host):
                node = self.node(kind=Node.HOST, **vars(item), **common)
                self.edges.append((last, node, 0, Edge.PROGRAM))
                last = node
            elif isinstance(item, Wait):
                self.labels.append(item.label)
                node = self.node(kind=Node.WAIT, label=len(self.labels) - 1, **common)
                self.edges.append((last, node, 0, Edge.PROGRAM))
                awaited = [ends[item.stream]] if item.stream is not None else [transfers[n] for n in item.calls]
                self.edges += [(source, node, 0, Edge.SYNC) for source in awaited]
                last = node
            elif isinstance(item, Launch):
                self.labels.append(item.copy)
                work = int(Kind.MEMORY if item.copy else Kind.COMPUTE)
                node = self.node(
                    kind=Node.DEVICE, lane=item.stream, dur=item.dur, work=work, label=len(self.labels) - 1, **common
                )
                self.order(last, node, node, item.stream, ends)
            else:
                self.calls.append(Call(rank, item.op, 0, 0, item.bytes, "0", None, item.backward))
                common |= {"lane": COMMUNICATION_STREAM, "call": len(self.calls) - 1, "work": int(Kind.COMMUNICATION)}
                arrival = self.node(kind=Node.ARRIVAL, **common)
                transfer = self.node(kind=Node.TRANSFER, dur=item.transfer, **common)
                self.edges.append((arrival, transfer, 0, Edge.JOIN))
                self.order(last, arrival, transfer, COMMUNICATION_STREAM, ends)
                self.members.setdefault(len(transfers), []).append((arrival, transfer))
                transfers.append(transfer)

    def order(self, host: int, first: int, last: int, stream: int, ends: dict[int, int]) -> None:
        self.edges.append((host, first, 0, Edge.LAUNCH))
        if stream in ends:
            self.edges.append((ends[stream], first, 0, Edge.STREAM))
        ends[stream] = last

    def joins(self) -> None:
        size = len(self.marks)
        self.calls = [Call(c.rank, c.op, 0, 0, c.bytes, c.group, size, c.backward) for c in self.calls]
        for pairs in self.members.values():
            join = self.node(kind=Node.JOIN, rank=-1, call=self.nodes[pairs[0][0]]["call"])
            for arrival, transfer in pairs:
                self.edges += [(arrival, join, 0, Edge.JOIN), (join, transfer, 0, Edge.JOIN)]
