"""The slowdown by stragglers of a job whose operations were timed, and the stage or worker behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gpuscope.analyzers.base.analyzer import Need, Result
from gpuscope.analyzers.base.lanes import SLOWDOWN
from gpuscope.analyzers.facts.pipeline_facts import computations_alone, is_timed, of_recorded_ranks
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.replay.engine import MODEL_ERROR, bounds
from gpuscope.analyzers.step_graph.dependencies import (
    COMMUNICATION,
    OPTIMIZER,
    Graph,
    Grid,
    UnmodelledError,
    dependencies,
    grid,
)
from gpuscope.analyzers.step_graph.operations_from_ranges import tied
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import Finding, made
from gpuscope.schema.document import Evidence, FindingEntry, Slowdown
from gpuscope.schema.provenance import Prediction, Provenance
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.table import Mask, Times, distinct_values
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.catalogue.findings.pipelines import SlowOperation


# Step times from durations: every operation starts when what it waits for has ended.

_AT_ONCE = 1 << 20
"""Values per operation that are computed at once: bounds the memory of many scenarios."""


def durations(grid: Grid, graph: Graph) -> Times:
    """ns of every operation, shape (operations, replicas, steps): of one that synchronises its transfer,
    the time from the latest start in its group, else its own time. Never below 0, whatever the clocks say."""
    found = grid.end - grid.start
    for group in graph.groups:
        if group.synchronises:
            members = list(group.members)
            latest = grid.start[members].max(axis=0)
            if group.over_replicas:
                latest = latest.max(axis=0)
            found[members] = grid.end[members] - latest
    return np.asarray(np.maximum(found, 0))


def ideal(grid: Grid, original: Times) -> Times:
    """ns that each operation takes where none is slower than its peers, shape (operations,).

    Over all stages, replicas and steps: the median of a type that communicates, the mean of another.
    """
    found = np.empty(len(grid), np.int64)
    types = np.array(grid.op)
    for op in set(grid.op):
        own = types == op
        found[own] = round(float(np.median(original[own]) if op in COMMUNICATION else original[own].mean()))
    return found


@dataclass(frozen=True)
class Scenarios:
    """Which operations take their original time; all others take the ideal one.

    Scenario s keeps the operations `operations[s]` of the replicas `replicas[s]`, or, where `others[s]`,
    all but these.
    """

    operations: Mask
    replicas: Mask
    others: Mask

    def __len__(self) -> int:
        return len(self.others)

    def __getitem__(self, part: slice) -> Scenarios:
        return Scenarios(self.operations[part], self.replicas[part], self.others[part])

    def keeps(self, operation: int) -> Mask:
        """Whether the operation keeps its time, shape (scenarios, replicas, 1)."""
        chosen = self.operations[:, operation, None] & self.replicas
        return np.asarray((chosen ^ self.others[:, None])[:, :, None])


def step_times(grid: Grid, graph: Graph, original: Times, best: Times, scenarios: Scenarios) -> Times:
    """Step times in ns, shape (scenarios, steps), of `original` times (operations, replicas, steps) and the
    `best` ones (operations,). Steps begin at 0, and nothing is launched late."""
    _, replicas, steps = original.shape
    block = max(1, _AT_ONCE // (replicas * steps))
    parts = [
        _replay(grid, graph, original, best, scenarios[first : first + block])
        for first in range(0, len(scenarios), block)
    ]
    return np.concatenate(parts)


def _replay(grid: Grid, graph: Graph, original: Times, best: Times, scenarios: Scenarios) -> Times:
    _, replicas, steps = original.shape
    uses = np.bincount(np.array([i for own in graph.after for i in own], np.int64), minlength=len(grid))
    ends: dict[int, Times] = {}
    begin = np.zeros((len(scenarios), replicas, steps), np.int64)
    last = begin
    closes = OPTIMIZER if OPTIMIZER in grid.op else None
    for group in graph.groups:
        waits = [before for member in group.members for before in graph.after[member]]
        start = reduce(np.maximum, (ends[before] for before in waits), begin)
        if group.over_replicas:
            start = start.max(axis=1, keepdims=True)
        for member in group.members:
            ends[member] = start + np.where(scenarios.keeps(member), original[member], best[member])
            if closes is None or grid.op[member] == closes:
                last = np.maximum(last, ends[member])
        for before in waits:
            uses[before] -= 1
            if not uses[before]:  # not needed again: memory grows with what is open, not with the job
                del ends[before]
    return np.asarray(last.max(axis=1))


# How much slower than its ideal a job is, and the operations that cause it.

NOTICEABLE = 0.01
"""Share of a step below which a difference is ignored."""
MOST_WORKERS = 256
"""So many workers are replayed one by one; of more, those whose stage and replica are both slow."""


@dataclass(frozen=True)
class Effect:
    """What some operations do to the step, in ns: `alone` if only they are not ideal, `without` if only they are."""

    alone: float
    without: float
    often: float
    """Share of the steps that would be noticeably shorter without their slowness."""


Worker = tuple[int, int]
"""(stage, replica), as places in the grid."""


@dataclass(frozen=True)
class Slowdowns:
    """Mean step times in ns: replayed with the recorded durations, and with the ideal ones; effects of each
    operation type, stage and worker."""

    original: Times
    """ns of every operation as replayed, shape (operations, replicas, steps)."""
    best: Times
    """ns of every operation where none is slower than its peers, shape (operations,)."""
    recorded: float
    replayed: float
    ideal: float
    operations: dict[str, Effect]
    stages: dict[int, Effect]
    workers: dict[Worker, Effect]

    def ratio(self, effect: Effect) -> float:
        """S of a group: how many times slower than the ideal its operations alone make the step."""
        return effect.alone / self.ideal

    def lost(self, effect: Effect) -> float:
        """ns of the step that go away with the slowness of a group."""
        return self.replayed - effect.without

    def explained(self, effect: Effect) -> float:
        """M of a group: the share of the slowdown that goes away with its slowness; 0 without slowdown."""
        lost = self.replayed - self.ideal
        return self.lost(effect) / lost if lost > NOTICEABLE * self.replayed else 0.0


def slowdowns(grid: Grid, graph: Graph) -> Slowdowns:
    """Replay the job as it was, ideal, and with each operation type, stage and worker alone so."""
    original = durations(grid, graph)
    best = ideal(grid, original)
    everything, everyone = np.ones(len(grid), np.bool_), np.ones(len(grid.replicas), np.bool_)
    all_kept = Scenarios(everything[None], everyone[None], np.zeros(1, np.bool_))
    as_it_was = step_times(grid, graph, original, best, all_kept)

    def effects(chosen: list[tuple[Mask, Mask]]) -> list[Effect]:
        operations, replicas = (np.array(masks) for masks in zip(*chosen, strict=True))
        alone, without = (
            step_times(grid, graph, original, best, Scenarios(operations, replicas, np.full(len(chosen), others)))
            for others in (False, True)
        )
        often = (without < (1 - NOTICEABLE) * as_it_was).mean(axis=1)
        means = zip(alone.mean(axis=1).tolist(), without.mean(axis=1).tolist(), often.tolist(), strict=True)
        return [Effect(*values) for values in means]

    types = sorted(set(grid.op))
    of_type = effects([(np.array([op == name for op in grid.op]), everyone) for name in types])
    stages = [grid.stage == stage for stage in range(grid.stages)]
    of_stage = effects([(stage, everyone) for stage in stages])
    (whole,) = effects([(everything, everyone)])
    each = np.eye(len(grid.replicas), dtype=np.bool_)
    workers = [(stage, replica) for stage in range(grid.stages) for replica in range(len(grid.replicas))]
    if len(workers) > MOST_WORKERS:
        of_replica = effects([(everything, replica) for replica in each])
        workers.sort(key=lambda worker: -min(of_stage[worker[0]].alone, of_replica[worker[1]].alone))
        workers = sorted(workers[:MOST_WORKERS])
    of_worker = effects([(stages[stage], each[replica]) for stage, replica in workers])
    return Slowdowns(
        original=original,
        best=best,
        recorded=float((grid.end.max(axis=(0, 1)) - grid.start.min(axis=(0, 1))).mean()),
        replayed=whole.alone,
        ideal=whole.without,
        operations=dict(zip(types, of_type, strict=True)),
        stages=dict(enumerate(of_stage)),
        workers=dict(zip(workers, of_worker, strict=True)),
    )


MOST = 0.5
"""What explains this share of the slowdown is its cause."""
SHOWN = 5

Group = TypeVar("Group")


def run(facts: RunFacts) -> Result:
    """The section `slowdown`, with findings; nothing for a job of which not every rank has operations."""
    trace = facts.trace
    timed = is_timed(trace)
    if not timed and not _all_ranks(facts):
        return Result(ANALYZER.name)
    try:
        _check_whole(trace)
        alone = of_recorded_ranks(trace) or computations_alone(trace, facts.operations)
        job, graph = _from_pipeline(facts) if alone else _from_operations(facts, timed)
        found = slowdowns(job, graph)
    except UnmodelledError as error:
        return Result(ANALYZER.name, "skipped", str(error))
    if found.ideal <= 0:
        return Result(ANALYZER.name, "skipped", "operations take no time")
    result = Result(ANALYZER.name, why=_left_out(job))
    section = result.sections[SLOWDOWN] = _section(job, found, "measured" if timed else "inferred")
    if timed:  # for a job's own ranges, `straggler` shows the same from the waits themselves
        step = facts.step_ns or round(found.recorded)
        gains = {place: _at_peers_pace(job, found, place, step) for place in _slow_workers(job, found)}
        if gains:
            section["at_peers_pace"] = {str(int(job.ranks[place])): gain for place, gain in gains.items()}
        result.findings = sorted(_findings(job, found, gains), key=lambda finding: -finding["share_frac"])
    return result


def _from_operations(facts: RunFacts, timed: bool) -> tuple[Grid, Graph]:
    table, names = facts.operations, facts.trace.names
    job = grid(table if timed else tied(table, names), names)
    return job, dependencies(job)


def _from_pipeline(facts: RunFacts) -> tuple[Grid, Graph]:
    """A pipeline job, from the ranges around its computations."""
    from gpuscope.analyzers.step_graph.pipeline_dependencies import check_alone, pipeline_graph, with_messages

    trace, stages = facts.trace, facts.stages
    point_to_point = np.flatnonzero(trace.names.matching(lambda name: name in POINT_TO_POINT))
    check_alone(trace["operations"], trace["collectives"], point_to_point, trace.names)
    if stages is None or stages.incomplete:
        raise UnmodelledError(stages.incomplete if stages else "the ranges name no stages")
    table, numbering = with_messages(facts.operations, trace.names)
    job = grid(table, trace.names)
    return job, pipeline_graph(job, numbering)


def _all_ranks(facts: RunFacts) -> bool:
    """Whether every rank of a job of several has operations."""
    there = len(distinct_values(facts.trace["operations"]["rank"]))
    return there > 1 and there == facts.world_size


def _check_whole(trace: Trace) -> None:
    """A stage whose neighbour was left out seems to wait for no rank: the replay would name it as slow."""
    recorded = max((int(source.facts.get("workers", 0)) for source in trace.sources), default=0)
    table = trace["operations"]
    here = len(set(zip(table["stage"].tolist(), table["dp_rank"].tolist(), strict=True)))
    if here < recorded:
        raise UnmodelledError(
            f"only {here} of {recorded} ranks are analysed: the step can't be replayed without the others"
        )


def _left_out(job: Grid) -> str:
    return f"{units.plural(job.left_out, 'step')} without the operations of the others left out" if job.left_out else ""


def _section(job: Grid, found: Slowdowns, provenance: Provenance) -> Slowdown:
    def all_by(value: Callable[[Effect], float]) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        return (
            {op: value(effect) for op, effect in found.operations.items()},
            {str(int(job.ranks[worker])): value(effect) for worker, effect in found.workers.items()},
            {str(stage): value(effect) for stage, effect in found.stages.items()},
        )

    by_operation, by_rank, by_stage = all_by(found.ratio)
    shares = all_by(found.explained)
    return {
        "total": found.replayed / found.ideal,
        "provenance": provenance,
        "by_operation": by_operation,
        "by_rank": by_rank,
        "by_stage": by_stage,
        "explained": {"by_operation": shares[0], "by_rank": shares[1], "by_stage": shares[2]},
        "steps": len(job.steps),
        "recorded_step_ns": round(found.recorded),
        "replayed_step_ns": round(found.replayed),
        "ideal_step_ns": round(found.ideal),
    }


def _slow_workers(job: Grid, found: Slowdowns) -> dict[Worker, Effect]:
    """With one replica a worker is its stage."""
    return _costly(found.workers, found) if len(job.replicas) > 1 else {}


def _at_peers_pace(job: Grid, found: Slowdowns, place: Worker, step: int) -> Prediction:
    """The step (ns) without a worker's slowness: shorter by what that costs. At best by as much as goes away where the
    others are then quicker than the mean; the mean includes the worker's own times, so its peers are quicker still."""
    effect = found.workers[place]
    after, best = (step * (1 - cost / found.replayed) for cost in (_cost(effect, found), found.lost(effect)))
    error = abs(found.recorded - found.replayed) / found.recorded
    low, high = bounds([after, best], (error * after, MODEL_ERROR * (step - after)))
    return {
        "step_ns_before": step,
        "step_ns_after": round(after),
        "low_ns": low,
        "high_ns": high,
        "basis": f"a replay of the operations of {units.plural(len(job.steps), 'step')}, which unchanged misses their "
        f"time by {100 * error:.1f} %; those of rank {int(job.ranks[place])} at the mean of their peers, their own "
        "times included",
        "provenance": "inferred",
    }


