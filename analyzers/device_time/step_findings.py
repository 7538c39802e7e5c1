"""What is paid once and not in every step: start-up, warm-up, outliers; and a step time that shifts midway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.frame.analyzer import EVIDENCE, Result
from gpuscope.analyzers.frame.needs import Need
from gpuscope.analyzers.frame.step_roles import Role
from gpuscope.report.schema.document import Evidence, FindingEntry
from gpuscope.report.view import units
from gpuscope.trace.schema import NA

MIN_SHARE = 0.01
"""Share of the recording from which what is paid once is worth a line."""


def run(facts: RunFacts) -> Result:
    """The findings `startup`, `warmup`, `outlier_steps` and `step_time_shift`."""
    result = Result(ANALYZER.name)
    if facts.steady.asked:
        return result
    recorded = max((lane.breakdown.window for lane in facts.lanes), default=0)
    found = [*_startup(facts), *_once(facts, Role.WARMUP), *_once(facts, Role.OUTLIER), *_shift(facts)]
    result.findings += [finding for finding in found if (finding["cost_ns"] or 0) >= MIN_SHARE * recorded]
    return result


def _startup(facts: RunFacts) -> Iterator[FindingEntry]:
    """What ran on the devices before the first step."""
    before = {
        lane.rank: (step.start, step.end - step.start)
        for lane in facts.lanes for step in lane.steps if step.step == NA
    }  # fmt: skip
    if before:
        cost = max(duration for _, duration in before.values())
        message = f"Set-up before the first step takes {units.duration(cost)} on the device, once per run"
        yield _finding("startup", message, sorted(before), cost, [
            _evidence(rank, start, duration, "set-up") for rank, (start, duration) in before.items()
        ])  # fmt: skip


_SAYS: Mapping[Role, tuple[str, str, str]] = {
    Role.WARMUP: ("warmup", "warm-up step", "compilation, autotuning, first use"),
    Role.OUTLIER: ("outlier_steps", "step", "a checkpoint or an evaluation, say"),
}


def _once(facts: RunFacts, role: Role) -> Iterator[FindingEntry]:
    """Steps of a role that is not judged: what they take beyond the usual step."""
    steps, step = facts.steady.of_role(role), facts.steady.step_ns
    if not steps or step is None:
        return
    cost = sum(max(duration - step, 0) for duration in steps.values())
    code, noun, why = _SAYS[role]
    longer = "longer than" if role is Role.WARMUP else "much longer than"
    verb = "takes" if len(steps) == 1 else "take"
    message = (
        f"{units.plural(len(steps), noun)} {verb} {longer} the usual {units.duration(step)} ({why}): "
        f"{units.duration(cost)} more in all"
    )
    places = [(lane, one) for lane in facts.lanes for one in lane.steps if one.step in steps]
    places.sort(key=lambda both: both[1].start - both[1].end)
    yield _finding(code, message, sorted({lane.rank for lane, _ in places}), cost, [
        _evidence(lane.rank, one.start, one.end - one.start, f"step {one.step}") for lane, one in places
    ])  # fmt: skip


def _shift(facts: RunFacts) -> Iterator[FindingEntry]:
    """Steps that were faster at the beginning: something slows the job down since."""
    fast, later = facts.steady.leading_fast, facts.steady.usual_ns
    if not fast or later is None:
        return
    usual = sum(fast) / len(fast)
    cost = round(sum(duration - usual for duration in facts.steady.durations[len(fast) :]))
    message = (
        f"Steps take {later / usual:.1f} times as long after the first {len(fast)}: {units.duration(usual)} before, "
        f"{units.duration(later)} since"
    )
    lane = facts.lanes[0]
    judged = [step for step in lane.steps if facts.steady.judged(step.step)]
    step = judged[min(len(fast), len(judged) - 1)]
    yield _finding("step_time_shift", message, sorted({lane.rank for lane in facts.lanes}), cost, [
        _evidence(lane.rank, step.start, step.end - step.start, f"step {step.step}, the first slow one")
    ])  # fmt: skip


def _finding(code: str, message: str, ranks: list[int], cost: int, evidence: list[Evidence]) -> FindingEntry:
    rank: Literal["high", "medium", "low"] = "medium" if code == "step_time_shift" else "low"
    return {
        "code": code, "severity": rank, "message": message, "ranks": ranks, "cost_ns_per_step": None,
        "cost_ns": cost, "share_frac": 0.0, "evidence": evidence[:EVIDENCE],
    }  # fmt: skip


def _evidence(rank: int, start: int, duration: int, name: str) -> Evidence:
    return {"rank": rank, "start_ns": start, "dur_ns": duration, "name": name, "note": "not part of the steady state"}


# Of device events a run's trace keeps only those of collectives; what is needed of the others is in the lanes.
ANALYZER = RunAnalyzer(
    "steps", run, (Need("ranks", "record the device's activity (ProfilerActivity.CUDA, nsys -t cuda)"),)
)
