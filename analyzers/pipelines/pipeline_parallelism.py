"""Pipeline parallelism: who is which stage, on what schedule, how long each stage idles and what would help."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from gpuscope.analyzers.base.analyzer import Need, Result, any_of
from gpuscope.analyzers.base.lanes import PIPELINE
from gpuscope.analyzers.facts.pipeline_facts import (
    Computation,
    Flush,
    Key,
    StageMap,
    mean_begin_to_begin,
    of_recorded_ranks,
)
from gpuscope.analyzers.facts.run_facts import RunFacts, WhatIf, WhatIfAnalyzer
from gpuscope.analyzers.pipelines.schedules import Recognised, ideal, recognise
from gpuscope.analyzers.what_if_changes import EvenStages, MicroBatches, Predicted, Refused
from gpuscope.schema.provenance import (
    Pipeline,
    PipelineBubble,
    PipelineComputation,
    PipelineGain,
    PipelineRow,
    PipelineSchedule,
    PipelineStage,
    PipelineTimeline,
)
from gpuscope.trace.intervals import Spans, complement, measure_within, union
from gpuscope.trace.table import Times
from gpuscope.welch import fmean
from gpuscope.when_used import dataclass
from gpuscope.words import units

_KINDS: dict[str, Literal["forward", "backward", "weight"]] = {"F": "forward", "B": "backward", "W": "weight"}


def run(facts: RunFacts, what_if: WhatIf) -> Result:
    """The section `pipeline`; nothing for a job without a pipeline."""
    result, stages = Result(ANALYZER.name), facts.stages
    if stages is None:
        return result
    from gpuscope.analyzers.pipelines.pipeline_findings import (
        StepLength,
        few_micro_batches,
        imbalance,
        outside_work,
        pace,
    )

    whole, left_out = facts.flushes
    section: Pipeline = {
        "basis": stages.basis,
        "provenance": stages.provenance,
        "stages": _stages(stages, whole),
        "incomplete": stages.incomplete,
    }
    result.sections[PIPELINE] = section
    if not whole:
        section["incomplete"] = section["incomplete"] or "no step holds all computations of a pipeline"
        result.status, result.why = "skipped", section["incomplete"]
        return result
    rows = [row for flush in whole for row in _rows(flush, stages)]
    schedule = _schedule(whole)
    section["schedule"] = _schedule_entry(schedule, stages.stages)
    section["rows"] = _per_step(rows)
    section["bubble_frac"] = sum(map(bubble_of, rows)) / max(sum(row["dur_ns"] for row in rows), 1)
    section["steps_left_out"] = left_out
    section["timeline"] = _timeline(whole, rows, what_if, stages)
    found = gains(what_if, schedule.micro_batches)
    _add_gains(section, found, schedule)
    mean = _judged_mean(facts) or mean_begin_to_begin(whole)
    step = StepLength(mean, facts.step_ns or round(mean))
    result.findings = few_micro_batches(section, step, whole, stages)
    if of_recorded_ranks(facts.trace):  # of a job's own timers, `slowdown` names the stage or worker
        result.findings += imbalance(
            section, found.even_split, step, whole, stages, lambda stage: pace(facts, stages, stage)
        )
        result.findings += outside_work(facts, section["rows"], stages, step)
    return result


def _judged_mean(facts: RunFacts) -> float:
    """Mean judged step over lanes, ns; 0 without lanes."""
    counted = [(facts.steady.breakdown(lane).window, max(facts.steady.count(lane), 1)) for lane in facts.lanes]
    return fmean(window / steps for window, steps in counted) if counted else 0.0


def _stages(stages: StageMap, whole: Sequence[Flush]) -> list[PipelineStage]:
    chunks: dict[int, set[int]] = defaultdict(set)
    for stage, own in enumerate(whole[0].stages if whole else ()):
        chunks[stage] = {one.model_chunk for one in own}
    ordered = sorted((pipeline, stage, rank) for rank, (pipeline, stage) in stages.places.items())
    return [
        PipelineStage(pipeline=pipeline, stage=stage, rank=rank, model_chunks=sorted(chunks[stage]))
        for pipeline, stage, rank in ordered
    ]


def _schedule(whole: Sequence[Flush]) -> Recognised:
    """The schedule that all flushes share; unknown where they differ."""
    found = Counter(recognise(flush) for flush in whole)
    (most, count), *others = found.most_common()
    if not others:
        return most
    names = ", ".join(
        f"{one.name} with {units.plural(one.micro_batches, 'micro-batch', 'micro-batches')} {units.count(times)} times"
        for one, times in found.most_common(3)
    )
    if count > 0.9 * len(whole):  # a step that the recording cut, or a warm-up of its own
        return Recognised(most.name, f"{most.why}; not always: {names}", most.micro_batches, most.chunks)
    return Recognised("unknown", f"steps and pipelines differ: {names}", most.micro_batches, most.chunks)


def _schedule_entry(found: Recognised, stages: int) -> PipelineSchedule:
    best = ideal(found, stages)
    return {
        "name": found.name,
        "stages": stages,
        "micro_batches": found.micro_batches,
        "chunks_per_stage": found.chunks,
        "why": found.why,
        "ideal_bubble_frac": best.bubble_frac,
        "ideal_basis": best.basis,
    }


def _rows(flush: Flush, stages: StageMap) -> list[PipelineRow]:
    start, end = flush.span
    rank = {place: rank for rank, place in stages.places.items()}
    return [
        PipelineRow(
            pipeline=flush.pipeline,
            stage=stage,
            rank=rank[flush.pipeline, stage],
            step=flush.step,
            start_ns=start,
            dur_ns=end - start,
            compute_ns=own.compute,
            bubble_ns=own.parts,
        )
        for stage, own in enumerate(bubbles(flush))
    ]


def _per_step(rows: Sequence[PipelineRow]) -> list[PipelineRow]:
    """Rows of several flushes in a step added up."""
    found: dict[tuple[int, int, int], PipelineRow] = {}
    for row in rows:
        key = row["pipeline"], row["step"], row["stage"]
        if key not in found:
            found[key] = {**row, "bubble_ns": {**row["bubble_ns"]}}
            continue
        whole, parts, more = found[key], found[key]["bubble_ns"], row["bubble_ns"]
        whole["dur_ns"] += row["dur_ns"]
        whole["compute_ns"] += row["compute_ns"]
        parts["warm_up"] += more["warm_up"]
        parts["steady"] += more["steady"]
        parts["drain"] += more["drain"]
        parts["imbalance"] += more["imbalance"]
    return list(found.values())


def bubble_of(row: PipelineRow) -> int:
    """ns of a stage's whole bubble."""
    return row["dur_ns"] - row["compute_ns"]


