"""On a CPU compute is slower while communication runs beside it: its threads take cores from the training thread.

How much slower follows from the recorder, which counts how long the training thread waited for a core
(`analyzers/facts/core_waits.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuscope.analyzers import what_if_changes
from gpuscope.analyzers.replay.engine import Replayed, replay
from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.analyzers.replay.rewrite import can_crowd, nodes_by_call
from gpuscope.analyzers.what_if_changes import Change, PipelineChange
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.intervals import measure_within, union
from gpuscope.trace.table import Array, Times
from gpuscope.when_used import dataclass
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.analyzers.replay.device_contention import AsFast


# What the range of a change on a GPU takes beyond its known sources of error, fitted to simulated jobs.


class Margin(NamedTuple):
    """`share` of the step on either side, so that nine in ten of so many `predictions` were held. Less than 0, and left
    out, where what is known to be uncertain holds more alone."""

    share: float
    predictions: int


MARGINS: Mapping[type[Change], Margin] = {
    what_if_changes.WireBytes: Margin(-0.0003, 100),
    what_if_changes.LinkSpeed: Margin(0.0014, 100),
    what_if_changes.KeepParameters: Margin(0.0011, 100),
    what_if_changes.BucketSize: Margin(0.0017, 100),
    what_if_changes.RemovedSyncs: Margin(-0.0003, 100),
    what_if_changes.CapturedGraphs: Margin(-0.0015, 100),
    what_if_changes.CopyStream: Margin(0.0009, 100),
    what_if_changes.Overlap: Margin(-0.0005, 100),
    what_if_changes.MoreLoaderWorkers: Margin(-0.0001, 100),
    what_if_changes.AccumulatedGradients: Margin(0.0013, 100),
    what_if_changes.GradientViews: Margin(0.0015, 100),
    what_if_changes.Prefetch: Margin(0.011, 100),
    what_if_changes.GroupModules: Margin(0.0093, 100),
    what_if_changes.MicroBatches: Margin(0.0123, 100),
    what_if_changes.EarlyMessages: Margin(0.0017, 100),
    what_if_changes.Schedule: Margin(-0.0005, 100),
    what_if_changes.EvenStages: Margin(0.0001, 100),
    what_if_changes.NoCollector: Margin(-0.0003, 100),
    what_if_changes.NoHostWork: Margin(-0.0005, 77),
    what_if_changes.NoAllocatorStalls: Margin(-0.0004, 100),
    what_if_changes.LoaderWorkers: Margin(-0.0005, 100),
    what_if_changes.PinnedCopies: Margin(0.0005, 100),
    what_if_changes.ReplacedRank: Margin(0.0002, 100),
    what_if_changes.SharedWork: Margin(0, 100),
}
"""The split-conformal quantile (Y. Romano and others, «Conformalized quantile regression», NeurIPS 2019) of
`python -m benchmarks.verdicts --only changes --fit --seed 72000 --seed 73000 --seed 77000 --seed 77300 --jobs 25`,
every second job with a fault besides the one that the change mends."""
INFERRED = 2.0
"""How many times as much where streams' waits are not recorded but inferred. Chosen, and checked on simulated jobs."""
MEETING = (
    what_if_changes.WireBytes,
    what_if_changes.Overlap,
    what_if_changes.Prefetch,
    what_if_changes.KeepParameters,
    what_if_changes.GroupModules,
)
"""Changes of when or for how long collectives run…"""
ON_ONE_LINK = Margin(-0.0003, 100)
"""… and their margin where those of two streams may meet on one link."""
NOT_FITTED = Margin(max(own.share for own in MARGINS.values()), 0)
"""Of other changes: as wide as the widest."""
TOGETHER = Margin(0.0003, 100)
"""Beyond the largest of several changes."""


def margin(made: Collection[Change], graph: Graph | None) -> float:
    """Of changes to a run, in shares of the step."""
    if not made:
        return 0.0
    crowded = graph is not None and can_crowd(graph)
    own = [ON_ONE_LINK if crowded and isinstance(one, MEETING) else MARGINS.get(type(one), NOT_FITTED) for one in made]
    found = max(one.share for one in own) + (TOGETHER.share if len(own) > 1 else 0.0)
    return max(found, 0.0) * (INFERRED if graph is not None and graph.inferred else 1.0)


# A graph with changes, and what its replay comes to, before it is made a prediction.


@dataclass(frozen=True)
class Changed:
    """A graph with changes, as they turn out by `bias`, and what that rests on."""

    graph: Graph
    bias: int
    pipelined: list[PipelineChange]
    """Those that are not in the graph."""
    basis: list[str]
    provenance: Provenance
    lacking: str
    first: AsFast | None
    """On a GPU."""


@dataclass(frozen=True)
class Outcome:
    """A replay with changes: «the step» in ns, and what that rests on."""

    step_ns: float
    floor_ns: float
    """What the device must compute in it, ns: a recorded time, which no error of the replay scales."""
    basis: str
    provenance: Provenance
    lacking: str = ""
    """Why costs of collectives in it are not known, and what to record."""
    moved: bool = False
    """Whether kernels and collectives run beside each other where they did not, or no longer."""
    pipeline_error: float = 0.0
    """Relative error of the pipelines' unchanged replay, where their computations are laid out anew."""
    chance: float = 0.0
    """How far another run's step with these changes may lie off, relative: its steps may differ where they did not."""
    timeline: tuple[Graph, Replayed] | None = None
    """Of the expected case, where all of the step is on it."""


