"""The section `roles`: time by role, what bounds the step, idle GPUs, the rollout's tail, and what changes give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.analyzers.base.analyzer import Need, Result
from gpuscope.analyzers.base.evidence import Role
from gpuscope.analyzers.base.lanes import ROLES
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.facts.steady_state import RoleStep, RoleSteps
from gpuscope.analyzers.roles.role_replay import Schedule, bounding, growth_of, step_ns, times_of
from gpuscope.catalogue.finding import Finding, made
from gpuscope.catalogue.findings import roles as words
from gpuscope.problems import job as problems
from gpuscope.schema.provenance import RoleEntry, RolePool, RolesSection, RoleStepEntry, RolloutTail
from gpuscope.trace.trace import Trace
from gpuscope.welch import median
from gpuscope.words import units
from gpuscope.words.vocabulary import ORDER, TRAINER

if TYPE_CHECKING:
    from gpuscope.analyzers.roles.role_gains import Job, Lengths

LEAST = 0.03
"""Of the step: from there on a cost is worth a finding, as one of medium severity is."""
_ON_GPUS = TRAINER | {"rollout", "weight_sync", "validation"}
_STALENESS = ("staleness_mean", "staleness_max", "stale_in_all", "stale_dropped_in_all")


def run(facts: RunFacts) -> Result:
    """One section of all steps; findings of those that are judged."""
    from gpuscope.analyzers.roles.role_gains import gains

    result, found = Result(ANALYZER.name), facts.role_steps
    result.problem(problems.STEPS_CONTRADICT, found.contradictory)
    judged = [step for step in found.steps if facts.steady.judged(step.number)]
    before = facts.step_ns
    if not judged or not before:
        return result
    if not any(step.parts or step.beside or step.outside for step in judged):
        result.problem(problems.TIMERS_MISSING, len(judged))
        section: RolesSection = _without_roles(found, judged, facts)
        result.sections[ROLES] = section
        _add_growth(result, section)
        return result
    beside = found.asynchronous
    job = _job(judged, found, Schedule(beside=beside), before, _framework(facts.trace))
    halved = bounding(job.steps, job.schedule)
    bound_by = next(iter(halved))
    entries = [_role(role, job, halved, judged) for role in sorted(halved, key=lambda one: ORDER.get(one, 99))]
    tail = _tail(job, judged)
    section = {
        "framework": _framework(facts.trace),
        "steps": [_step(step, facts.steady.roles.get(step.number, Role.PARTIAL)) for step in found.steps],
        "roles": entries,
        "bound_by": bound_by,
        "asynchronous": beside,
        "replay_error_frac": job.error,
        "pools": list(_pools(job)),
        "tail": tail,
        "staleness": _staleness(judged),
        "gains": list(gains(job)),
        "growth": growth_of(_running(found, facts)),
        "averaged": _averaged(judged),
    }
    result.sections[ROLES] = section
    _add_findings(result, section, job)
    for name, missing in _missing_ranks(found.steps):
        result.problem(problems.RANKS_MISSING, len(missing), role=name, ranks=units.rank_words(missing))
    return result


def _without_roles(found: RoleSteps, judged: Sequence[RoleStep], facts: RunFacts) -> RolesSection:
    """What a log without a timer of a role still tells: how long steps were, and the responses' lengths."""
    mean, longest = (_median(judged, name) for name in ("response_length_mean", "response_length_max"))
    tail: RolloutTail | None = None
    if mean and longest:
        tail = {"mean": mean, "longest": longest, "unit": "tokens", "cost_ns": None, "shared_frac": None}
    return {
        "framework": _framework(facts.trace),
        "steps": [_step(step, facts.steady.roles.get(step.number, Role.PARTIAL)) for step in found.steps],
        "roles": [],
        "bound_by": "",
        "asynchronous": False,
        "replay_error_frac": None,
        "pools": [],
        "tail": tail,
        "staleness": _staleness(judged),
        "gains": [],
        "growth": growth_of(_running(found, facts)),
        "averaged": _averaged(judged),
    }


def _running(found: RoleSteps, facts: RunFacts) -> list[RoleStep]:
    """Steps in whose course something can grow: all but the first ones, and single long ones."""
    aside = (Role.WARMUP, Role.OUTLIER, Role.PARTIAL)
    return [step for step in found.steps if facts.steady.roles.get(step.number) not in aside]


def _averaged(judged: Sequence[RoleStep]) -> int:
    return round(max((step.figures.get("steps_averaged", 1.0) for step in judged), default=1.0))


