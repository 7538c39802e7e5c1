"""What of a recording is not judged, and what it holds: told where it is longer than what is judged, or much of it."""

from __future__ import annotations

from typing import cast

import numpy as np

from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.base.step_roles import Role
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.schema.document import SetApart, SetApartPart
from gpuscope.trace.schema import NA

COVERED = 0.8
"""Share of the recording after set-up that steady and partial steps hold where nothing need be said of the rest."""
MOST = 0.5
"""Share of the communication from which one operation and rank are named."""
_Wait = tuple[str, int, int]
_APART: tuple[Role, ...] = (Role.SETUP, Role.WARMUP, Role.BEFORE_SHIFT, Role.OUTLIER)


def set_apart(facts: RunFacts) -> SetApart | None:
    """What is not judged; None where that is little, or where the user named the steps."""
    steady = facts.steady
    lanes = [lane for lane in facts.lanes if lane.steps]
    if steady.asked or not lanes:
        return None
    spent = [_by_role(facts, lane) for lane in lanes]
    after = sum(sum(own.values()) - own.get(Role.SETUP, 0) for own in spent)
    covered = sum(own.get(Role.STEADY, 0) + own.get(Role.PARTIAL, 0) for own in spent)
    judged = max(steady.breakdown(lane).window for lane in lanes)
    startup = max(own.get(Role.SETUP, 0) + own.get(Role.WARMUP, 0) for own in spent) > judged
    if not after or (covered >= COVERED * after and not startup):
        return None
    parts = [_part(facts, lanes, role) for role in _APART if any(own.get(role) for own in spent)]
    if not parts:
        return None
    return {"judged_ns": judged, "covered_frac": covered / after, "startup": startup, "parts": parts}


def _by_role(facts: RunFacts, lane: LaneSummary) -> dict[Role, int]:
    """How long a lane's steps are by role, ns; what is judged for want of steady steps counts as these."""
    found: dict[Role, int] = {}
    for place, step in enumerate(lane.steps):
        role = _role(facts, lane, place)
        found[role] = found.get(role, 0) + step.end - step.start
    return found


def _role(facts: RunFacts, lane: LaneSummary, place: int) -> Role:
    number = lane.steps[place].step
    if number == NA:  # what runs behind a single step was cut off, too
        return Role.SETUP if place == 0 else Role.PARTIAL
    return Role.STEADY if facts.steady.judged(number) else facts.steady.role(number)


def _part(facts: RunFacts, lanes: list[LaneSummary], role: Role) -> SetApartPart:
    places = {lane.key: [k for k in range(len(lane.steps)) if _role(facts, lane, k) == role] for lane in lanes}

    def lasts(lane: LaneSummary) -> int:
        return sum(lane.steps[k].end - lane.steps[k].start for k in places[lane.key])

    lane = max(lanes, key=lasts)
    own = places[lane.key]
    sums = {part: sum(lane.step_breakdowns[k].parts[part] for k in own) for part in lane.breakdown.parts}
    holds = max(sums, key=lambda part: sums[part])
    host, waited = None, None
    if holds == "idle":
        work = [one for k in own for one in lane.once.get(k, ())]
        host = max(work, key=lambda one: one.spent).name if work else None
    elif holds == "exposed_communication":
        waited = _waited_for(facts, lane, own, sums[holds])
    op, late, wait = waited or (None, None, None)
    return cast(
        SetApartPart,
        {
            "role": role.value,
            "steps": 0 if role is Role.SETUP else len(own),
            "dur_ns": lasts(lane),
            "holds": holds,
            "holds_ns": sums[holds],
            "host": host,
            "op": op,
            "late_rank": late,
            "wait_ns": wait,
        },
    )


def _waited_for(facts: RunFacts, lane: LaneSummary, places: list[int], spent_in_all: int) -> _Wait | None:
    """The collective by which a lane waited longest in some of its steps, for which rank, and for how long, ns; None
    where that is not most of what these spent in communication."""
    table, matched = facts.trace["collectives"], facts.matched
    rows = np.flatnonzero((table["rank"] == lane.rank) & (matched.of_row != NA) & (facts.waits.exposed > 0))
    inside = np.zeros(len(rows), np.bool_)
    for place in places:
        step = lane.steps[place]
        inside |= (table["start"][rows] >= step.start) & (table["start"][rows] < step.end)
    spent: dict[tuple[int, int], int] = {}
    for row in rows[inside].tolist():
        last = int(facts.waits.last[matched.of_row[row]])
        key = int(table["op"][row]), int(table["rank"][last])
        spent[key] = spent.get(key, 0) + int(facts.waits.exposed[row])
    op, late = max(spent, key=lambda key: spent[key], default=(0, 0))
    if not spent or spent[op, late] < MOST * spent_in_all:
        return None
    return facts.trace.names[op], late, spent[op, late]
