"""Findings of a pipeline: the stage that has more to compute than the others, and too few micro-batches.

Their cost is measured: parts of the bubbles, mean over stages and steps. What a change would gain, the replay says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import numpy as np

from gpuscope.analyzers.collectives.lateness import WorkOfRanks, beyond_peers
from gpuscope.analyzers.collectives.stragglers import judged_core_times
from gpuscope.analyzers.facts.pipeline_facts import Computation, Flush, StageMap
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.analyzers.what_if_changes import Predicted, Refused
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.pipelines import (
    FILLED_BY_MORE,
    FewMicroBatches,
    PipelineImbalance,
    SlowWorker,
    WorkOutsidePipeline,
)
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.provenance import Pipeline, PipelineRow
from gpuscope.trace.table import Table
from gpuscope.welch import fmean, median
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import VERDICT_SHARE

# What sets a rank of a pipeline apart: slower operations, more layers, or work outside the pipeline's computations.

STAGE_PACE_SIGNIFICANT = 3.0
"""Standard errors by which a rank's steps must hold more work than the others'."""
STAGE_PACE_SHOWN = 5


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
        if len(over) < 2 or fmean(over.values()) <= STAGE_PACE_SIGNIFICANT * stdev(over.values()) / sqrt(len(over)):
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
    longest = sorted(over, key=lambda number: -over[number])[:STAGE_PACE_SHOWN]
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


ENOUGH = 4
"""«We found the bubble overhead to be almost negligible when M ≥ 4 × K» (M micro-batches, K stages): Huang et al.
2019, GPipe, section 2.3. With v chunks per stage filling takes 1/v of the time (Narayanan et al. 2021, 2.2.2)."""
MOST = 0.5
"""A stage that is the busiest in more than this share of the steps is the busiest."""
SIGNIFICANT = 3.0
"""Standard errors by which its micro-batches must take longer than the others'."""
SHOWN = 5


def few_micro_batches(
    section: Pipeline, step: StepLength, found: Sequence[Flush], stages: StageMap
) -> list[FindingEntry]:
    """The finding where there are fewer micro-batches than hide the filling, and that costs time."""
    schedule = section["schedule"]
    m, p, v = schedule["micro_batches"], schedule["stages"], schedule["chunks_per_stage"]
    measured = _mean([row["bubble_ns"]["warm_up"] + row["bubble_ns"]["drain"] for row in section["rows"]])
    # The schedule's own part: a late rank, or a long stage, makes the others wait longer for the first micro-batch.
    best = schedule["ideal_bubble_frac"]
    cost = (
        measured if not best else min(measured, best / (1 - best) * _mean([r["compute_ns"] for r in section["rows"]]))
    )
    share = cost / step.mean
    if best is None or schedule["name"] not in FILLED_BY_MORE or m * v >= ENOUGH * p or share < MIN_SHARE:
        return []
    words = FewMicroBatches(m, p, schedule["name"], step.part(cost), best, section["more_micro_batches"])
    shown = [_filled(flush, stages) for flush in sorted(found, key=lambda one: -_filling(one))[:SHOWN]]
    return [
        made(
            words,
            ranks=stages.places,
            share=share,
            cost_ns=round(cost * len(found)),
            mean_ns=round(cost),
            evidence=shown,
        )
    ]


def _mean(values: Sequence[int]) -> float:
    """Mean over the rows of the section: over stages, pipelines and steps."""
    return fmean(values) if values else 0.0


def _filling(flush: Flush) -> int:
    """ns until the last stage has its first micro-batch."""
    return flush.stages[-1][0].start - flush.span[0]


def _filled(flush: Flush, stages: StageMap) -> Evidence:
    """How long the last stage waits for its first micro-batch."""
    last = len(flush.stages) - 1
    return {
        "rank": _rank(stages, flush.pipeline, last),
        "start_ns": flush.span[0],
        "dur_ns": _filling(flush),
        "name": "pipeline fills",
        "note": f"step {flush.step}: until stage {last} has its first micro-batch",
    }


