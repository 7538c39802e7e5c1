"""What every change to a graph needs: the run it is of, and the signature of a rewrite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from gpuscope.analyzers.nccl.logged.run_choices import RunChoices
from gpuscope.analyzers.replay.graph import NONE, Edge, Graph, Node
from gpuscope.analyzers.replay.link_sharing import Reaches
from gpuscope.collective_costs.message_cost import CostModel
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class CoreUse:
    """What a rank has of its host's cores."""

    cores: int
    """For each rank."""
    threads: int
    """That training computes in."""
    asleep: float | None
    """ns of a step in which the training thread was neither on a core nor ready for one; None where not recorded."""

    @property
    def free(self) -> int:
        """Cores that training leaves to others."""
        return max(self.cores - self.threads, 0)


@dataclass(frozen=True)
class Setting:
    """What of a run costs depend on, and where between the bounds of what is assumed a rewrite stands."""

    backend: str
    gpu: str
    """Model of the devices; empty where training threads are the devices."""
    complete: bool
    """Whether all ranks of the job are there."""
    one_host: bool = False
    """Whether all ranks are known to run on one host."""
    cores_known: bool = False
    """Whether the trace records what communication takes from compute on a CPU."""
    reach: Reaches = field(default_factory=dict)
    """What links the ranks of each group, where that is known."""
    measured: Mapping[tuple[str, int], CostModel] = field(default_factory=dict)
    """By operation and number of ranks, what benchmarks among the inputs measured."""
    nccl: RunChoices | None = None
    """NCCL's choices as recorded in the run; None where they are not needed."""
    generation: str = ""
    """For which kernels were compiled, where the model is not recorded; empty where they don't tell."""
    loader_processes: bool = False
    """Whether the data loader has worker processes already."""
    core_use: Mapping[int, CoreUse] = field(default_factory=dict)
    """By rank, where it is recorded."""
    stage_of: Mapping[int, int] = field(default_factory=dict)
    """The stage of each rank of a pipeline: ranks of other stages do other work."""
    replaced: frozenset[int] = frozenset()
    """Ranks that are replaced together: none of them is what another one should be like."""
    stand_ins: Mapping[int, int] = field(default_factory=dict)
    """For each rank that is not replayed, the one that stands for it."""
    alone: Array | None = None
    """Of each recorded node's time the share that it would have taken with nothing beside it; None where not known."""
    bias: int = 0
    """Case of the assumptions: -1 the best, 0 the expected, 1 the worst."""


@dataclass(frozen=True)
class Rewritten:
    """A graph after a change, and what the change rests on."""

    graph: Graph
    basis: str
    provenance: Provenance = "inferred"
    """`assumed` where costs of collectives in it are not fitted to the trace."""
    lacking: str = ""
    """Why costs of collectives in it are not known, and what to record so that they are."""


def weights(setting: Setting, ranks: Iterable[int]) -> list[int]:
    """For how many ranks each stands, itself included."""
    stand_for = Counter(setting.stand_ins.values())
    return [1 + stand_for[rank] for rank in ranks]


Rewrite = Callable[[Graph, Any, Setting], Rewritten]
"""Raises `UnreplayableError` where the trace can't support the change."""


def nodes_by_call(graph: Graph, kind: Node) -> Times:
    """Per call, its node of that kind; -1 where there is none."""
    found = np.full(len(graph.calls), NONE, np.int64)
    places = np.flatnonzero(graph.of(kind) & (graph.nodes["call"] >= 0))
    found[graph.nodes["call"][places]] = places
    return found


def launched_at(graph: Graph) -> Times:
    """When each node was launched; its start where that is not recorded."""
    found = graph.nodes["start"].copy()
    launch = graph.edges["why"] == Edge.LAUNCH
    found[graph.edges["dst"][launch]] = graph.nodes["end"][graph.edges["src"][launch]]
    return found


def by_issue(graph: Graph, calls: Iterable[int]) -> list[int]:
    """Calls in the order of their issue; two threads or streams may start neighbours the other way round."""
    arrival, issued = nodes_by_call(graph, Node.ARRIVAL), launched_at(graph)
    return sorted(calls, key=lambda call: int(issued[arrival[call]]))


def edges_into(graph: Graph, nodes: Mask, *why: Edge) -> Mask:
    """Per edge, whether it leads into one of these nodes for one of these reasons (any, if none is given)."""
    into = nodes[graph.edges["dst"]]
    return np.asarray(into & np.isin(graph.edges["why"], why) if why else into)


def on_host(graph: Graph) -> Mask:
    """Per node, whether it is the host's own time: a segment, or an allocator call behind what it waits for."""
    return graph.of(Node.HOST) | graph.allocating()


def unissued(graph: Graph, calls: Iterable[int]) -> Times:
    """Durations without the host time that issuing these calls took."""
    cost = np.array([call.issue for call in graph.calls] + [0], np.int64)
    gone = np.zeros(len(graph.calls) + 1, np.bool_)
    gone[list(calls)] = True
    call = graph.nodes["call"][graph.edges["dst"]]
    issues = np.flatnonzero(
        (graph.edges["why"] == Edge.LAUNCH) & edges_into(graph, graph.of(Node.ARRIVAL)) & gone[call]
    )
    dur = graph.nodes["dur"].copy()
    np.subtract.at(dur, graph.edges["src"][issues], cost[call[issues]])
    return np.maximum(dur, 0)
