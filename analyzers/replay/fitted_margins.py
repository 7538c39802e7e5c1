"""What the range of a change on a GPU takes beyond its known sources of error, fitted to simulated jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpuscope.analyzers import changes
from gpuscope.analyzers.changes import Change
from gpuscope.analyzers.replay.graph import Graph
from gpuscope.analyzers.replay.link_sharing import can_crowd


class Margin(NamedTuple):
    """`share` of the step on either side, so that nine in ten of so many `predictions` were held. Less than 0 where
    what is known to be uncertain holds more alone."""

    share: float
    predictions: int


MARGINS: Mapping[type[Change], Margin] = {
    changes.WireBytes: Margin(0.0008, 175),
    changes.LinkSpeed: Margin(0.0007, 175),
    changes.KeepParameters: Margin(0.0054, 95),
    changes.BucketSize: Margin(0.0001, 173),
    changes.RemovedSyncs: Margin(-0.0001, 174),
    changes.CapturedGraphs: Margin(-0.0014, 171),
    changes.CopyStream: Margin(0.0003, 169),
    changes.Overlap: Margin(-0.0003, 173),
    changes.MoreLoaderWorkers: Margin(-0.0003, 171),
    changes.AccumulatedGradients: Margin(0.0002, 51),
    changes.GradientViews: Margin(0.0027, 51),
    changes.Prefetch: Margin(0.0105, 77),
    changes.GroupModules: Margin(0.0423, 51),
    changes.MicroBatches: Margin(0.0446, 66),
    changes.EarlyMessages: Margin(0.0028, 75),
    changes.Schedule: Margin(0.0046, 67),
    changes.EvenStages: Margin(0.0003, 51),
    changes.NoCollector: Margin(0.0002, 51),
    changes.NoHostWork: Margin(-0.0002, 50),
    changes.NoAllocatorStalls: Margin(-0.0001, 50),
    changes.LoaderWorkers: Margin(-0.0002, 50),
    changes.PinnedCopies: Margin(0.0016, 50),
    changes.ReplacedRank: Margin(0.0034, 48),
    changes.SharedWork: Margin(0.0208, 48),
}
"""The split-conformal quantile (Y. Romano and others, «Conformalized quantile regression», NeurIPS 2019) of
`python -m benchmarks.verdicts --only changes --fit --seed 10000 --seed 15000 --seed 20000`, stopped on 2026-11-25 when
so many were made."""
INFERRED = 2.0
"""How many times as much where streams' waits are not recorded but inferred. Chosen, and checked on simulated jobs."""
MEETING = (changes.WireBytes, changes.Overlap, changes.Prefetch, changes.KeepParameters, changes.GroupModules)
"""Changes of when or for how long collectives run…"""
ON_ONE_LINK = Margin(0.0047, 64)
"""… and their margin where those of two streams may meet on one link."""
NOT_FITTED = Margin(max(own.share for own in MARGINS.values()), 0)
"""Of other changes: as wide as the widest."""
TOGETHER = Margin(-0.0011, 173)
"""Beyond the largest of several changes."""
LEAST = Margin(0.005, 123)
"""Of any change: jobs with several faults at once, of which advice picks what gains most, miss by more than changes
asked of jobs with one. Fitted to `python -m benchmarks.verdicts --only advice`, seeds 0 to 44 and 20000 to 20039."""


def margin(made: Collection[Change], graph: Graph | None) -> float:
    """Of changes to a run, in shares of the step."""
    if not made:
        return 0.0
    crowded = graph is not None and can_crowd(graph)
    own = [ON_ONE_LINK if crowded and isinstance(one, MEETING) else MARGINS.get(type(one), NOT_FITTED) for one in made]
    found = max(one.share for one in own) + (TOGETHER.share if len(own) > 1 else 0.0)
    return max(found, LEAST.share) * (INFERRED if graph is not None and graph.inferred else 1.0)
