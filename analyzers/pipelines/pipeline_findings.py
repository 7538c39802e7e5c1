"""Findings of a pipeline: the stage that has more to compute than the others, and too few micro-batches.

Their cost is measured: parts of the bubbles, mean over stages and steps. What a change would gain, the replay says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from math import sqrt

from gpuscope.analyzers.changes import Predicted, Refused
from gpuscope.analyzers.facts.pipeline_facts.flushes import Computation, Flush
from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap
from gpuscope.analyzers.pipelines.stage_pace import Pace, StepLength
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.averages import fmean
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.pipelines import FILLED_BY_MORE, FewMicroBatches, PipelineImbalance, SlowWorker
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.pipeline_section import Pipeline
from gpuscope.words import units

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
