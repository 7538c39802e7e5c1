"""Why a rank is late: its device is slower at equal work, it has more work, or its host is late.

A late rank is compared with the median of its peers over the steady steps. Time that it computes longer is `device`
where the same operations on the same shapes take longer, `data` where shapes are larger or operations more; time
that its host makes its device idle longer is `host`, with the cause of that. Time that its training thread had no core,
beyond its peers' rate, is `cores`: other threads held them, and neither the rank's device nor its host is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from gpuscope.analyzers.collectives.lateness import beyond_peers, more_to_run
from gpuscope.analyzers.collectives.work_of_ranks import MOST, SAME_WORK, Longer, WorkOfRanks, medians_of_others
from gpuscope.analyzers.facts.counted_by_step.core_waits import CoreTimes
from gpuscope.analyzers.facts.counted_by_step.gpu_clocks import GpuClocks, lower_clock
from gpuscope.catalogue.cause_table import cause_label
from gpuscope.trace.columns.table import Array
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

Reason = Literal["device", "data", "host", "cores"]


@dataclass(frozen=True)
class Reasoned:
    """Why a rank is late, and a clause that says what shows it."""

    reason: Reason | None
    why: str
    alone: str = ""
    """The operation that makes it late, where no peer does it at all."""
    more_work: str = ""
    """How much more it computes, and what, where that is the reason."""
    host_cause: str = ""
    """For which its device idles longer than its peers' by most, where its host is the reason."""


def reasons(
    trace: Trace,
    role: Sequence[int],
    late: Mapping[int, int],
    host: Mapping[int, Mapping[str, float]],
    cores: Mapping[int, CoreTimes],
    clocks: Mapping[int, GpuClocks],
    of_the_step: Mapping[int, float],
) -> dict[int, Reasoned]:
    """Why each late rank of a `role` is late: ranks that do the same work, such as those of a pipeline's stage. `late`
    is by how much, ns per step; `host` the time per step (ns) that each
    rank's device idles for each cause of class cpu; `cores` what its training thread had of a core, and `clocks` those
    of its GPU, where recorded. `of_the_step` is by what its means per step are multiplied where sentences name them."""
    late = {rank: ns for rank, ns in late.items() if rank in role}
    cores = {rank: times for rank, times in cores.items() if rank in role}
    if len(role) < min(len(trace.ranks), 2):
        return dict.fromkeys(late, Reasoned(None, "no other rank has its stage of the pipeline"))
    table = trace["work"]
    work = WorkOfRanks(table.take(np.flatnonzero(np.isin(table["rank"], role))))
    if cores:  # waits for cores delay all ranks in turns: what the peers are late too is nobody's own lateness
        late = _beyond_median(late, role)
    alone = Reasoned(None, "no other rank's work is recorded to compare with")
    if len(work.ranks) < 2:
        return dict.fromkeys(late, alone)
    idle, without_core, more = _IdleLonger(host, work), beyond_peers(cores), more_to_run(cores)
    found: dict[int, Reasoned] = {}
    for rank, lateness in late.items():
        place = work.place(rank)
        # What a thread runs longer, it runs longer on free cores too: no waits for them are to be thought of.
        waited = cores[rank].waited if rank in cores and more[rank] < MOST * lateness else 0
        found[rank] = (
            alone
            if place is None
            else _reason(
                trace, work, place, lateness, idle, waited, without_core.get(rank, 0.0), of_the_step.get(rank, 1.0)
            )
        )
        if found[rank].reason == "device" and (clock := lower_clock(rank, clocks)):
            found[rank] = replace(found[rank], why=f"{found[rank].why}; {clock}")
    return found


def _beyond_median(late: Mapping[int, int], ranks: Sequence[int]) -> dict[int, int]:
    """By how much each rank is later than the median of the others, ns."""
    if len(ranks) < 2:
        return dict(late)
    usual = dict(zip(ranks, medians_of_others(np.array([late.get(rank, 0) for rank in ranks], np.int64)), strict=True))
    return {rank: max(ns - round(float(usual.get(rank, 0))), 0) for rank, ns in late.items()}


