"""What the longest step outside the steady state is: a pause of all ranks, or some ranks that work alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.averages import median
from gpuscope.trace.breakdown import Breakdown

MOST = 0.5
"""Share of what the step takes beyond the usual one that must be of one kind."""

Shape = Literal["pause", "alone", ""]


def longest_outlier(facts: RunFacts, steps: Mapping[int, int]) -> tuple[Shape, list[int], str]:
    """Of the longest of some step numbers (durations, ns) its shape, the ranks that work alone in it, and what the host
    did longest while the device idled. Those beside it belong to it: where one rank holds up the others, it is late in
    the one and they wait in the next."""
    number = max(steps, key=lambda one: steps[one])
    run = {number}
    for way in (-1, 1):
        at = number + way
        while at in steps:
            run.add(at)
            at += way
    more = {lane.key: own for lane in facts.lanes if (own := _beyond(facts, lane, run)) is not None}
    beyond = max((sum(parts) for parts in more.values()), default=0)
    if beyond <= 0:
        return "", [], ""
    longest = {lane.key: _place(lane, run) for lane in facts.lanes if lane.key in more}
    if all(idle >= MOST * beyond for _, _, idle in more.values()):
        return "pause", [], next((place for place in longest.values() if place), "")
    waiting = {key for key, (_, waits, _) in more.items() if waits >= MOST * beyond}
    alone = {key for key, (works, waits, idle) in more.items() if works + idle >= MOST * beyond > waits}
    if waiting and alone and len(waiting) + len(alone) == len(more):
        return "alone", sorted({rank for rank, _ in alone}), next((longest[key] for key in sorted(alone)), "")
    return "", [], ""


def _beyond(facts: RunFacts, lane: LaneSummary, run: set[int]) -> tuple[int, int, int] | None:
    """By how much a lane computes or copies, waits in communication, and idles longer in some steps than in as many
    median judged ones, ns; None where either are missing."""
    usual = [lane.step_breakdowns[k] for k, judged in enumerate(facts.steady.places(lane).tolist()) if judged]
    own = [lane.step_breakdowns[k] for k, step in enumerate(lane.steps) if step.step in run]
    if not own or not usual:
        return None

    def more(part: Callable[[Breakdown], int]) -> int:
        return sum(map(part, own)) - round(len(own) * median(map(part, usual)))

    return (
        more(lambda one: one.compute + one.exposed_memory),
        more(lambda one: one.exposed_communication),
        more(lambda one: one.idle),
    )


def _place(lane: LaneSummary, run: set[int]) -> str:
    """What the lane's host did longest in these steps, as far as it is recorded."""
    work = [one for k, step in enumerate(lane.steps) if step.step in run for one in lane.once.get(k, ())]
    return max(work, key=lambda one: one.spent).name if work else ""
