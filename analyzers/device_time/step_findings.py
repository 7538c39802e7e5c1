"""What is paid once and not in every step: start-up, warm-up, outliers; and a step time that shifts midway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from gpuscope.analyzers.base.analyzer import EVIDENCE, Need, Result
from gpuscope.analyzers.base.evidence import Role
from gpuscope.analyzers.base.lanes import RECORDING, HostWork, LaneSummary
from gpuscope.analyzers.collectives.recurrence import CLEAR, MIN_PERIODS
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.finding import Finding, Severity, made
from gpuscope.catalogue.findings.steps import PARTS, OutlierSteps, RareSteps, Startup, StepTimeShift, Warmup
from gpuscope.catalogue.suggestion import BY_CODE
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.intervals import Breakdown
from gpuscope.trace.schema import NA
from gpuscope.welch import fmean, lower_median, median
from gpuscope.words import units
from gpuscope.words.vocabulary import VERDICT_SHARE

RARE = 1.3
"""Times «the step» from which one is long, as of few steps in definitions."""
MOST = 0.5
"""Share of the idle time from which a recording without steady steps is start-up."""
MIN_SHARE = 0.01
"""Share of the recording from which what is paid once is worth a line."""


def run(facts: RunFacts) -> Result:
    """The findings `startup`, `warmup`, `outlier_steps`, `step_time_shift` and `rare_steps`."""
    result = Result(ANALYZER.name)
    if facts.steady.asked:
        return result
    recorded = max((lane.breakdown.window for lane in facts.lanes), default=0)
    once = (*_only_startup(facts), *_startup(facts), *_once(facts, Role.WARMUP), *_once(facts, Role.OUTLIER))
    found = [*once, *_shift(facts), *_rare(facts)]
    result.findings += [finding for finding in found if (finding["cost_ns"] or 0) >= MIN_SHARE * recorded]
    return result


def _only_startup(facts: RunFacts) -> Iterator[FindingEntry]:
    """A recording without steady steps whose idle time is compiling, loading and first use for the most part."""
    if not facts.steady.whole_window:
        return
    lanes = [lane for lane in facts.lanes if RECORDING in lane.once]
    work = {lane.key: [one for one in lane.once[RECORDING] if one.first_use] for lane in lanes}
    window = sum(facts.steady.breakdown(lane).window for lane in lanes)
    idle = sum(facts.steady.breakdown(lane).idle for lane in lanes)
    spent = sum(one.spent for own in work.values() for one in own)
    if not window or idle < VERDICT_SHARE * window or spent < MOST * idle:
        return
    longest = _by_name([one for own in work.values() for one in own])
    words = Startup([(name, ns / window) for name, ns in longest], spent / window, 0)
    yield _finding(
        words,
        {lane.rank for lane in lanes},
        spent,
        [
            {
                "rank": lane.rank,
                "start_ns": lane.window[0],
                "dur_ns": one.spent,
                "name": one.name,
                "note": "in all, while the device is idle; not part of a steady step",
            }
            for lane in lanes
            for one in work[lane.key]
        ],
        share=spent / window,
    )


def _by_name(work: Sequence[HostWork]) -> list[tuple[str, int]]:
    """ns by name, the longest first."""
    spent: dict[str, int] = {}
    for one in work:
        spent[one.name] = spent.get(one.name, 0) + one.spent
    return sorted(spent.items(), key=lambda item: -item[1])


def _startup(facts: RunFacts) -> Iterator[FindingEntry]:
    """What ran on the devices before the first step."""
    first = {lane.rank: (lane, lane.steps[0]) for lane in facts.lanes if lane.steps and lane.steps[0].step == NA}
    before = {rank: (step.start, step.end - step.start) for rank, (_, step) in first.items()}
    if before:
        cost = max(duration for _, duration in before.values())
        named = {rank: _named(lane, 0) for rank, (lane, _) in first.items()}
        yield _finding(
            Startup([], 0.0, cost),
            before,
            cost,
            [_evidence(rank, start, duration, *named[rank]) for rank, (start, duration) in before.items()],
        )


def _once(facts: RunFacts, role: Role) -> Iterator[FindingEntry]:
    """Steps of a role that is not judged: what they take beyond the usual step."""
    steps, step = facts.steady.of_role(role), facts.steady.step_ns
    if not steps or step is None:
        return
    cost = sum(max(duration - step, 0) for duration in steps.values())
    words = (
        Warmup(len(steps), step, cost)
        if role is Role.WARMUP
        else OutlierSteps(len(steps), step, cost, *longest_outlier(facts, steps))
    )
    places = [(lane, place) for lane in facts.lanes for place, one in enumerate(lane.steps) if one.step in steps]
    places.sort(key=lambda both: both[0].steps[both[1]].start - both[0].steps[both[1]].end)
    yield _finding(
        words,
        {lane.rank for lane, _ in places},
        cost,
        [
            _evidence(
                lane.rank,
                lane.steps[place].start,
                lane.steps[place].end - lane.steps[place].start,
                *_named(lane, place),
            )
            for lane, place in places
        ],
    )


def _named(lane: LaneSummary, place: int) -> tuple[str, str]:
    """What a part that is not steady is called, and what its host did longest while the device was idle."""
    step = lane.steps[place]
    name = "set-up" if step.step == NA else f"step {step.step}"
    work = ", ".join(f"{one.name} {units.duration(one.spent)}" for one in lane.once.get(place, ()))
    return name, f"the device idles longest in: {work}" if work else "not part of the steady state"


def _rare(facts: RunFacts) -> Iterator[FindingEntry]:
    """What a few long steps cost, which no usual step shows: priced on the mean over the recording."""
    steady, usual = facts.steady, facts.steady.step_ns
    if usual is None or steady.whole_window:
        return
    times = steady.of_role(Role.STEADY) | steady.of_role(Role.OUTLIER)
    work = {step: _most_spent(facts, step, usual) for step in (*times, *steady.of_role(Role.WARMUP))}
    returning = {work[step] for step, ns in times.items() if ns > RARE * usual} - {""}
    times |= {step: ns for step, ns in steady.of_role(Role.WARMUP).items() if work[step] in returning}
    more = {step: ns - usual for step, ns in times.items() if ns > RARE * usual}
    numbers = sorted(step for step, ns in more.items() if ns >= CLEAR * median(more.values()))
    if not numbers or 2 * len(numbers) > len(times):
        return
    mean, cost = fmean(times.values()), sum(times[step] - usual for step in numbers)
    if mean - usual < VERDICT_SHARE * mean or 2 * cost < (mean - usual) * len(times):
        return
    place = max(returning, key=lambda name: sum(times[step] for step in numbers if work[step] == name), default="")
    words = RareSteps(
        len(numbers),
        len(times),
        _period(numbers, sorted(times)),
        usual,
        round(mean),
        round(cost / len(numbers)),
        place,
        next((cause.code for cause in BY_CODE.values() for _, shows in cause.shown_by if place and shows(place)), ""),
    )
    lanes = [(lane, at) for lane in facts.lanes for at, one in enumerate(lane.steps) if one.step in numbers]
    yield _finding(
        words,
        {lane.rank for lane, _ in lanes},
        cost,
        [
            _evidence(lane.rank, lane.steps[at].start, lane.steps[at].end - lane.steps[at].start, *_named(lane, at))
            for lane, at in lanes
        ],
        severity="medium",
    )


def _most_spent(facts: RunFacts, step: int, usual: int) -> str:
    """What the host of any rank did for half of what a step takes beyond the usual one while its device was idle; empty
    where that is not recorded. What holds one rank up before its next step begins lies in its step before."""
    work = [
        one
        for lane in facts.lanes
        for at, own in enumerate(lane.steps)
        if own.step in (step - 1, step)
        for one in lane.once.get(at, ())
    ]
    longest = max(work, key=lambda one: one.spent, default=None)
    beyond = facts.steady.duration(step) - usual
    return longest.name if longest is not None and 2 * longest.spent >= beyond > 0 else ""


def _period(numbers: Sequence[int], every: Sequence[int]) -> int:
    """In every how-manieth step these numbers are, if they have returned often enough and none is left out; else 0."""
    apart = {later - earlier for earlier, later in pairwise(numbers)}
    if len(numbers) < MIN_PERIODS or len(apart) != 1:
        return 0
    (period,) = apart
    whole = numbers[0] - period < every[0] and numbers[-1] + period > every[-1]
    return period if whole and period > 1 else 0


def _shift(facts: RunFacts) -> Iterator[FindingEntry]:
    """Steps that all take longer from one on, or all less: something slows the job down since, or no longer does."""
    if Role.BEFORE_SHIFT in facts.steady.roles.values():
        yield _shift_for_good(facts)
    fast, later = facts.steady.leading_fast, facts.steady.usual_ns
    if not fast or later is None:
        return
    usual = sum(fast) / len(fast)
    cost = round(sum(duration - usual for duration in facts.steady.durations[len(fast) :]))
    lane = facts.lanes[0]
    judged = [step for step in lane.steps if facts.steady.judged(step.step)]
    step = judged[min(len(fast), len(judged) - 1)]
    yield _finding(
        StepTimeShift(len(fast), usual, later),
        {lane.rank for lane in facts.lanes},
        cost,
        [_evidence(lane.rank, step.start, step.end - step.start, f"step {step.step}, the first slow one", "")],
    )


def _shift_for_good(facts: RunFacts) -> FindingEntry:
    steady, since = facts.steady, facts.steady.step_ns or 0
    earlier = steady.of_role(Role.BEFORE_SHIFT)
    before = lower_median(earlier.values())
    judged = [step for step in steady.steps if steady.judged(step)]
    slower = since > before
    cost = sum(
        max(steady.duration(step) - before, 0) if slower else max(duration - since, 0)
        for step, duration in ((step, steady.duration(step)) for step in (judged if slower else earlier))
    )
    changes = [own for lane in facts.lanes if (own := _changed(facts, lane, earlier)) is not None]
    mean = {part: round(sum(own[part] for own in changes) / len(changes)) for part in PARTS} if changes else {}
    sign = 1 if slower else -1
    part = max(mean, key=lambda one: sign * mean[one], default="")
    lane = facts.lanes[0] if facts.lanes else None
    first = [step for step in lane.steps if step.step == judged[0]] if lane else []
    return _finding(
        StepTimeShift(len(earlier), before, since, judged[0], part, mean.get(part, 0)),
        {lane.rank for lane in facts.lanes},
        cost,
        [
            _evidence(
                lane.rank, step.start, step.end - step.start, f"step {step.step}", "the first one after the shift"
            )
            for step in first
            if lane
        ],
    )


def _changed(facts: RunFacts, lane: LaneSummary, earlier: Iterable[int]) -> dict[str, int] | None:
    """By how much each part of a lane's mean step grew with the shift, ns; None where it lacks a side."""
    sides = [
        [parts.parts for step, parts in zip(lane.steps, lane.step_breakdowns, strict=True) if step.step in numbers]
        for numbers in (set(earlier), {step for step in facts.steady.steps if facts.steady.judged(step)})
    ]
    if not all(sides):
        return None
    before, since = ({part: fmean(own[part] for own in side) for part in PARTS} for side in sides)
    return {part: round(since[part] - before[part]) for part in PARTS}