def _job(judged: Sequence[RoleStep], found: RoleSteps, schedule: Schedule, before: int, framework: str) -> Job:
    from gpuscope.analyzers.roles.role_gains import Job, fitted

    times = times_of(judged, beside=schedule.beside)
    lengths = [one for step in judged if (one := _lengths(step.figures)) is not None]
    if len(lengths) != len(judged):
        lengths = []
    told = found.figures
    total = _logged_gpus(judged)
    colocated = bool(told["colocated"]) if "colocated" in told else _by_framework(framework, schedule)
    trainer, rollout = told.get("gpus_trainer"), told.get("gpus_rollout")
    if colocated:
        trainer = rollout = trainer or rollout or total
    return Job(
        steps=times,
        schedule=schedule,
        before=before,
        error=abs(step_ns(times, schedule) - before) / before,
        lengths=lengths,
        model=fitted([step.get("rollout", 0) for step in times], lengths),
        prompt=median(step.figures.get("prompt_length_mean", 0.0) for step in judged),
        gpus_rollout=None if rollout is None else int(rollout),
        gpus_trainer=None if trainer is None else int(trainer),
        colocated=colocated,
    )


def _by_framework(framework: str, schedule: Schedule) -> bool | None:
    """verl's synchronous trainer has its roles on the same GPUs; others may have either."""
    return False if schedule.beside else True if framework == "verl" else None


def _lengths(figures: Mapping[str, float]) -> Lengths | None:
    from gpuscope.analyzers.roles.role_gains import USUAL_SAMPLES, Lengths

    mean, longest = figures.get("response_length_mean", 0.0), figures.get("response_length_max", 0.0)
    if not 0 < mean <= longest:
        return None
    tokens, prompt = figures.get("tokens", 0.0), figures.get("prompt_length_mean", 0.0)
    samples = round(tokens / (mean + prompt)) if tokens else USUAL_SAMPLES
    return Lengths(mean, longest, min(figures.get("response_clipped", 0.0), 0.9), max(samples, 2))


def _logged_gpus(judged: Sequence[RoleStep]) -> int | None:
    """verl logs tokens of a step, and tokens per second and GPU: the rest is their number."""
    found = [
        step.figures["tokens"] / (step.figures["tokens_per_s_and_gpu"] * step.duration / 1e9)
        for step in judged
        if step.figures.get("tokens") and step.figures.get("tokens_per_s_and_gpu") and step.duration
    ]
    if not found:
        return None
    number = round(median(found))
    return number if number and abs(median(found) - number) < 0.05 * number else None


def _framework(trace: Trace) -> str:
    formats = ("rl-metrics", "rl-intervals")
    return next((one.format_version for one in trace.sources if one.format in formats), "")


def _step(step: RoleStep, role: Role) -> RoleStepEntry:
    entry: RoleStepEntry = {
        "step": step.number,
        "role": role.value,  # type: ignore[typeddict-item]
        "dur_ns": step.duration,
        "by_role_ns": step.whole(),
        "beside_ns": {**step.beside, **step.outside},
    }
    if step.intervals:
        entry["intervals"] = [
            {
                "role": one.role,
                "name": one.timer,
                "rank": one.rank,
                "start_ns": one.start,
                "dur_ns": one.end - one.start,
            }
            for one in step.intervals
        ]
    return entry


def _role(role: str, job: Job, halved: Mapping[str, int], judged: Sequence[RoleStep]) -> RoleEntry:
    spent = [step.get(role, 0) for step in job.steps]
    ranks = {one.rank for step in judged for one in step.intervals if one.role == role and one.rank is not None}
    return {
        "role": role,
        "per_step_ns": round(median(spent)),
        "half_gains_ns": halved[role],
        "share_frac": sum(spent) / max(sum(step.duration for step in judged), 1),
        "ranks": sorted(ranks),
    }


def _pools(job: Job) -> Iterator[RolePool]:
    """The share of the steps in which none of a pool's roles runs."""
    whole = job.before * len(job.steps)

    def idle(on: frozenset[str] | set[str]) -> float:
        busy = sum(ns for step in job.steps for role, ns in step.items() if role in on)
        return min(max(1 - busy / whole, 0.0), 1.0)

    if job.colocated is not False and not job.schedule.beside:
        yield {"pool": "all", "gpus": job.gpus, "idle_frac": idle(_ON_GPUS)}
        return
    yield {"pool": "rollout", "gpus": job.gpus_rollout, "idle_frac": idle({"rollout", "weight_sync"})}
    yield {"pool": "trainer", "gpus": job.gpus_trainer, "idle_frac": idle(TRAINER | {"weight_sync"})}


