"""What every change to a graph needs: the run it is of, and the signature of a rewrite."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import IntEnum
from typing import Any

import numpy as np

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.nccl.timed_series import RunChoices
from gpuscope.analyzers.replay.graph import NONE, Call, Edge, Graph, Node
from gpuscope.collective_costs.bus_bandwidth import bus_bytes as bytes_on_bus
from gpuscope.collective_costs.message_cost import CostModel, assume, divided, fit, scaled, with_measured_bandwidth
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.intervals import EMPTY, Spans, join, measure_within, union
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.when_used import dataclass

# Collectives that are under way at once on one link each get a part of its bandwidth.
#
# Two of a rank share a link unless the trace shows otherwise: a group inside a host and one between hosts take
# different
# links. Whether a link carries what a rank sends as fast while it receives is a question of its own.


class Reach(IntEnum):
    """What links a group's ranks."""

    UNKNOWN = 0
    INSIDE = 1
    """NVLink or PCIe of one host."""
    BETWEEN = 2
    """A network."""


Reaches = Mapping[tuple[int, str], Reach]
"""By rank and name of the group."""
_WAYS = {"send": 1, "recv": 2}


def reaches(facts: RunFacts) -> dict[tuple[int, str], Reach]:
    """What links the ranks of each group, as far as the run shows on which hosts they are."""
    table, names, groups = facts.trace["collectives"], facts.trace.names, facts.matched.groups
    of_group: list[Reach] = []
    for ranks in groups.ranks:
        hosts = None if ranks is None else facts.placement.of_ranks(ranks.tolist(), len(ranks)).hosts
        of_group.append(Reach.UNKNOWN if hosts is None else Reach.INSIDE if hosts == 1 else Reach.BETWEEN)
    keys = set(zip(*(column.tolist() for column in (table["rank"], table["group"], groups.of_row)), strict=True))
    return {(rank, names[code] if code != NO_NAME else ""): of_group[group] for rank, code, group in keys}


def can_crowd(graph: Graph) -> bool:
    """Whether a rank has more than one stream of collectives, so that two can be under way at once."""
    own = np.flatnonzero(graph.of(Node.TRANSFER))
    both = np.stack((graph.nodes["rank"][own], graph.nodes["lane"][own]), axis=1)
    return len(np.unique(both, axis=0)) > len(np.unique(both[:, 0]))


class Crowds:
    """Who shares a link with whom in one graph: those of one direction, or (`opposite`) a send and a receive."""

    def __init__(self, graph: Graph, reach: Reaches, *, opposite: bool = False) -> None:
        self._opposite = opposite
        self._nodes = np.flatnonzero(graph.of(Node.TRANSFER) & (graph.nodes["call"] >= 0))
        calls = graph.nodes["call"][self._nodes]
        found = {call: _link(graph.calls[call], reach) for call in np.unique(calls).tolist()}
        link = np.array([found[call] for call in calls.tolist()], np.int64).reshape(-1, 2)
        rows = np.column_stack((graph.nodes["lane"][self._nodes], link))
        self._kinds, self._kind = np.unique(rows, axis=0, return_inverse=True)
        self._kind = self._kind.reshape(-1)
        self._together = together(graph, self._nodes)

    def beside(self, start: Times, end: Times) -> tuple[Array, Array]:
        """Per node the share of a transfer's time beside others on its link, and how many these are then on average
        (1 where there are none). Times are those of `rank_by_rank`. A collective is as slow as its slowest rank."""
        share, others = np.zeros(len(start)), np.ones(len(start))
        spans = [
            union(start[self._nodes[self._kind == kind]], end[self._nodes[self._kind == kind]])
            for kind in range(len(self._kinds))
        ]
        for kind in range(len(self._kinds)):
            sharing = [spans[other] for other in range(len(self._kinds)) if self._share(kind, other)]
            own = self._nodes[self._kind == kind]
            if not sharing:
                continue
            any_of: Spans = EMPTY
            total = np.zeros(len(own), np.int64)
            for one in sharing:
                any_of = join(any_of, one)
                total += measure_within(one, start[own], end[own])
            with_any = measure_within(any_of, start[own], end[own])
            share[own] = with_any / np.maximum(end[own] - start[own], 1)
            others[own] = np.maximum(total / np.maximum(with_any, 1), 1.0)
        return slowest(share, self._nodes, self._together), slowest(others, self._nodes, self._together)

    def _share(self, one: int, other: int) -> bool:
        (lane, reach, way), (their_lane, their_reach, their_way) = self._kinds[one], self._kinds[other]
        apart = {int(reach), int(their_reach)} == {Reach.INSIDE, Reach.BETWEEN}
        opposite = {int(way), int(their_way)} == set(_WAYS.values())
        return bool(lane != their_lane and not apart and opposite == self._opposite)


def _link(call: Call, reach: Reaches) -> tuple[int, int]:
    return int(reach.get((call.rank, call.group), Reach.UNKNOWN)), _WAYS.get(call.op, 0)


def slowest(values: Array, nodes: Times, of: Times) -> Array:
    """The values of these nodes as those of all `together` with them are at most: what slows one rank slows all."""
    most = np.zeros(int(of.max(initial=0)) + 1)
    np.maximum.at(most, of, values[nodes])
    values[nodes] = most[of]
    return values


