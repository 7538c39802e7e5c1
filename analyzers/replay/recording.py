"""What a file's ranks leave behind for the replay: one graph each, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.kernel_roofs import compiled_for
from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.process_groups import cores_counted
from gpuscope.analyzers.facts.run_facts import RunFacts, core_waits, threads_and_cores
from gpuscope.analyzers.nccl.timed_series import RunChoices, tool_fits
from gpuscope.analyzers.replay.engine import by_chance, median_by_chance
from gpuscope.analyzers.replay.graph import NONE, Edge, Graph, Node, UnreplayableError, join
from gpuscope.analyzers.replay.graph_builder import STEPS_WANTED, Window, window
from gpuscope.analyzers.replay.rewrite import CoreUse, Setting, nodes_by_call, reaches
from gpuscope.analyzers.replay.training_thread import fixed_shares, fixed_shares_on_device, thread_graph
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Mask, Table, Times, distinct_values, rows_of_rank
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

_NO_HOST = "no host events: record CPU activities too (torch profiler) or CUDA API calls (nsys -t cuda)"

_NOT_ASKED = "no advice was asked for, so the run was not replayed"
_TOO_LARGE = (
    "not even one step of each rank is small enough to be replayed: analyse fewer ranks (--ranks), or record fewer "
    "micro-batches per step"
)


@dataclass(frozen=True)
class Recorded:
    """One lane's graph with the measured times of its steps, or why it can't be replayed."""

    rank: int
    graph: Graph | None
    numbers: tuple[int, ...] = ()
    """The steps' numbers; one `NA` where the trace has no steps."""
    steps_ns: tuple[int, ...] = ()
    why: str = ""
    closed: bool = False
    """Whether the last step ends with the trace: it then lacks what follows its last device event."""
    loader_processes: bool = False
    """Whether its batches come from worker processes."""
    generation: str = ""
    """Of GPUs, for which its kernels were compiled; empty where they don't tell."""
    core_waits: tuple[int, ...] = ()
    """ns that the training thread waited for a core in each replayed step, where the recorder counted that."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """By kind of a pipeline's computations, the share that does not shrink with the micro-batch, where known."""
    pauses: Mapping[str, float] = field(default_factory=dict)
    """The part of `fixed` that is measured: on a GPU the pauses between kernels."""
    broken: bool = False
    """Whether `why` is a fault of the program, not of the trace."""
    cut: bool = False
    """Whether more steps would be kept in a run of fewer ranks, and fewer are than are wanted."""

    def check(self) -> None:
        """Raise `ValueError` where the steps, their times and the graph's marks are not of one number."""
        marks: Sequence[int] | Times = () if self.graph is None else self.graph.marks.get(self.rank, ())
        if self.graph is not None and not len(self.numbers) == len(self.steps_ns) == len(marks) - 1:
            raise ValueError(f"{len(self.numbers)} steps with {len(self.steps_ns)} times and {len(marks)} marks")


def record(trace: Trace, lanes: Sequence[LaneView], files: int = 1) -> list[Recorded]:
    """The graphs of the lanes of one of so many files; small, whatever the file or the run."""
    devices = Counter(view.lane.rank for view in lanes)
    return [_record(trace, view, devices[view.lane.rank], files * len(devices)) for view in lanes]


def with_fixed_shares(
    recorded: Sequence[Recorded], trace: Trace, lanes: Sequence[LaneView], operations: Table
) -> list[Recorded]:
    """What was recorded of the lanes, with the shares of a pipeline's computations that its `operations` tell."""
    return [
        entry
        if entry.graph is None
        else replace(entry, fixed=_fixed(trace, view, operations), pauses=_pauses(trace, view, operations))
        for entry, view in zip(recorded, lanes, strict=True)
    ]


def not_recorded(ranks: Iterable[int]) -> list[Recorded]:
    """What stands for the graphs of lanes of these ranks where nobody wants a replay."""
    return [Recorded(rank, None, why=_NOT_ASKED) for rank in ranks]


