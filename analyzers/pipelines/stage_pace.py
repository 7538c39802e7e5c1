"""What sets a rank of a pipeline apart: slower operations, more layers, or work outside the pipeline's computations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from gpuscope.analyzers.collectives.lateness import beyond_peers
from gpuscope.analyzers.collectives.stragglers import judged_core_times
from gpuscope.analyzers.collectives.work_of_ranks import WorkOfRanks
from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.averages import fmean, median
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.pipelines import WorkOutsidePipeline
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.pipeline_section import PipelineRow
from gpuscope.trace.columns.table import Table
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import VERDICT_SHARE

SIGNIFICANT = 3.0
"""Standard errors by which a rank's steps must hold more work than the others'."""
SHOWN = 5


@dataclass(frozen=True)
class Pace:
    """What a stage computes beyond the median of the others, ns per step, mean over its ranks."""

    slower: float
    """The same operations on the same shapes take so much longer, time without a core left out."""
    more: float
    """More operations, or larger ones."""
    known: bool
    """Whether shapes or counts are known well enough to tell the two apart."""

    @property
    def of_rank(self) -> bool:
        """Whether the stage is slow for the pace of its ranks rather than for its layers."""
        return self.known and self.slower > self.more


@dataclass(frozen=True)
class StepLength:
    """What costs of the pipeline are shares of: the mean step, ns; and «the step», which sentences name parts of."""

    mean: float
    the_step: int

    def part(self, cost: float) -> int:
        """A mean cost per step as a part of «the step», ns."""
        return round(cost / self.mean * self.the_step)


def pace(facts: RunFacts, stages: StageMap, stage: int) -> Pace | None:
    """How a stage compares with the median of the others; None where the work of its ranks is not recorded."""
    work = WorkOfRanks(_by_stage(facts.trace["work"], stages))
    place = work.place(stage)
    if place is None or len(work.ranks) < 2:
        return None
    ranks = [rank for rank, (_, at) in stages.places.items() if at == stage]
    without_core = beyond_peers(judged_core_times(facts))
    slower = float(work.longer.slower[place]) - fmean(without_core.get(rank, 0.0) for rank in ranks)
    return Pace(slower, float(work.longer.more[place]), work.longer.told_apart(place))


def _by_stage(work: Table, stages: StageMap) -> Table:
    """`work` with stages in place of ranks, and as many steps as all ranks of a stage have."""
    rank, stage_of = work["rank"], {rank: stage for rank, (_, stage) in stages.places.items()}
    work = work.take(np.isin(rank, list(stage_of)))
    ranks, first, place = np.unique(work["rank"], return_index=True, return_inverse=True)
    stage = np.array([stage_of[rank] for rank in ranks.tolist()], np.int64)
    steps = np.bincount(stage, work["steps"][first])
    shapes = np.stack([stage[place], work["operation"], work["dims"]])
    kinds, one, group = np.unique(shapes, axis=1, return_index=True, return_inverse=True)
    sums = {name: np.bincount(group.ravel(), work[name], kinds.shape[1]).astype(np.int64) for name in ("count", "dur")}
    return Table(
        work.schema, {**work.take(one).columns, "rank": kinds[0], "steps": steps[kinds[0]].astype(np.int64), **sums}
    )


def outside_work(
    facts: RunFacts, rows: Sequence[PipelineRow], stages: StageMap, step: StepLength
) -> list[FindingEntry]:
    """A finding per rank that computes more than the others outside the pipeline's computations, by as much as bounds
    a run: all stages wait for it, and neither the schedule nor the split is to blame."""
    from statistics import stdev

    outside, without_core = _outside(facts, rows), beyond_peers(judged_core_times(facts))
    found = []
    for rank, own in outside.items():
        over = _beyond_others(outside, rank)
        if len(over) < 2 or fmean(over.values()) <= SIGNIFICANT * stdev(over.values()) / sqrt(len(over)):
            continue
        cost = fmean(over.values()) - without_core.get(rank, 0.0)
        if cost >= VERDICT_SHARE * step.mean:
            found.append(_finding(facts, stages, rank, own, over, cost, step))
    return found


def _outside(facts: RunFacts, rows: Sequence[PipelineRow]) -> dict[int, dict[int, int]]:
    """ns per rank and judged step that its device computes outside the pipeline's computations."""
    inside: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows:
        inside[row["rank"], row["step"]] += row["compute_ns"]
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for lane in facts.lanes:
        for window, breakdown in zip(lane.steps, lane.step_breakdowns, strict=True):
            if (lane.rank, window.step) in inside and facts.steady.judged(window.step):
                found[lane.rank][window.step] = max(breakdown.compute - inside[lane.rank, window.step], 0)
    return dict(found)


def _beyond_others(outside: Mapping[int, Mapping[int, int]], rank: int) -> dict[int, float]:
    """By how much a rank exceeds the median of the others, by step."""
    found = {}
    for step, ns in outside[rank].items():
        others = [own[step] for other, own in outside.items() if other != rank and step in own]
        if others:
            found[step] = ns - median(others)
    return found


def _finding(
    facts: RunFacts,
    stages: StageMap,
    rank: int,
    own: Mapping[int, int],
    over: Mapping[int, float],
    cost: float,
    step: StepLength,
) -> FindingEntry:
    longest = sorted(over, key=lambda number: -over[number])[:SHOWN]
    windows = {window.step: window for lane in facts.lanes if lane.rank == rank for window in lane.steps}
    evidence: list[Evidence] = [
        {
            "rank": rank,
            "start_ns": windows[number].start,
            "dur_ns": windows[number].end - windows[number].start,
            "name": f"step {number}",
            "note": f"{units.duration(own[number])} of compute outside the pipeline's computations",
        }
        for number in longest
    ]
    words = WorkOutsidePipeline(rank, stages.places[rank][1], step.part(fmean(own.values())), step.part(cost))
    return made(
        words,
        ranks=[rank],
        share=cost / step.mean,
        cost_ns=round(cost * len(over)),
        mean_ns=round(cost),
        evidence=evidence,
    )