def _tail(job: Job, judged: Sequence[RoleStep]) -> RolloutTail | None:
    rollout = median(step.get("rollout", 0) for step in job.steps)
    mean, longest = (_median(judged, name) for name in ("request_s_mean", "request_s_max"))
    by_tokens = mean is None or longest is None or not mean
    if by_tokens:
        mean, longest = (_median(judged, name) for name in ("response_length_mean", "response_length_max"))
    if not mean or not longest or not rollout or longest < mean:
        return None
    shared = None if job.model is None else job.model.shares.tokens
    cost = rollout * (1 - mean / longest)
    if job.model is not None:
        longest_part = job.model.shares.longest
        cost = median(
            step.get("rollout", 0) * longest_part * (1 - own.mean / own.longest)
            for step, own in zip(job.steps, job.lengths, strict=True)
        )
    return {
        "mean": mean,
        "longest": longest,
        "unit": "tokens" if by_tokens else "s",
        "cost_ns": round(cost),
        "shared_frac": shared,
    }


def _median(judged: Sequence[RoleStep], figure: str) -> float | None:
    known = [step.figures[figure] for step in judged if figure in step.figures]
    return median(known) if known else None


def _staleness(judged: Sequence[RoleStep]) -> dict[str, float]:
    return {name: value for name in _STALENESS if (value := _median(judged, name)) is not None}


def _add_findings(result: Result, section: RolesSection, job: Job) -> None:
    own = next(one for one in section["roles"] if one["role"] == section["bound_by"])
    share = min(own["share_frac"], 1.0)
    bound = words.RoleBound(own["role"], share, own["half_gains_ns"], section["asynchronous"])
    _found(result, bound, share, own["per_step_ns"], job)
    tail = section["tail"]
    if tail is not None and tail["cost_ns"] is not None and tail["cost_ns"] >= LEAST * job.before:
        told = words.RolloutTail(
            tail["longest"], tail["mean"], tail["unit"], tail["cost_ns"], at_most=tail["shared_frac"] is None
        )
        _found(result, told, tail["cost_ns"] / job.before, tail["cost_ns"], job)
    _add_growth(result, section)
    for pool in section["pools"]:
        if pool["pool"] != "all" and pool["idle_frac"] >= LEAST:
            idle = words.IdleRoles(pool["pool"], pool["gpus"], pool["idle_frac"])
            of_all = (pool["gpus"] or 1) / (job.gpus or 2)
            _found(result, idle, pool["idle_frac"] * of_all, round(pool["idle_frac"] * of_all * job.before), job)
    synced = next((one for one in section["roles"] if one["role"] == "weight_sync"), None)
    if synced is not None and synced["share_frac"] >= LEAST:
        _found(result, words.SlowWeightSync(synced["per_step_ns"]), synced["share_frac"], synced["per_step_ns"], job)


def _add_growth(result: Result, section: RolesSection) -> None:
    for grown in section["growth"]:
        told = words.RoleGrowth(
            grown["role"],
            grown["steps"],
            grown["first_ns"],
            grown["last_ns"],
            grown["figure"],
            grown["figure_times"],
            grown["slower_times"],
        )
        more_work = grown["figure"] is not None and (grown["slower_times"] or 1.0) <= words.AS_FAST
        result.findings.append(made(told, ranks=(), severity="low" if more_work else "medium"))


def _found(result: Result, told: Finding, share: float, per_step: int, job: Job) -> None:
    steps = len(job.steps)
    result.findings.append(made(told, ranks=(), share=min(share, 1.0), cost_ns=per_step * steps, mean_ns=per_step))


def _missing_ranks(steps: Sequence[RoleStep]) -> Iterator[tuple[str, list[int]]]:
    """Of each name the ranks below its highest of which there is no interval."""
    seen: dict[str, set[int]] = defaultdict(set)
    for step in steps:
        for one in step.intervals:
            if one.rank is not None:
                seen[one.timer].add(one.rank)
    for name, ranks in sorted(seen.items()):
        gaps = np.setdiff1d(np.arange(max(ranks) + 1), sorted(ranks)).tolist() if max(ranks) < 1 << 16 else []
        if gaps:
            yield name, gaps


ANALYZER = RunAnalyzer(
    "roles",
    run,
    (
        Need(
            "timers of roles",
            "trainers for reinforcement learning log them per step",
            lambda trace: len(trace["role_times"]) > 0,
            optional=True,
        ),
    ),
    (ROLES,),
)