def _record(trace: Trace, view: LaneView, devices: int, ranks: int) -> Recorded:
    rank = view.lane.rank
    if devices > 1:
        return Recorded(rank, None, why=f"rank {rank} drives {devices} devices")
    host = trace["host_events"]
    low, high = rows_of_rank(host, rank)
    if low == high:
        return Recorded(rank, None, why=_NO_HOST)
    kept = window(trace, view, ranks)
    if kept is None:
        return Recorded(rank, None, why=_TOO_LARGE, cut=ranks > 1)
    try:
        graph = _graph(trace, view, kept)
    except UnreplayableError as error:
        return Recorded(rank, None, why=str(error))
    except Exception as error:  # as any analysis: a fault here hides nothing else
        return Recorded(rank, None, why=f"{type(error).__name__}: {error}", broken=True)
    steps = tuple(step.end - step.start for step in kept.steps)
    own = distinct_values(host["name"][low:high])
    processes = bool(trace.names.matching(lambda name: "_MultiProcessingDataLoaderIter" in name)[own].any())
    numbers = tuple(step.step for step in kept.steps)
    alone = window(trace, view) if len(numbers) < STEPS_WANTED and ranks > 1 else kept
    return Recorded(
        rank,
        graph,
        numbers,
        steps,
        closed=kept.closed,
        loader_processes=processes,
        generation="" if view.lane.device == NA else _generation(trace, rank),
        core_waits=_core_waits(trace, rank, numbers),
        cut=alone is not None and len(alone.steps) > len(numbers),
    )


def _graph(trace: Trace, view: LaneView, kept: Window) -> Graph:
    if view.lane.device == NA:
        return thread_graph(trace, view, kept)
    from gpuscope.analyzers.replay.device_graph import device_graph  # the half that most CPU runs don't need

    return device_graph(trace, view, kept)


def _generation(trace: Trace, rank: int) -> str:
    device = trace["device_events"]
    kernels = distinct_values(device["name"][slice(*rows_of_rank(device, rank))]).tolist()
    return compiled_for(trace.names[code] for code in kernels) or ""


def _pauses(trace: Trace, view: LaneView, operations: Table) -> Mapping[str, float]:
    return {} if view.lane.device == NA else fixed_shares_on_device(trace, view, operations, kernel_ns=0)


def _fixed(trace: Trace, view: LaneView, operations: Table) -> Mapping[str, float]:
    if view.lane.device == NA:
        return fixed_shares(trace, view.lane.rank, operations)
    return fixed_shares_on_device(trace, view, operations)


def _core_waits(trace: Trace, rank: int, numbers: Sequence[int]) -> tuple[int, ...]:
    waited = core_waits(trace, rank)
    return tuple(waited[number] for number in numbers) if set(numbers) <= set(waited) else ()


def variation(entry: Recorded, counted: Mask, gpu: bool) -> float | None:
    """How far another run's step may lie from this one's by chance, relative. `counted`: which steps are judged. On a
    CPU, where anything may hold up a step, as means would. None where there are fewer than two comparable steps."""
    if len(counted) != len(entry.steps_ns):
        return None
    whole = counted & (np.arange(len(counted)) < len(counted) - entry.closed)
    times = np.array(entry.steps_ns, np.float64)[whole]
    return median_by_chance(times) if gpu else by_chance(times)


# What a replay knows of a run before it replays anything: its step, which steps count, what costs depend on.

MAX_ERROR = 0.05
"""Relative error of the unchanged replay from which nothing is predicted. Published replays reach 3.3 % on average
(Lumos, MLSys 2025) and below 5 % (dPRO, MLSys 2022); one that misses by more has missed a dependency."""


