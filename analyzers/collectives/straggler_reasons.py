"""Why a rank is late: its device is slower at equal work, it has more work, or its host is late.

A late rank is compared with the median of its peers over the steady steps. Time that it computes longer is `device`
where the same operations on the same shapes take longer, `data` where shapes are larger or operations more; time
that its host makes its device idle longer is `host`, with the cause of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuscope.analyzers.collectives.work_of_ranks import SAME_WORK, Longer, WorkOfRanks, medians_of_others
from gpuscope.report.view import units
from gpuscope.report.view.causes import cause_label
from gpuscope.trace.columns.table import Array
from gpuscope.trace.trace import Trace

Reason = Literal["device", "data", "host"]
MOST = 0.5
"""Share of its lateness that a reason must explain."""


@dataclass(frozen=True)
class Reasoned:
    """Why a rank is late, the ns per step that this explains, and a clause that says what shows it."""

    reason: Reason | None
    explains: int
    why: str


def reasons(trace: Trace, late: Mapping[int, int], host: Mapping[int, Mapping[str, float]]) -> dict[int, Reasoned]:
    """Why each late rank is late. `late` is by how much, ns per step; `host` the time per step (ns) that each
    rank's device idles for each cause of class cpu."""
    work = WorkOfRanks(trace)
    alone = Reasoned(None, 0, "no other rank's work is recorded to compare with")
    if len(work.ranks) < 2:
        return dict.fromkeys(late, alone)
    idle = _IdleLonger(host, work)
    found: dict[int, Reasoned] = {}
    for rank, lateness in late.items():
        place = work.place(rank)
        found[rank] = alone if place is None else _reason(trace, work, place, lateness, idle)
    return found


def _reason(trace: Trace, work: WorkOfRanks, place: int, lateness: int, host: _IdleLonger) -> Reasoned:
    longer = work.longer
    slower, more = float(longer.slower[place]), float(longer.more[place])
    cause, idle = host.of(place)
    candidates: dict[Reason, float] = {"device": slower, "data": more, "host": idle}
    reason = max(candidates, key=lambda name: candidates[name])
    explained = candidates[reason]
    if explained < MOST * lateness:
        return Reasoned(None, 0, "neither its compute nor its host differs enough from its peers'")
    spent = units.duration(round(explained))
    if reason == "host":
        why = f"its host keeps its device idle {spent} per step longer ({cause_label(cause)})"
        return Reasoned("host", round(explained), why)
    if longer.known[place] < MOST * max(abs(slower) + abs(more), 1.0):
        return Reasoned(
            None, 0, f"it computes {spent} per step longer; whether its device is slower or its data larger needs "
            "shapes (record_shapes=True)"
        )  # fmt: skip
    if reason == "device":
        return Reasoned(
            "device", round(explained), f"the same operations on the same shapes take {spent} per step longer"
        )
    larger = _larger(trace, work, longer, place)
    return Reasoned("data", round(explained), f"it has {spent} per step more to compute: {larger}")


class _IdleLonger:
    """Time per step that each rank's device idles beyond its median peer for causes of class cpu, ns."""

    def __init__(self, host: Mapping[int, Mapping[str, float]], work: WorkOfRanks) -> None:
        self._causes = sorted({cause for own in host.values() for cause in own})
        own = [host.get(rank, {}) for rank in work.ranks.tolist()]
        self._excess: list[Array] = []
        for cause in self._causes:
            spent = np.array([causes.get(cause, 0.0) for causes in own])
            self._excess.append(spent - medians_of_others(spent))

    def of(self, place: int) -> tuple[str, float]:
        """The cause for which the rank at a place idles longest beyond its median peer, and by how much over all."""
        excess = [float(of_cause[place]) for of_cause in self._excess]
        return (self._causes[excess.index(max(excess))], sum(excess)) if excess else ("", 0.0)


def _larger(trace: Trace, work: WorkOfRanks, longer: Longer, place: int) -> str:
    """The costliest operation of which a rank has more, with what differs."""
    count, usual = longer.count[place], longer.usual[place]
    worst = int(longer.worst[place])
    name = units.clean(trace.names[worst])
    if abs(count - usual) > SAME_WORK * max(count, usual):
        return f"{count:.0f} {name} per step vs. {usual:.0f} on its peers"
    mine, others = work.elements(worst, int(work.ranks[place]))
    if mine and others:
        return f"{name} on inputs {mine / max(others, 1):.1f} times as large as on its peers"
    return name