def _findings(job: Grid, found: Slowdowns, gains: Mapping[Worker, Prediction]) -> Iterator[FindingEntry]:
    """The slow workers; the stages that are slow in every replica; else that no single one is."""
    workers = _slow_workers(job, found)
    named = 0.0
    for place, effect in workers.items():
        named = max(named, found.explained(effect))
        yield _slow_worker(job, found, place, effect, gains[place])
    for stage, effect in (_costly(found.stages, found) if job.stages > 1 else {}).items():
        one = max((found.lost(other) for (at, _), other in workers.items() if at == stage), default=0.0)
        if one < MOST * found.lost(effect):
            named = max(named, found.explained(effect))
            yield _slow_stage(job, found, stage, effect)
    if named < MOST and found.replayed - found.ideal >= MIN_SHARE * found.replayed:
        yield _slow_operations(job, found)


def _cost(effect: Effect, found: Slowdowns) -> float:
    """ns of the step that the slowness of some operations costs: what goes away with it, and at most what all slowness
    costs. Where the others are quicker than the mean more goes away, and M exceeds 1."""
    return max(min(found.lost(effect), found.replayed - found.ideal), 0.0)


def _costly(effects: Mapping[Group, Effect], found: Slowdowns) -> dict[Group, Effect]:
    """Those without whose slowness the step would be 1 % shorter or more, and that in most steps: what is slow now and
    then is not the cause."""
    least = MIN_SHARE * found.replayed
    return {key: effect for key, effect in effects.items() if found.lost(effect) >= least and effect.often > MOST}