def _finding(
    words: Finding,
    ranks: Iterable[int],
    cost: int,
    evidence: list[Evidence],
    share: float = 0.0,
    severity: Severity | None = None,
) -> FindingEntry:
    return made(
        words,
        ranks=ranks,
        share=share,
        cost_ns=cost,
        mean_ns=None,
        evidence=evidence[:EVIDENCE],
        severity="medium" if share else severity,
    )


def _evidence(rank: int, start: int, duration: int, name: str, note: str) -> Evidence:
    return {"rank": rank, "start_ns": start, "dur_ns": duration, "name": name, "note": note}


# Of device events a run's trace keeps only those of collectives; what is needed of the others is in the lanes.
ANALYZER = RunAnalyzer(
    "steps", run, (Need("ranks", "record the device's activity (ProfilerActivity.CUDA, nsys -t cuda)"),)
)


OF_ONE_KIND = 0.5
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
    if all(idle >= OF_ONE_KIND * beyond for _, _, idle in more.values()):
        return "pause", [], next((place for place in longest.values() if place), "")
    waiting = {key for key, (_, waits, _) in more.items() if waits >= OF_ONE_KIND * beyond}
    alone = {key for key, (works, waits, idle) in more.items() if works + idle >= OF_ONE_KIND * beyond > waits}
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