def imbalance(
    section: Pipeline,
    even: Predicted | Refused,
    step: StepLength,
    found: Sequence[Flush],
    stages: StageMap,
    pace_of: Callable[[int], Pace | None],
) -> list[FindingEntry]:
    """The finding where one stage is the busiest in most steps, beyond the scatter of its micro-batches, and the others
    idle for it; none where the replay says that an even split would not shorten the step.

    Where the same operations on the same shapes take longer there, it is the pace of its ranks (`slow_worker`), not its
    layers; nor is it where they take longer for want of a core.
    """
    cost = _mean([row["bubble_ns"]["imbalance"] for row in section["rows"]])
    share = cost / step.mean
    stage, often = Counter(_busiest(flush) for flush in found).most_common(1)[0]
    if share < MIN_SHARE or often <= MOST * len(found) or not _beyond_scatter(found, stage):
        return []
    if isinstance(even, Predicted) and even.before - even.after < MIN_SHARE * even.before:
        return []
    pace = pace_of(stage)
    if pace is not None and pace.known and pace.more < MOST * cost:
        slow_ranks = sorted(rank for rank, (_, at) in stages.places.items() if at == stage)
        return [_slow_rank(slow_ranks, stage, pace, cost, step, found, stages)] if pace.slower >= MOST * cost else []
    pipelines = sorted({flush.pipeline for flush in found})
    slow = [at for at in pipelines if _is_busiest(stage, [flush for flush in found if flush.pipeline == at])]
    ranks = sorted(_rank(stages, pipeline, stage) for pipeline in slow or pipelines)
    own, others = _work(found, stage)
    words = PipelineImbalance(
        stage,
        stages.stages,
        round(own),
        round(others),
        step.part(cost),
        section["even_split"],
        len(pipelines),
        len(slow),
        told_apart=pace is not None and pace.known,
    )
    return [
        made(
            words,
            ranks=ranks,
            share=share,
            cost_ns=round(cost * len(found)),
            mean_ns=round(cost),
            evidence=_longest(found, stage, stages),
        )
    ]


def _slow_rank(
    ranks: list[int], stage: int, pace: Pace, cost: float, step: StepLength, found: Sequence[Flush], stages: StageMap
) -> FindingEntry:
    """A stage that is slow at equal work."""
    words = SlowWorker(ranks, stage, slower_ns=step.part(pace.slower), idle_ns=step.part(cost))
    return made(
        words,
        ranks=ranks,
        share=cost / step.mean,
        cost_ns=round(cost * len(found)),
        mean_ns=round(cost),
        evidence=_longest(found, stage, stages),
    )


def _rank(stages: StageMap, pipeline: int, stage: int) -> int:
    return next(rank for rank, place in stages.places.items() if place == (pipeline, stage))


def _busiest(flush: Flush) -> int:
    totals = [sum(one.duration for one in own) for own in flush.stages]
    return totals.index(max(totals))


def _is_busiest(stage: int, flushes: Sequence[Flush]) -> bool:
    return sum(_busiest(flush) == stage for flush in flushes) > MOST * len(flushes)


def _per_micro_batch(own: Sequence[Computation]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for one in own:
        found[one.micro_batch] += one.duration
    return found


def _work(found: Sequence[Flush], stage: int) -> tuple[float, float]:
    """ns per micro-batch that a stage computes, and that the others do on average."""
    works = [
        (at, ns) for flush in found for at, own in enumerate(flush.stages) for ns in _per_micro_batch(own).values()
    ]
    return fmean(ns for at, ns in works if at == stage), fmean(ns for at, ns in works if at != stage)


def _beyond_scatter(found: Sequence[Flush], stage: int) -> bool:
    """Whether micro-batches take longer on this stage than on the others, by `SIGNIFICANT` standard errors."""
    from statistics import stdev

    over = []
    for flush in found:
        works = [_per_micro_batch(own) for own in flush.stages]
        for micro_batch, own in works[stage].items():
            others = [work[micro_batch] for at, work in enumerate(works) if at != stage]
            over.append(own - fmean(others))
    return len(over) > 1 and fmean(over) > SIGNIFICANT * stdev(over) / sqrt(len(over))


def _longest(found: Sequence[Flush], stage: int, stages: StageMap) -> list[Evidence]:
    """The stage's computations that lie furthest above those of their kind on the other stages."""
    mean: dict[str, float] = {}
    for kind in ("F", "B", "W"):
        took = [
            computation.duration
            for flush in found
            for at, own in enumerate(flush.stages)
            for computation in own
            if computation.kind == kind and at != stage
        ]
        if took:
            mean[kind] = fmean(took)
    own = [(flush, one) for flush in found for one in flush.stages[stage] if one.kind in mean]
    own.sort(key=lambda pair: mean[pair[1].kind] - pair[1].duration)
    return [
        {
            "rank": _rank(stages, flush.pipeline, stage),
            "start_ns": one.start,
            "dur_ns": one.duration,
            "name": {"F": "forward", "B": "backward", "W": "weight gradients"}[one.kind],
            "note": f"step {flush.step}, micro-batch {one.micro_batch}: {units.duration(one.duration)} vs. "
            f"{units.duration(round(mean[one.kind]))} on the other stages",
        }
        for flush, one in own[:SHOWN]
    ]
