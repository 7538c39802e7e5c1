"""What the range of a change on a GPU takes beyond its known sources of error, fitted to simulated jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpuscope.analyzers import changes
from gpuscope.analyzers.changes import Change
from gpuscope.analyzers.replay.graph import Graph
from gpuscope.analyzers.replay.link_sharing import can_crowd


class Margin(NamedTuple):
    """`share` of the step on either side, so that nine in ten of so many `predictions` were held. Less than 0, and left
    out, where what is known to be uncertain holds more alone."""

    share: float
    predictions: int


MARGINS: Mapping[type[Change], Margin] = {
    changes.WireBytes: Margin(-0.0003, 100),
    changes.LinkSpeed: Margin(0.0014, 100),
    changes.KeepParameters: Margin(0.0011, 100),
    changes.BucketSize: Margin(0.0017, 100),
    changes.RemovedSyncs: Margin(-0.0003, 100),
    changes.CapturedGraphs: Margin(-0.0015, 100),
    changes.CopyStream: Margin(0.0009, 100),
    changes.Overlap: Margin(-0.0005, 100),
    changes.MoreLoaderWorkers: Margin(-0.0001, 100),
    changes.AccumulatedGradients: Margin(0.0013, 100),
    changes.GradientViews: Margin(0.0015, 100),
    changes.Prefetch: Margin(0.011, 100),
    changes.GroupModules: Margin(0.0093, 100),
    changes.MicroBatches: Margin(0.0123, 100),
    changes.EarlyMessages: Margin(0.0017, 100),
    changes.Schedule: Margin(-0.0005, 100),
    changes.EvenStages: Margin(0.0001, 100),
    changes.NoCollector: Margin(-0.0003, 100),
    changes.NoHostWork: Margin(-0.0005, 77),
    changes.NoAllocatorStalls: Margin(-0.0004, 100),
    changes.LoaderWorkers: Margin(-0.0005, 100),
    changes.PinnedCopies: Margin(0.0005, 100),
    changes.ReplacedRank: Margin(0.0002, 100),
    changes.SharedWork: Margin(0, 100),
}
"""The split-conformal quantile (Y. Romano and others, «Conformalized quantile regression», NeurIPS 2019) of
`python -m benchmarks.verdicts --only changes --fit --seed 72000 --seed 73000 --seed 77000 --seed 77300 --jobs 25`,
every second job with a fault besides the one that the change mends."""
INFERRED = 2.0
"""How many times as much where streams' waits are not recorded but inferred. Chosen, and checked on simulated jobs."""
MEETING = (changes.WireBytes, changes.Overlap, changes.Prefetch, changes.KeepParameters, changes.GroupModules)
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