def _slow_worker(job: Grid, found: Slowdowns, place: Worker, effect: Effect, gain: Prediction) -> FindingEntry:
    from gpuscope.catalogue.findings.pipelines import SlowWorker

    stage, replica = place
    rank = int(job.ranks[place])
    only = np.arange(len(job.replicas)) == replica
    cost = _cost(effect, found)
    slowest, evidence = _slowest(job, found, job.stage == stage, only)
    words = SlowWorker(
        [rank],
        stage,
        int(job.replicas[replica]),
        gain["step_ns_before"],
        gain["step_ns_after"],
        found.explained(effect),
        cost > 0,
        slowest,
    )
    return _made(words, job, found, [rank], cost, evidence)


def _slow_stage(job: Grid, found: Slowdowns, stage: int, effect: Effect) -> FindingEntry:
    from gpuscope.catalogue.findings.pipelines import SlowStage

    cost = _cost(effect, found)
    slowest, evidence = _slowest(job, found, job.stage == stage, np.ones(len(job.replicas), np.bool_))
    words = SlowStage(stage, job.stages, len(job.replicas), found.explained(effect), cost > 0, slowest)
    return _made(words, job, found, job.ranks[stage].tolist(), cost, evidence)


def _slow_operations(job: Grid, found: Slowdowns) -> FindingEntry:
    from gpuscope.catalogue.findings.pipelines import SlowOperations

    worst = max(found.operations, key=lambda op: found.explained(found.operations[op]))
    cost = found.replayed - found.ideal
    chosen = np.array([op == worst for op in job.op])
    slowest, evidence = _slowest(job, found, chosen, np.ones(len(job.replicas), np.bool_))
    explained = min(found.explained(found.operations[worst]), 1.0)
    words = SlowOperations(found.replayed / found.ideal, round(found.ideal), worst, explained, slowest)
    return _made(words, job, found, [], cost, evidence)


