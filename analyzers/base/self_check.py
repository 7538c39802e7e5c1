"""Whether what is reported of a lane adds up (docs/definitions.md): a report of 103 % must not be shown.

Per lane and per step: the breakdown's parts sum to the window, the steps tile it, and the causes of each part sum to
that part, so all causes to window − compute. Allocator time is idle in the breakdown though memory by class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from gpuscope.analyzers.base.analyzer import Attributed, LaneKey, Result
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.catalogue.cause_table import CAUSES
from gpuscope.trace.breakdown import Breakdown
from gpuscope.trace.schema import NA

NAME = "self_check"
PARTS: Mapping[str, str] = {cause.code: cause.part for cause in CAUSES}
"""The part of the breakdown that each cause is a share of."""
SHOWN = 3
"""Breaches that the message spells out."""


def self_check(
    lanes: Sequence[LaneSummary], causes: Mapping[LaneKey, Mapping[str, Attributed]], unsettled: Collection[str] = ()
) -> tuple[Result, set[LaneKey]]:
    """As an analysis of its own: failed, with lanes and numbers, where something does not add up; and those lanes.

    `unsettled` are causes whose analysis was skipped or failed: parts that they belong to are not compared.
    """
    skipped = {PARTS[cause] for cause in unsettled}
    found = {lane.key: [*breaches(lane, causes.get(lane.key, {}), skipped)] for lane in lanes}
    said = [f"{_lane(key)}: {what}" for key, own in found.items() for what in own]
    if not said:
        return Result(NAME), set()
    more = f"; and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return Result(NAME, "failed", "; ".join(said[:SHOWN]) + more), {key for key, own in found.items() if own}


def breaches(lane: LaneSummary, causes: Mapping[str, Attributed], skipped: Collection[str] = ()) -> Iterator[str]:
    """What of a lane does not add up, with the numbers; parts named in `skipped` are not compared with their causes."""
    yield from _of_steps(lane)
    yield from _of_window("the window", lane.breakdown, {cause: one.total for cause, one in causes.items()}, skipped)
    for place, (step, breakdown) in enumerate(zip(lane.steps, lane.step_breakdowns, strict=True)):
        name = "the time before the first step" if step.step == NA else f"step {step.step}"
        if breakdown.window != step.end - step.start:
            yield f"{name} lasts {step.end - step.start:,} ns, its breakdown is of {breakdown.window:,} ns"
        own = {cause: int(one.per_step[place]) for cause, one in causes.items()}
        yield from _of_window(name, breakdown, own, skipped)


def breaches_without_causes(lane: LaneSummary) -> Iterator[str]:
    """What of a lane does not add up, whatever its causes are."""
    return breaches(lane, {}, frozenset(PARTS.values()))


def _of_window(name: str, breakdown: Breakdown, causes: Mapping[str, int], skipped: Collection[str]) -> Iterator[str]:
    parts = breakdown.parts
    if sum(parts.values()) != breakdown.window or min(parts.values()) < 0:
        yield f"the breakdown of {name} ({_listed(parts)}) does not sum to its {breakdown.window:,} ns"
    for part in dict.fromkeys(PARTS.values()):
        length, own = parts[part], {cause: ns for cause, ns in causes.items() if PARTS[cause] == part}
        adds_up = sum(own.values()) == length and min(own.values(), default=0) >= 0
        if part not in skipped and not adds_up:
            yield f"the causes of {part} in {name} sum to {sum(own.values()):,} of {length:,} ns ({_listed(own)})"


def _of_steps(lane: LaneSummary) -> Iterator[str]:
    if not lane.steps:
        return
    bounds = [lane.window[0], *(bound for step in lane.steps for bound in (step.start, step.end)), lane.window[1]]
    gaps = [(end, start) for end, start in pairwise(bounds)][::2]
    for end, start in gaps:
        if end != start:
            yield f"steps do not tile the window: from {end:,} to {start:,} ns"
    for step in lane.steps:
        if step.end < step.start:
            yield f"step {step.step} ends {step.start - step.end:,} ns before it starts"


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {ns:,}" for name, ns in values.items()) or "none"


def _lane(key: LaneKey) -> str:
    rank, device = key
    return f"rank {rank}" if device == NA else f"rank {rank}, device {device}"