def _reason(
    trace: Trace,
    work: WorkOfRanks,
    place: int,
    lateness: int,
    host: _IdleLonger,
    waited: int,
    longer: float,
    of_the_step: float,
) -> Reasoned:
    """`waited` ns per step its training thread had no core, `longer` of it beyond its peers' rate."""
    compared = work.longer
    slower, more = float(compared.slower[place]), float(compared.more[place])
    cause, idle = host.of(place)
    if lateness <= 0:
        return Reasoned(None, "its peers are as late")
    # Of two parts of which one is negative, the other explains no more than both together.
    both = max(slower + more, 0.0)
    slower, more = min(slower, both), min(more, both)
    candidates: dict[Reason, float] = {"device": slower - longer, "data": more, "host": idle, "cores": longer}
    reason = max(candidates, key=lambda name: candidates[name])
    explained = candidates[reason]
    if explained < MOST * lateness:
        if waited >= MOST * lateness:
            return _without_core(waited * of_the_step)
        return Reasoned(None, "neither its compute nor its host differs enough from its peers'")
    spent = units.duration(round(explained * of_the_step))
    if reason == "cores":
        return Reasoned("cores", f"its training thread had no core for {spent} per step longer")
    if reason != "data" and explained - waited < MOST * lateness:
        return _without_core(waited * of_the_step)
    if reason == "host":
        why = f"its host keeps its device idle {spent} per step longer ({cause_label(cause)})"
        return Reasoned("host", why, host_cause=cause)
    if not compared.told_apart(place):
        return _without_shapes(work.beside_optimizer(trace.names, place), spent)
    if reason == "device":
        return Reasoned("device", f"the same operations on the same shapes take {spent} per step longer")
    larger = _larger(trace, work, compared, place)
    worst = int(compared.worst[place])
    # Only of an operator: for other sizes the same operator may choose another kernel.
    only_here = compared.alone[place] and work.elements(worst, int(work.ranks[place]))[0] > 0
    alone = units.clean(trace.names[worst]) if only_here else ""
    more_work = f"{spent} per step more: {larger}"
    return Reasoned("data", f"it computes {more_work}", alone, more_work)


def _without_shapes(longer: tuple[float, float] | None, spent: str) -> Reasoned:
    """What an optimizer does, no batch changes: a slower device slows it as it slows what is done on batches, larger
    data does not."""
    on_batches, optimizer = longer or (0.0, 0.0)
    if on_batches <= SAME_WORK:
        return Reasoned(
            None,
            f"it computes {spent} per step longer; whether its device is slower or its data larger needs shapes "
            "(record_shapes=True)",
        )
    both = f"elementwise kernels take {units.whole_share(on_batches)} longer, its optimizer's, which no batch changes, "
    both += units.whole_share(optimizer)
    if optimizer >= MOST * on_batches:
        return Reasoned("device", f"it computes {spent} per step longer: its {both}")
    more_work = f"{spent} per step more: its {both}"
    return Reasoned("data", f"it computes {more_work}", more_work=more_work)


def _without_core(waited: float) -> Reasoned:
    """The pace of a thread that waits for cores shows nothing of its device or host."""
    spent = units.duration(round(waited))
    return Reasoned(
        "cores",
        f"its training thread had no core for {spent} per step, which may explain it: record where nothing else runs",
    )


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
    if longer.alone[place]:
        return f"{count:.0f} {name} that only it runs"
    if abs(count - usual) > SAME_WORK * max(count, usual):
        return f"{count:.0f} {name} per step vs. {usual:.0f} on its peers"
    mine, others = work.elements(worst, int(work.ranks[place]))
    if mine and others:
        return f"{name} on inputs {mine / max(others, 1):.1f} times as large as its peers'"
    return name