def _made(
    words: Finding, job: Grid, found: Slowdowns, ranks: list[int], cost: float, evidence: list[Evidence]
) -> FindingEntry:
    return made(
        words,
        ranks=ranks,
        share=cost / found.replayed,
        cost_ns=round(cost * len(job.steps)),
        mean_ns=round(cost),
        evidence=evidence,
    )


def _slowest(job: Grid, found: Slowdowns, chosen: Mask, replicas: Mask) -> tuple[SlowOperation | None, list[Evidence]]:
    """The operation furthest above the ideal, of the type that lies above it most; and the first few of these."""
    over = (found.original - found.best[:, None, None]) * (chosen[:, None, None] & replicas[None, :, None])
    types = np.array(job.op)
    worst = max(sorted(set(job.op)), key=lambda op: int(over[types == op].sum()))
    over[types != worst] = 0
    places = np.argsort(-over, axis=None, kind="stable")[:SHOWN]
    above = [place for place in zip(*np.unravel_index(places, over.shape), strict=True) if over[place] > 0]
    return (_operation(job, found, above[0]) if above else None), [_evidence(job, found, place) for place in above]


def _operation(job: Grid, found: Slowdowns, place: tuple[int, int, int]) -> SlowOperation:
    operation, replica, _ = place
    rank = int(job.ranks[job.stage[operation], replica])
    return job.op[operation], rank, int(found.original[place]), int(found.best[operation])


def _evidence(job: Grid, found: Slowdowns, place: tuple[int, int, int]) -> Evidence:
    operation, _, step = place
    name, rank, took, peers = _operation(job, found, place)
    of_step = f"step {int(job.steps[step])}, number {int(job.seq[operation])}"
    return {
        "rank": rank,
        "start_ns": int(job.start[place]),
        "dur_ns": int(job.end[place] - job.start[place]),
        "name": name,
        "note": f"{of_step}: {units.duration(took)} vs. {units.duration(peers)} of its peers",
    }


ANALYZER = RunAnalyzer(
    "slowdown",
    run,
    (Need("operations", "ranges around a step's computations, or timers of the job, name them", optional=True),),
    (SLOWDOWN,),
)