def mean_shares(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By kind of computation, the share that does not shrink with the micro-batch, mean over ranks."""
    kinds = {kind for own in found for kind in own}
    return {kind: float(np.mean([own[kind] for own in found if kind in own])) for kind in kinds}


def missing(recorded: Sequence[Recorded]) -> str:
    """Why these can't be replayed together; empty if they can."""
    if not recorded:
        return "no rank has anything that could be replayed"
    for entry in recorded:
        if entry.graph is None:
            return entry.why
    if len({entry.numbers for entry in recorded}) > 1:
        return "the ranks recorded different steps: record the same ones on all, or choose them with --steps"
    return ""


def counted_steps(facts: RunFacts, recorded: Sequence[Recorded]) -> Mask:
    """Which of the replayed steps count: the judged ones, all where none of them is."""
    numbers = recorded[0].numbers if recorded else ()
    judged = np.array([number != NA and facts.steady.judged(number) for number in numbers], np.bool_)
    return judged if judged.any() else np.ones(len(numbers), np.bool_)


def step_of(facts: RunFacts) -> float:
    """«The step», from which predictions start; without steps the window, the longest over ranks."""
    if facts.step_ns is not None:
        return float(facts.step_ns)
    return float(max((lane.breakdown.window for lane in facts.lanes), default=0))


def not_replayed(facts: RunFacts, recorded: Sequence[Recorded]) -> float:
    """ns of «the step» before and behind the device's work in it, which the replay leaves as they are: of one or two
    annotated steps in all."""
    lasts = {(lane.rank, step.step): step.end - step.start for lane in facts.lanes for step in lane.steps}
    beyond = [
        sum(lasts.get((entry.rank, number), ns) - ns for number, ns in zip(entry.numbers, entry.steps_ns, strict=True))
        / len(entry.numbers)
        for entry in recorded
        if entry.numbers and NA not in entry.numbers
    ]
    return max(beyond, default=0.0)


def chance(recorded: Sequence[Recorded], counted: Mask, gpu: bool) -> float:
    """How far the step may lie off by chance, relative; `MAX_ERROR` where there is only a single step."""
    found = [own for entry in recorded if (own := variation(entry, counted, gpu)) is not None]
    return float(np.mean(found)) if found else MAX_ERROR


def setting_of(facts: RunFacts) -> Setting:
    """What costs depend on."""
    trace = facts.trace
    ranks = trace["ranks"]
    if not len(ranks):
        return Setting("", "", False)
    backend, gpu = int(ranks["backend"][0]), int(ranks["device_name"][0])
    hosts, stages = set(ranks["host"].tolist()), facts.stages.places if facts.stages is not None else {}
    return Setting(
        backend="" if backend == NO_NAME else trace.names[backend],
        gpu="" if gpu == NO_NAME or int(ranks["device"][0]) == NA else trace.names[gpu],
        one_host=len(hosts) == 1 and NO_NAME not in hosts,
        complete=len(trace.ranks) >= (facts.world_size or 1),
        reach=reaches(facts),
        stage_of={rank: stage for rank, (_, stage) in stages.items()},
        measured=tool_fits(facts),
        nccl=RunChoices(facts),
        core_use=core_use(facts),
    )


def core_use(facts: RunFacts) -> dict[int, CoreUse]:
    """By rank; empty where nothing tells how many cores there are. On a GPU training is a thread on the host."""
    cores = cores_counted(facts.trace)
    if cores is None:
        return {}
    found = {}
    for lane in facts.lanes:
        counted = facts.core_times.get(lane.rank, {})
        asleep = [
            step.end - step.start - own.ran - own.waited
            for step in lane.steps
            if (own := counted.get(step.step)) is not None and own.ran is not None and facts.steady.judged(step.step)
        ]
        threads = threads_and_cores(facts.trace, lane.rank)[0] if lane.device == NA else 0
        found[lane.rank] = CoreUse(cores, max(threads, 1), max(float(np.mean(asleep)), 0.0) if asleep else None)
    return found


# The graphs of all ranks as one: collectives begin to transfer when the last rank has arrived.
#
# Of a collective each rank's transfer is the time from the latest start to its own end (never below 0, whatever the
# clocks say); an end of a message that was through before the other began did not wait for it.

MESSAGES = ("send", "recv")


def joined(graphs: Sequence[Graph], facts: RunFacts, stand_ins: Mapping[int, int] | None = None) -> Graph:
    """One graph on one clock, from the graphs of all ranks; or of some, with who stands in for each of the others: one
    of these arrives as much behind its stand-in as it did."""
    graph = join([_shifted(graph, facts.clocks) for graph in graphs])
    arrival = _nodes_of(graph, Node.ARRIVAL)
    transfer = _nodes_of(graph, Node.TRANSFER)
    start, end, dur = graph.nodes["start"], graph.nodes["end"], graph.nodes["dur"].copy()
    nodes: list[dict[str, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    for calls, others in _instances(graph, facts, stand_ins or {}):
        begun = {graph.calls[call].rank: int(start[arrival[call]]) for call in calls}
        last = max(begun, key=lambda rank: begun[rank])
        behind = dict.fromkeys(begun, 0)
        for rank, at in others:
            stands = (stand_ins or {}).get(rank, last)
            stands = stands if stands in begun else last
            behind[stands] = max(behind[stands], at - begun[stands])
        latest = max(at + behind[rank] for rank, at in begun.items())
        # The last to arrive is held by none but itself.
        held = [call for call in calls if int(end[transfer[call]]) >= latest]
        node = len(graph) + len(nodes)
        nodes.append({"kind": Node.JOIN, "start": latest, "end": latest, "call": calls[0], "rank": -1})
        edges += [(arrival[call], node, behind[graph.calls[call].rank], Edge.JOIN) for call in calls]
        for call in held:
            edges.append((node, transfer[call], 0, Edge.JOIN))
            dur[transfer[call]] = max(0, int(end[transfer[call]]) - latest)
    return graph.with_nodes(dur=dur).add(nodes, edges)


def unmatched_messages(graph: Graph) -> int:
    """Sends and receives whose other end is not in the graph."""
    met = np.zeros(len(graph), np.bool_)
    met[graph.edges["src"][graph.of(Node.JOIN)[graph.edges["dst"]]]] = True
    arrival = nodes_by_call(graph, Node.ARRIVAL)
    return sum(
        call.op in MESSAGES and arrival[place] >= 0 and not met[arrival[place]]
        for place, call in enumerate(graph.calls)
    )


def _shifted(graph: Graph, clock: Clocks) -> Graph:
    (rank,) = graph.marks
    by = clock.offset.get(rank, 0)
    times = ("start", "end", "release")
    return graph.with_nodes(**{name: np.where(graph.nodes[name] == NA, NA, graph.nodes[name] - by) for name in times})


def _nodes_of(graph: Graph, kind: Node) -> dict[int, int]:
    """The node of each call."""
    places = np.flatnonzero(graph.of(kind) & (graph.nodes["call"] >= 0))
    return dict(zip(graph.nodes["call"][places].tolist(), places.tolist(), strict=True))


def _instances(
    graph: Graph, facts: RunFacts, stand_ins: Mapping[int, int]
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Calls (places in `graph.calls`) that are one collective or message, and of its ranks that have stand-ins when
    each began, on the run's clock; two ranks at least."""
    table, names = facts.trace["collectives"], facts.trace.names
    keys = zip(*(table[name].tolist() for name in ("rank", "start", "end", "op")), strict=True)
    row_of = {(rank, start, end, names[op]): row for row, (rank, start, end, op) in enumerate(keys)}
    call_of = np.full(len(table), NONE, np.int64)
    for place, call in enumerate(graph.calls):
        row = row_of.get((call.rank, call.start, call.end, call.op))
        if row is not None:
            call_of[row] = place
    absent = np.isin(table["rank"], list(stand_ins))
    offset = {rank: facts.clocks.offset.get(rank, 0) for rank in stand_ins}
    for instances in (facts.matched.instances, facts.matched.partial):
        for low, high in pairwise(instances.bounds.tolist()):
            rows = instances.rows[low:high]
            own, away = rows[~absent[rows]], rows[absent[rows]]
            # Where some of an operation's ranks lie outside the replayed steps, those inside keep what they measured.
            if len(own) and len(rows) > 1 and bool((call_of[own] >= 0).all()):
                others = zip(table["rank"][away].tolist(), table["start"][away].tolist(), strict=True)
                yield call_of[own].tolist(), [(rank, at - offset[rank]) for rank, at in others]