ROUNDS = 3
"""Replays of a change: compute takes longer or shorter, which moves what it runs beside. The third moves little."""
MOST = 3.0
"""Slowdown at most: a rank computes on one thread, and gloo carries out its collectives on three (two of its own and
the loop that they share)."""


@dataclass(frozen=True)
class Slowdown:
    """Compute takes 1 + `factor` times as long beside a collective of its rank; `error` is a standard one."""

    factor: float
    error: float
    waited: int
    """ns without a core in all, from which it is estimated."""

    @property
    def significant(self) -> bool:
        """Whether it is more than its own error."""
        return self.factor > self.error

    def text(self) -> str:
        """What a prediction rests on."""
        return (
            f"compute {units.whole_share(self.factor)} (± {units.whole_share(self.error)}) slower beside collectives, "
            f"because the training thread waited {units.duration(self.waited)} in all for a core"
        )


NONE = Slowdown(0.0, 0.0, 0)


def slowdown(graph: Graph, done: Replayed, waits: Mapping[int, Sequence[int]]) -> Slowdown:
    """From what training threads waited for cores (ns per replayed step, by rank), all of it attributed to collectives.

    `done` is the graph's own replay. A thread that computed for C ns beside collectives and waited for W of them would
    have taken C − W alone. `NONE` beyond `MOST`: then others than its own collectives held the cores. The error is the
    jackknife's, leaving out a step of a rank at a time.
    """
    waited: list[int] = []
    beside: list[int] = []
    found, nodes = _beside(graph, done), graph.nodes
    for rank, own in waits.items():
        waited += own
        mine = nodes["rank"] == rank
        beside += [int(found[mine & (nodes["step"] == step)].sum()) for step in range(len(own))]
    both = np.array([waited, beside], np.float64)
    without = [_factor(*np.delete(both, step, 1).sum(1)) for step in range(both.shape[1])]
    if len(without) < 2 or not np.isfinite(without).all() or (factor := _factor(*both.sum(1))) > MOST:
        return NONE
    error = float(np.sqrt((len(without) - 1) * np.var(without)))
    estimate = Slowdown(factor, error, sum(waited))
    return estimate if estimate.significant else NONE


def _factor(waited: float, beside: float) -> float:
    return float(waited / (beside - waited)) if beside > waited else np.inf


class Contended:
    """Replays changes of a graph with compute as much slower as it then runs beside collectives."""

    def __init__(self, graph: Graph, done: Replayed, found: Slowdown) -> None:
        self.found = found
        self._before = _shares(graph, done)

    def replay(self, graph: Graph, bias: int = 0) -> tuple[Graph, Replayed]:
        """A graph made from the one given, its compute slowed; `bias` moves the slowdown by its standard error."""
        done = replay(graph)
        if not self.found.significant:
            return graph, done
        factor = max(0.0, self.found.factor + bias * self.found.error)
        compute = _compute(graph)
        before = np.zeros(len(graph))
        before[: len(self._before)] = _of_work(self._before, factor)
        changed = graph
        for _ in range(ROUNDS - 1):
            ratio = (1 + factor * _of_work(_shares(changed, done), factor)) / (1 + factor * before)
            dur = graph.nodes["dur"] + np.rint(compute * (ratio - 1)).astype(np.int64)
            changed = graph.with_nodes(dur=np.maximum(dur, 0))
            done = replay(changed)
        return changed, done


def _of_work(share: Array, factor: float) -> Array:
    """The share of work that was done in a share of the time, in which it went 1 + `factor` times as slowly."""
    return np.asarray(share / (1 + factor * (1 - share)))


def _shares(graph: Graph, done: Replayed) -> Array:
    """Of each node's compute the share beside its rank's collectives."""
    return np.asarray(_beside(graph, done) / np.maximum(_compute(graph), 1))


def _beside(graph: Graph, done: Replayed) -> Array:
    """Of each node's compute the ns beside its rank's collectives: from the rank's arrival to the collective's end, for
    gloo's threads work for other ranks' parts too."""
    found = np.zeros(len(graph))
    compute, rank_of = _compute(graph), graph.nodes["rank"]
    arrival, transfer = (nodes_by_call(graph, kind) for kind in (Node.ARRIVAL, Node.TRANSFER))
    for rank in graph.ranks:
        own = rank_of[arrival] == rank
        in_flight = union(done.start[arrival[own]], done.end[transfer[own]])
        mine = np.flatnonzero((compute > 0) & (rank_of == rank))
        start, end = done.start[mine], done.end[mine]
        found[mine] = compute[mine] * measure_within(in_flight, start, end) / np.maximum(end - start, 1)
    return found


def _compute(graph: Graph) -> Times:
    """ns of each stretch of a training thread in operators."""
    return np.where(graph.of(Node.HOST), np.minimum(graph.nodes["compute"], graph.nodes["dur"]), 0)
