"""What a report says of each rank and of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.base.analyzer import Attributed
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.facts.steady_state import SteadyState
from gpuscope.analyzers.serving.served_steps import Batches
from gpuscope.analyzers.verdict import verdict
from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.cause_table import class_of
from gpuscope.schema.document import BreakdownEntry, RankEntry, Stalls, StepEntry
from gpuscope.trace.breakdown import Breakdown
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

Causes = Mapping[str, Attributed]


def judged_causes(steady: SteadyState, lane: LaneSummary, causes: Causes) -> dict[str, Attributed]:
    """A lane's causes over its judged steps alone; those that took none of it are left out."""
    found = {cause: replace(one, total=steady.measure(lane, one.total, one.per_step)) for cause, one in causes.items()}
    return {cause: one for cause, one in found.items() if one.total}


def _stalls(sums: Mapping[str, int]) -> Stalls:
    stalls: dict[str, dict[str, int]] = {"cpu": {}, "communication": {}, "memory": {}}
    for cause, spent in sums.items():
        class_name = class_of(cause)
        if class_name is not None:
            stalls[class_name][UNATTRIBUTED if cause == UNDIVIDED_COMMUNICATION else cause] = spent
    return {
        "cpu": stalls["cpu"],
        "communication": stalls["communication"],
        "memory": stalls["memory"],
        "unattributed": sums.get(UNATTRIBUTED, 0),
    }


def _parts(breakdown: Breakdown) -> BreakdownEntry:
    return BreakdownEntry(
        compute=breakdown.compute,
        exposed_communication=breakdown.exposed_communication,
        exposed_memory=breakdown.exposed_memory,
        idle=breakdown.idle,
    )


def rank_entry(facts: RunFacts, lane: LaneSummary, causes: Causes) -> RankEntry:
    """A lane over its judged steps."""
    breakdown = facts.steady.breakdown(lane)
    judged = [step.start for step in lane.steps if facts.steady.judged(step.step)]
    return {
        "rank": lane.rank,
        "device": None if lane.device == NA else lane.device,
        "device_name": _device_name(facts.trace, lane),
        "window_ns": breakdown.window,
        "start_ns": judged[0] if judged else lane.window[0],
        "steps": facts.steady.count(lane),
        "recorded_ns": lane.breakdown.window,
        "recorded_breakdown_ns": _parts(lane.breakdown),
        "breakdown_ns": _parts(breakdown),
        "communication_ns": breakdown.communication,
        "overlapped_communication_ns": breakdown.overlapped_communication,
        "overlap_frac": breakdown.overlapped_communication / breakdown.communication
        if breakdown.communication
        else None,
        "stall_ns": _stalls({cause: one.total for cause, one in judged_causes(facts.steady, lane, causes).items()}),
    }


def _device_name(trace: Trace, lane: LaneSummary) -> str | None:
    ranks = trace["ranks"]
    rows = np.flatnonzero((ranks["rank"] == lane.rank) & (ranks["device"] == lane.device))
    code = int(ranks["device_name"][rows[0]]) if len(rows) else NO_NAME
    return trace.names[code] if code != NO_NAME else None


def step_entries(steady: SteadyState, lane: LaneSummary, causes: Causes, batches: Batches) -> list[StepEntry]:
    """Each recorded step of a lane, judged or not; a server's with phase and batch."""
    entries: list[StepEntry] = []
    for index, (step, breakdown) in enumerate(zip(lane.steps, lane.step_breakdowns, strict=True)):
        own = {cause: int(attributed.per_step[index]) for cause, attributed in causes.items()}
        top, cause, _ = verdict.bound(own, breakdown.window)
        phase, batch = batches.get((lane.rank, step.step), (None, None))
        entries.append(
            {
                "step": None if step.step == NA else step.step,
                "rank": lane.rank,
                "device": None if lane.device == NA else lane.device,
                "role": steady.role(step.step).value,
                "start_ns": step.start,
                "dur_ns": breakdown.window,
                "breakdown_ns": _parts(breakdown),
                "bound_by": top,
                "cause": cause,
                "phase": phase,
                "batch": batch,
            }
        )
    return entries
