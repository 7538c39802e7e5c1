"""How much slower than its ideal a job is, and the operations that cause it."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.slowdown.step_times import Scenarios, durations, ideal, step_times
from gpuscope.analyzers.step_graph.dependencies import Graph
from gpuscope.analyzers.step_graph.grid import Grid
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.when_used import dataclass

NOTICEABLE = 0.01
"""Share of a step below which a difference is ignored."""
MOST_WORKERS = 256
"""So many workers are replayed one by one; of more, those whose stage and replica are both slow."""


@dataclass(frozen=True)
class Effect:
    """What some operations do to the step, in ns: `alone` if only they are not ideal, `without` if only they are."""

    alone: float
    without: float
    often: float
    """Share of the steps that would be noticeably shorter without their slowness."""


Worker = tuple[int, int]
"""(stage, replica), as places in the grid."""


@dataclass(frozen=True)
class Slowdowns:
    """Mean step times in ns: replayed with the recorded durations, and with the ideal ones; effects of each
    operation type, stage and worker."""

    original: Times
    """ns of every operation as replayed, shape (operations, replicas, steps)."""
    best: Times
    """ns of every operation where none is slower than its peers, shape (operations,)."""
    recorded: float
    replayed: float
    ideal: float
    operations: dict[str, Effect]
    stages: dict[int, Effect]
    workers: dict[Worker, Effect]

    def ratio(self, effect: Effect) -> float:
        """S of a group: how many times slower than the ideal its operations alone make the step."""
        return effect.alone / self.ideal

    def lost(self, effect: Effect) -> float:
        """ns of the step that go away with the slowness of a group."""
        return self.replayed - effect.without

    def explained(self, effect: Effect) -> float:
        """M of a group: the share of the slowdown that goes away with its slowness; 0 without slowdown."""
        lost = self.replayed - self.ideal
        return self.lost(effect) / lost if lost > NOTICEABLE * self.replayed else 0.0


def slowdowns(grid: Grid, graph: Graph) -> Slowdowns:
    """Replay the job as it was, ideal, and with each operation type, stage and worker alone so."""
    original = durations(grid, graph)
    best = ideal(grid, original)
    everything, everyone = np.ones(len(grid), np.bool_), np.ones(len(grid.replicas), np.bool_)
    all_kept = Scenarios(everything[None], everyone[None], np.zeros(1, np.bool_))
    as_it_was = step_times(grid, graph, original, best, all_kept)

    def effects(chosen: list[tuple[Mask, Mask]]) -> list[Effect]:
        operations, replicas = (np.array(masks) for masks in zip(*chosen, strict=True))
        alone, without = (
            step_times(grid, graph, original, best, Scenarios(operations, replicas, np.full(len(chosen), others)))
            for others in (False, True)
        )
        often = (without < (1 - NOTICEABLE) * as_it_was).mean(axis=1)
        means = zip(alone.mean(axis=1).tolist(), without.mean(axis=1).tolist(), often.tolist(), strict=True)
        return [Effect(*values) for values in means]

    types = sorted(set(grid.op))
    of_type = effects([(np.array([op == name for op in grid.op]), everyone) for name in types])
    stages = [grid.stage == stage for stage in range(grid.stages)]
    of_stage = effects([(stage, everyone) for stage in stages])
    (whole,) = effects([(everything, everyone)])
    each = np.eye(len(grid.replicas), dtype=np.bool_)
    workers = [(stage, replica) for stage in range(grid.stages) for replica in range(len(grid.replicas))]
    if len(workers) > MOST_WORKERS:
        of_replica = effects([(everything, replica) for replica in each])
        workers.sort(key=lambda worker: -min(of_stage[worker[0]].alone, of_replica[worker[1]].alone))
        workers = sorted(workers[:MOST_WORKERS])
    of_worker = effects([(stages[stage], each[replica]) for stage, replica in workers])
    return Slowdowns(
        original=original,
        best=best,
        recorded=float((grid.end.max(axis=(0, 1)) - grid.start.min(axis=(0, 1))).mean()),
        replayed=whole.alone,
        ideal=whole.without,
        operations=dict(zip(types, of_type, strict=True)),
        stages=dict(enumerate(of_stage)),
        workers=dict(zip(workers, of_worker, strict=True)),
    )
