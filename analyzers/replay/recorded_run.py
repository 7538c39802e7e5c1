"""What a replay knows of a run before it replays anything: its step, which steps count, what costs depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.analyzers.facts.counted_by_step.core_waits import threads_and_cores
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.facts.setup import cores_counted
from gpuscope.analyzers.nccl.logged.run_choices import RunChoices
from gpuscope.analyzers.nccl.measured.timed_series import tool_fits
from gpuscope.analyzers.replay.from_trace.recording import Recorded, variation
from gpuscope.analyzers.replay.link_sharing import reaches
from gpuscope.analyzers.replay.rewrite import CoreUse, Setting
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.schema import NA

MAX_ERROR = 0.05
"""Relative error of the unchanged replay from which nothing is predicted. Published replays reach 3.3 % on average
(Lumos, MLSys 2025) and below 5 % (dPRO, MLSys 2022); one that misses by more has missed a dependency."""


def mean_shares(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By kind of computation, the share that does not shrink with the micro-batch, mean over ranks."""
    kinds = {kind for own in found for kind in own}
    return {kind: float(np.mean([own[kind] for own in found if kind in own])) for kind in kinds}


def missing(recorded: Sequence[Recorded]) -> str:
    """Why these can't be replayed together; empty if they can."""
    if not recorded:
        return "no rank has anything that could be replayed"
    for entry in recorded:
        if entry.graph is None:
            return entry.why
    if len({entry.numbers for entry in recorded}) > 1:
        return "the ranks recorded different steps: record the same ones on all, or choose them with --steps"
    return ""


def counted_steps(facts: RunFacts, recorded: Sequence[Recorded]) -> Mask:
    """Which of the replayed steps count: the judged ones, all where none of them is."""
    numbers = recorded[0].numbers if recorded else ()
    judged = np.array([number != NA and facts.steady.judged(number) for number in numbers], np.bool_)
    return judged if judged.any() else np.ones(len(numbers), np.bool_)


def step_of(facts: RunFacts) -> float:
    """«The step», from which predictions start; without steps the window, the longest over ranks."""
    if facts.step_ns is not None:
        return float(facts.step_ns)
    return float(max((lane.breakdown.window for lane in facts.lanes), default=0))


def not_replayed(facts: RunFacts, recorded: Sequence[Recorded]) -> float:
    """ns of «the step» before and behind the device's work in it, which the replay leaves as they are: of one or two
    annotated steps in all."""
    lasts = {(lane.rank, step.step): step.end - step.start for lane in facts.lanes for step in lane.steps}
    beyond = [
        sum(lasts.get((entry.rank, number), ns) - ns for number, ns in zip(entry.numbers, entry.steps_ns, strict=True))
        / len(entry.numbers)
        for entry in recorded
        if entry.numbers and NA not in entry.numbers
    ]
    return max(beyond, default=0.0)


def chance(recorded: Sequence[Recorded], counted: Mask, gpu: bool) -> float:
    """How far the step may lie off by chance, relative; `MAX_ERROR` where there is only a single step."""
    found = [own for entry in recorded if (own := variation(entry, counted, gpu)) is not None]
    return float(np.mean(found)) if found else MAX_ERROR


def setting_of(facts: RunFacts) -> Setting:
    """What costs depend on."""
    trace = facts.trace
    ranks = trace["ranks"]
    if not len(ranks):
        return Setting("", "", False)
    backend, gpu = int(ranks["backend"][0]), int(ranks["device_name"][0])
    hosts, stages = set(ranks["host"].tolist()), facts.stages.places if facts.stages is not None else {}
    return Setting(
        backend="" if backend == NO_NAME else trace.names[backend],
        gpu="" if gpu == NO_NAME or int(ranks["device"][0]) == NA else trace.names[gpu],
        one_host=len(hosts) == 1 and NO_NAME not in hosts,
        complete=len(trace.ranks) >= (facts.world_size or 1),
        reach=reaches(facts),
        stage_of={rank: stage for rank, (_, stage) in stages.items()},
        measured=tool_fits(facts),
        nccl=RunChoices(facts),
        core_use=core_use(facts),
    )


def core_use(facts: RunFacts) -> dict[int, CoreUse]:
    """By rank; empty where nothing tells how many cores there are. On a GPU training is a thread on the host."""
    cores = cores_counted(facts.trace)
    if cores is None:
        return {}
    found = {}
    for lane in facts.lanes:
        counted = facts.core_times.get(lane.rank, {})
        asleep = [
            step.end - step.start - own.ran - own.waited
            for step in lane.steps
            if (own := counted.get(step.step)) is not None and own.ran is not None and facts.steady.judged(step.step)
        ]
        threads = threads_and_cores(facts.trace, lane.rank)[0] if lane.device == NA else 0
        found[lane.rank] = CoreUse(cores, max(threads, 1), max(float(np.mean(asleep)), 0.0) if asleep else None)
    return found
