"""What a file's ranks leave behind for the replay: one graph each, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.kernels.generations import compiled_for
from gpuscope.analyzers.facts.counted_by_step.core_waits import core_waits
from gpuscope.analyzers.replay.from_trace.batch_overhead import fixed_shares, fixed_shares_on_device
from gpuscope.analyzers.replay.from_trace.recorded_steps import STEPS_WANTED, Window, window
from gpuscope.analyzers.replay.from_trace.training_thread import thread_graph
from gpuscope.analyzers.replay.graph import Graph, UnreplayableError
from gpuscope.analyzers.replay.prediction_bounds import by_chance, median_by_chance
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.table import Mask, Table, Times, rows_of_rank
from gpuscope.trace.schema import NA
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
    from gpuscope.analyzers.replay.from_trace.device_graph import device_graph  # the half that most CPU runs don't need

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