def _add_gains(section: Pipeline, found: Gains, schedule: Recognised) -> None:
    section["even_split"] = entry(found.even_split, schedule.micro_batches)
    section["more_micro_batches"] = entry(found.more_micro_batches, MORE * schedule.micro_batches)


def _timeline(
    whole: Sequence[Flush], rows: Sequence[PipelineRow], what_if: WhatIf, stages: StageMap
) -> PipelineTimeline:
    """The step and pipeline whose bubble is the median, as it was and with an even split."""
    idle: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows:
        idle[row["pipeline"], row["step"]] += bubble_of(row)
    key = sorted(idle, key=lambda key: (idle[key], key))[len(idle) // 2]
    shown = [flush for flush in whole if (flush.pipeline, flush.step) == key]
    evened = [(flush, places) for flush in shown if (places := what_if.pipeline_places(flush, EVEN))]
    return {
        "pipeline": key[0],
        "step": key[1],
        "computations": [one for flush in shown for one in _entries(flush, None, stages)],
        "ideal": [one for flush, places in evened for one in _entries(flush, places, stages)],
    }


def _entries(
    flush: Flush, places: Mapping[Key, tuple[int, int]] | None, stages: StageMap
) -> Iterator[PipelineComputation]:
    """The computations of a flush as recorded, or at these places."""
    rank = {place: rank for rank, place in stages.places.items()}
    begin, _ = flush.span
    for stage, own in enumerate(flush.stages):
        for one in own:
            start, end = (one.start, one.end) if places is None else places[one.key]
            yield {
                "stage": stage,
                "rank": rank[flush.pipeline, stage],
                "kind": _KINDS[one.kind],
                "micro_batch": one.micro_batch,
                "model_chunk": one.model_chunk,
                "start_ns": start + (begin if places is not None else 0),
                "dur_ns": end - start,
            }


ANALYZER = WhatIfAnalyzer(
    "pipeline",
    run,
    (
        Need(
            "operations, process groups or messages",
            "stages are found from ranges around computations, process groups, or sends and receives",
            any_of("operations", "groups", "collectives"),
            optional=True,
        ),
    ),
    (PIPELINE,),
)


EVEN = EvenStages()
MORE = 2
"""So many times the micro-batches."""


@dataclass(frozen=True)
class Gains:
    """What the replay predicts, or why it does not."""

    even_split: Predicted | Refused
    more_micro_batches: Predicted | Refused


def gains(what_if: WhatIf, micro_batches: int) -> Gains:
    """The answers for a pipeline of so many micro-batches."""
    return Gains(what_if.predict(EVEN), what_if.predict(MicroBatches(MORE * micro_batches)))


def entry(outcome: Predicted | Refused, micro_batches: int) -> PipelineGain:
    """An answer as the report holds it."""
    if isinstance(outcome, Refused):
        return {"micro_batches": micro_batches, "step_factor": None, "predicted": None, "why_not": outcome.why}
    return {
        "micro_batches": micro_batches,
        "step_factor": outcome.after / outcome.before if outcome.before else None,
        "predicted": {
            "step_ns_before": outcome.before,
            "step_ns_after": outcome.after,
            "low_ns": outcome.low,
            "high_ns": outcome.high,
            "basis": outcome.basis,
            "provenance": outcome.provenance,
        },
        "why_not": "",
    }


@dataclass(frozen=True)
class StageBubble:
    """A stage between filling and draining: ns of its computing and of its bubble's parts; both sum to the span."""

    compute: int
    parts: PipelineBubble


def bubbles(flush: Flush) -> list[StageBubble]:
    """The bubble of every stage of a flush (docs/definitions.md: «Pipeline»)."""
    start, end = flush.span
    computing = [_busy(own) for own in flush.stages]
    most = max(busy.total for busy in computing)
    found = []
    for own, busy in zip(flush.stages, computing, strict=True):
        bounds = _phases(own, start, end)
        idle = measure_within(complement(busy, start, end), bounds[:-1], bounds[1:]).tolist()
        computed = measure_within(busy, bounds[:-1], bounds[1:]).tolist()
        imbalance = shared_out(most - busy.total, computed, idle)
        left = [own_idle - part for own_idle, part in zip(idle, imbalance, strict=True)]
        parts = PipelineBubble(warm_up=left[0], steady=left[1], drain=left[2], imbalance=sum(imbalance))
        found.append(StageBubble(busy.total, parts))
    return found


def _busy(own: Sequence[Computation]) -> Spans:
    return union(np.array([one.start for one in own], np.int64), np.array([one.end for one in own], np.int64))


def _phases(own: Sequence[Computation], start: int, end: int) -> Times:
    """Bounds of warm-up, steady phase and drain: the stage's first backward, and the end of its last forward."""
    first_backward = min((one.start for one in own if one.kind != "F"), default=end)
    last_forward = max((one.end for one in own if one.kind == "F"), default=start)
    return np.array([start, first_backward, max(first_backward, last_forward), end], np.int64)


def shared_out(amount: int, weights: Sequence[int], room: Sequence[int]) -> list[int]:
    """`amount` in whole ns over places by their weights, none beyond its room; what does not fit goes to the others
    by the room they have left. `amount` must not exceed the room of all."""
    given = _in_proportion(amount, weights, room)
    left = [space - own for space, own in zip(room, given, strict=True)]
    given = [own + more for own, more in zip(given, _in_proportion(amount - sum(given), left, left), strict=True)]
    for place, space in enumerate(room):  # the odd ns
        given[place] += min(amount - sum(given), space - given[place])
    return given


def _in_proportion(amount: int, weights: Sequence[int], room: Sequence[int]) -> list[int]:
    total = sum(weights)
    return [min(amount * weight // total if total else 0, space) for weight, space in zip(weights, room, strict=True)]