def together(graph: Graph, nodes: Times) -> Times:
    """Per transfer, a number that all ranks' transfers of one collective have."""
    kind = graph.nodes["kind"]
    src, dst = graph.edges["src"], graph.edges["dst"]
    joins = (graph.edges["why"] == Edge.JOIN) & (kind[src] == Node.JOIN) & (kind[dst] == Node.TRANSFER)
    found = np.full(len(graph), NONE, np.int64)
    found[nodes] = nodes
    found[dst[joins]] = src[joins]
    return np.asarray(np.unique(found[nodes], return_inverse=True)[1]).reshape(-1)


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


# What a collective of a replay would cost at another size, speed or number of ranks: α–β, as fitted or assumed.

ASSUMED_ERROR = 0.5
"""Relative error of a model that rests on a link's assumed figures: real links reach half to all of their peak, and
fixed costs differ as much between machines."""


@dataclass(frozen=True)
class Costs:
    """Models per (operation, group), and per call the part of its time that is transfer."""

    models: dict[tuple[str, str], CostModel]
    transfer: Times
    """ns per call: its measured transfer; where the last arrival is not known, at most what the model expects."""

    def model(self, graph: Graph, call: int) -> CostModel:
        """The model of a call."""
        return self.models[graph.calls[call].op, graph.calls[call].group]

    def error(self, graph: Graph, call: int) -> float:
        """Relative error of its model."""
        found = self.model(graph, call).error
        return ASSUMED_ERROR if found is None else found

    def provenance(self, graph: Graph, calls: Iterable[int]) -> Provenance:
        """`assumed` where the model of any of the calls is."""
        return "assumed" if any(self.model(graph, call).assumed for call in calls) else "inferred"

    def lacking(self, graph: Graph, calls: Iterable[int]) -> str:
        """What to record so that the models of these calls are known; empty where they are as well as they can be."""
        undivided = {graph.calls[call].op for call in calls if not self.model(graph, call).divided}
        if not undivided:
            return ""
        return (
            f"which part of a transfer is fixed cost is unknown: every {', '.join(sorted(undivided))} has one size; "
            "record some steps with another size, or analyse the trace together with a table of nccl-tests or of "
            "`gpuscope bench collectives`"
        )

    def basis(self, graph: Graph, calls: list[int]) -> str:
        """What the models of some calls rest on."""
        found = sorted({self.model(graph, call).basis for call in calls})
        estimated = sorted({graph.calls[call].size_basis for call in calls} - {""})
        sizes = f"; message sizes estimated from {' and '.join(estimated)}" if estimated else ""
        return "transfer times " + ", ".join(found) + sizes


def bus_bytes(graph: Graph, call: int, nbytes: float | None = None, members: int | None = None) -> float | None:
    """Bytes on the bus of a call, or of one like it with other bytes or ranks; None where they are not recorded."""
    own = graph.calls[call]
    size = own.bytes if nbytes is None else nbytes
    return None if size is None else bytes_on_bus(own.op, size, members or own.group_size or 2)


def costs(graph: Graph, setting: Setting, alike: bool = False) -> Costs:
    """Fit the models to the replayed calls' transfers. `alike`: ranks that are missing arrive when these do."""
    node = nodes_by_call(graph, Node.TRANSFER)
    dur = graph.nodes["dur"][node] if len(node) else np.empty(0, np.int64)
    known = _joined(graph, node) | alike
    of: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, call in enumerate(graph.calls):
        of[call.op, call.group].append(place)
    models: dict[tuple[str, str], CostModel] = {}
    transfer = dur.copy()
    for key, places in of.items():
        sizes = np.array([bus_bytes(graph, place) or 0.0 for place in places])
        rows = np.array([place for place in places if known[place]], np.int64)
        fitted = fit(sizes[known[places]], dur[rows]) if len(rows) else None
        call = graph.calls[places[0]]
        ranks = call.group_size or 2
        assumed = assume(setting.backend, setting.gpu, ranks)
        taken = sizes[known[places]]
        if setting.gpu:
            reach = setting.reach.get((call.rank, call.group), Reach.UNKNOWN)
            inside = None if reach == Reach.UNKNOWN else reach == Reach.INSIDE
            measured = setting.measured.get((call.op, ranks))
            split = divided(taken, dur[rows], measured, call.op, ranks, setting.gpu, inside, setting.bias)
            models[key] = fitted or split or assumed
        else:
            calibrated = scaled if setting.one_host else with_measured_bandwidth
            models[key] = fitted or calibrated(assumed, taken, dur[rows])
        for place, size in zip(places, sizes.tolist(), strict=True):
            if not known[place] and size:
                transfer[place] = min(int(dur[place]), models[key].expected(size))
    return Costs(models, transfer)


def _joined(graph: Graph, node: Times) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Per call, whether its time is known to begin with the last arrival."""
    join = graph.of(Node.JOIN)
    behind = np.zeros(len(graph), np.bool_)
    behind[graph.edges["dst"][join[graph.edges["src"]]]] = True
    alone = np.array([(call.group_size or 2) <= 1 for call in graph.calls], np.bool_)
    return np.asarray((behind[node] if len(node) else alone) | alone)
