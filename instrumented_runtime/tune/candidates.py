"""What is worth trying: the report's advice, the most certain gain first, as far as it can be followed from outside.

Another source of candidates is another function of this kind, given to the session (`tuning.Session.sources`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.tune import measured
from gpuscope.instrumented_runtime.tune.measured import (
    Noise,
    Run,
    assumed,
    better_known,
    change,
    near,
    noise,
    step_ns,
    with_prior,
)
from gpuscope.schema.plan_document import ByHand, Outcome
from gpuscope.welch import Interval
from gpuscope.words import units

Applicable = Callable[[Mapping[str, Any], str, Mapping[str, Any]], Sequence[Change] | None]
"""Setting, code and facts of a suggestion → the changes that follow it; None where only the script can."""
Group = Callable[[Change], str]
"""The group that a change has to be allowed by; empty where it preserves what is trained."""


@dataclass(frozen=True)
class Candidate:
    """A suggestion and the changes that follow it. Ratios are of the step it starts from."""

    code: str
    action: str
    setting: str
    changes: tuple[Change, ...]
    after: float | None = None
    """Predicted; None without a figure."""
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    """The least that it can lead to, where no replay tells."""
    profiled_ns: int | None = None
    """The step that figures are ratios of, under the profiler."""
    findings: frozenset[str] = frozenset()
    """Codes of those that it answers."""

    @property
    def sure(self) -> bool:
        """Whether it surely gains much."""
        return self.high is not None and self.high < SURE

    @property
    def least(self) -> float:
        """What it leads to at best; 0 where nothing is known."""
        return next((one for one in (self.low, self.bound) if one is not None), 0.0)

    @property
    def order(self) -> tuple[int, float]:
        """By the gain that is certain; those without a figure by their bound, after the others."""
        if self.high is not None:
            return 0, self.high
        return 1, 1.0 if self.bound is None else self.bound


SURE, LEAST_GAIN = 0.95, 0.01
"""Of the step: what a change that surely gains much leads to at most; and the gain below which two runs of one job
differ by themselves, the threshold of `gpuscope diff`."""
Alters = Callable[[Change], bool]
"""Whether a change may alter what is trained."""


def together(waiting: Sequence[Candidate], alters: Alters = lambda _: False) -> list[Candidate]:
    """What is tried in one run: the first one, and all with a figure or a bound that answer another finding and set
    other knobs. What may alter training is tried without those that don't, since its losses may move further."""
    first, *others = waiting
    chosen = [first]
    for one in others if _estimated(first) else ():
        apart = all(one.findings.isdisjoint(other.findings) and not _names(one) & _names(other) for other in chosen)
        if _estimated(one) and apart and any(map(alters, one.changes)) == any(map(alters, first.changes)):
            chosen.append(one)
    return chosen


def _estimated(one: Candidate) -> bool:
    return bool(one.findings) and (one.high is not None or one.bound is not None)


def joined(members: Sequence[Candidate]) -> Candidate:
    """All of them as one. At best what each takes off the step is taken off it; at worst what each leaves of it is left
    of what the others leave, and a bound takes nothing; as expected in the middle. No figure where none has one."""
    if len(members) == 1:
        return members[0]
    least = max(1 - sum(1 - one.least for one in members), 0.0)
    after = [one.after for one in members if one.after is not None]
    high = [one.high for one in members if one.high is not None]
    known = bool(after)
    added = max(1 - sum(1 - one for one in after), 0.0)
    return Candidate(
        " + ".join(one.code for one in members),
        "; ".join(one.action for one in members),
        ", ".join(one.setting for one in members),
        tuple(change for one in members for change in one.changes),
        after=max((math.prod(after) + added) / 2, least) if known else None,
        low=least if known else None,
        high=math.prod(high) if known else None,
        bound=None if known else least,
        profiled_ns=members[0].profiled_ns,
        findings=frozenset().union(*(one.findings for one in members)),
    )


def _names(one: Candidate) -> set[str]:
    return {change.name for change in one.changes}


@dataclass(frozen=True)
class Advice:
    """What a report suggests: to be tried, in this order; and by hand."""

    candidates: list[Candidate]
    by_hand: list[ByHand]


BY_SCRIPT = "the script has to change"
Source = Callable[[Mapping[str, Any]], Advice]
"""From a report to what to try."""


def of_advice(applicable: Applicable, group: Group, allowed: Sequence[str]) -> Source:
    """The source that follows a report's own suggestions, with or without figure, and the members of its plan."""

    def source(report: Mapping[str, Any]) -> Advice:
        found: dict[tuple[Change, ...], Candidate] = {}
        by_hand: dict[tuple[str, str], ByHand] = {}
        answered = {str(entry.get("finding")) for entry in report.get("suggestions") or ()}
        for entry in _entries(report):
            changes = applicable(entry["setting"], entry["code"], entry.get("facts") or {})
            groups = sorted({name for one in changes or () if (name := group(one)) and name not in allowed})
            if not changes or groups:
                row = _by_hand(entry, groups)
                answered.add(str(entry.get("finding")))
                by_hand.setdefault((row["code"], row["setting"]), row)
                continue
            one = replace(_candidate(entry, tuple(changes)), findings=frozenset({str(entry.get("finding"))}))
            if one.least > 1 - LEAST_GAIN:
                row = _row(entry, f"it can gain {units.share(1 - one.least)} at most, which two runs differ by anyway")
                by_hand.setdefault((row["code"], row["setting"]), row)
                continue
            found.setdefault(tuple(changes), one)
        for row in _own_code(report, answered):
            by_hand.setdefault((row["code"], row["setting"]), row)
        return Advice(sorted(found.values(), key=lambda one: one.order), list(by_hand.values()))

    return source


def _entries(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    advice = report.get("advice") or {}
    yield from report.get("suggestions") or ()
    yield from advice.get("unpredicted") or ()
    yield from (advice.get("plan") or {}).get("steps") or ()


def _candidate(entry: Mapping[str, Any], changes: tuple[Change, ...]) -> Candidate:
    named = entry["code"], entry["action"], shown(entry["setting"]), changes
    predicted, bound = entry.get("predicted"), entry.get("bound")
    if predicted and predicted["step_ns_before"]:
        before = predicted["step_ns_before"]
        after, low, high = (predicted[key] / before for key in ("step_ns_after", "low_ns", "high_ns"))
        return Candidate(*named, after, low, high, profiled_ns=before)
    if bound and bound["step_ns_before"]:
        return Candidate(*named, bound=bound["step_ns_low"] / bound["step_ns_before"])
    return Candidate(*named)


def shown(setting: Mapping[str, Any]) -> str:
    """A setting of a report on one line; an unset variable has no value."""
    return f"{setting['name']}={setting['value']}" if setting["value"] else str(setting["name"])


OWN_CODE, LEAST_SHARE = "host_other", 0.05
"""The finding of what the script itself does beside training, and the share of the step from which it is work."""


def _own_code(report: Mapping[str, Any], answered: Collection[str]) -> Iterator[ByHand]:
    """What the script's own code takes, where no predicted suggestion answers that."""
    for finding in report.get("findings") or () if OWN_CODE not in answered else ():
        if finding["code"] == OWN_CODE and (finding.get("share_frac") or 0.0) >= LEAST_SHARE:
            where = next((one["name"] for one in finding["evidence"]), "")
            yield {"code": OWN_CODE, "action": finding["message"], "setting": where, "why": BY_SCRIPT}


def _by_hand(entry: Mapping[str, Any], groups: Sequence[str]) -> ByHand:
    options = " ".join(f"--allow {name}" for name in groups)
    return _row(entry, f"it may alter training: {options} tries it" if groups else BY_SCRIPT)


def _row(entry: Mapping[str, Any], why: str) -> ByHand:
    return {"code": entry["code"], "action": entry["action"], "setting": shown(entry["setting"]), "why": why}


# Keep or roll back: a change is kept where its whole interval lies beyond one per cent, as `gpuscope diff` judges
# an improvement, and its losses are those of the baseline.
#
# One run shows most changes to gain nothing, and a large gain: one beyond what runs differ by on a busy machine. What
# looks faster but is not as clear, or gains nothing but should for certain, is run again, at most `ROUNDS` times,
# beside
# the best each time (best, change, best, change), so that what drifts meets both. Where the budget ends before, a
# change
# that is predicted to gain for certain and is ahead by more than equal runs differ stays: both say the same.

ROUNDS = 20
"""Runs of a change at most."""
WIDER = 1.15
"""Times a single comparison's interval: a session has several changes and looks at each after every run. With it noise
alone keeps a change in at most 5 of 100 sessions (tests/runtime/tune/test_decision.py), whatever the noise."""

Take = Callable[[Literal["best", "trial"]], Run | None]
"""Makes one more run; None where the budget allows none."""


@dataclass
class Judgement:
    """What became of a change, with the runs that say so."""

    outcome: Outcome
    runs: list[Run] = field(default_factory=list)
    interval: Interval | None = None
    """Of the logarithm of its step by the best's."""
    detail: str = ""
    refused: Run | None = None
    """The run that could not make all of its changes."""
    settled: bool = True
    """Whether further runs would not change it."""
    moved: float | None = None
    """How far its losses are from the best's, as a fraction."""
    limit: float | None = None
    redrawn: bool = False
    """Whether its losses were held against what other random numbers in the data may move them by."""
    sure: float = 1.0
    """The ratio of the steps that it should lead to at least: that there is no gain takes runs that contradict it."""

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval alone shows the gain."""
        return _decisive(self.interval)


@dataclass
class Standing:
    """What a change is judged against. Runs of the best that are repeated join `best`."""

    baseline: list[Run]
    best: list[Run]
    groups: list[list[Run]]
    """All groups of runs with the same settings so far, these two included: they tell the noise."""

    def noise(self, trial: Sequence[Run] = ()) -> Noise | None:
        """Of runs like the best's, and of a trial's own."""
        others = [one for one in near(self.groups, self.best) if one is not trial]
        return noise([*others, trial])

    def repeat(self, run: Run) -> None:
        """One more run of the best."""
        self.best[:] = better_known(self.best, run)


def judge(
    standing: Standing,
    take: Take,
    *,
    alters: bool = False,
    redraws: bool = False,
    before: Sequence[Run] = (),
    rounds: int = ROUNDS,
    sure: float = 1.0,
) -> Judgement:
    """Run a change until it is settled, or `rounds` times, the runs of it `before` first; the best is run again beside
    it where that helps."""
    made, ready = Judgement("not_beyond_chance", sure=sure), list(before)
    standing.groups.append(made.runs)
    for number in range(rounds):
        if number and not ready and not _beside(standing, take, made):
            return _at_the_end(standing, made)
        run = ready.pop(0) if ready else take("trial")
        if run is None:
            return _at_the_end(standing, made)
        if run.failed is not None:
            made.outcome, made.detail = run.failed, run.detail
            if run.refused:
                made.refused, made.detail = run, "; ".join(run.refused.values())
            return made
        made.runs.append(run)
        wrong = _losses(standing, run, made, alters=alters, redraws=redraws)
        if wrong == "losses_moved" and measured.own_noise([standing.baseline, standing.best]) is None:
            # What runs differ by without any change is not known yet.
            if not _beside(standing, take, made):
                return made
            wrong = _losses(standing, run, made, alters=alters, redraws=redraws)
        if wrong is not None:
            made.outcome = wrong
            return made
        known = _weigh(standing, made)
        hopeless = known is not None and _contradicted(made) and _hopeless(made, known, len(standing.best))
        if made.outcome in ("no_gain", "faster") or hopeless:
            return made
    made.settled = rounds >= ROUNDS
    return made


def _at_the_end(standing: Standing, made: Judgement) -> Judgement:
    """The budget is spent."""
    made.outcome = "budget"
    if made.runs:  # the best may have been run again
        _weigh(standing, made)
    if made.outcome == "budget" and made.runs and made.sure < 1 and ahead(standing, made.runs):
        made.outcome = "faster"
    return made


def ahead(standing: Standing, runs: Sequence[Run]) -> bool:
    """Whether these runs are faster than the best by more than equal runs differ, nine times in ten."""
    apart = assumed(standing.noise(runs)).apart(len(standing.best), len(runs))
    return math.log(step_ns(standing.best) / step_ns(runs)) > apart


def _weigh(standing: Standing, made: Judgement) -> Noise | None:
    """Set a change's interval, and its outcome where that settles it. Returns the noise that it rests on."""
    known, last = standing.noise(made.runs), made.interval
    made.interval = change(standing.best, made.runs, assumed(known)).scaled(WIDER)
    clear = change(standing.best, made.runs, with_prior(known)).scaled(WIDER)
    if (made.interval.low + made.interval.high) / 2 > math.log1p(-LEAST_GAIN):
        made.outcome = "no_gain" if _contradicted(made) else made.outcome
    elif _decisive(clear) or (_decisive(last) and _decisive(made.interval)):
        made.outcome = "faster"
    return known


def _contradicted(made: Judgement) -> bool:
    """Whether its runs show that it leads to less than is predicted for certain, or nothing is."""
    return made.sure == 1 or (made.interval is not None and made.interval.low > math.log(made.sure))


def _hopeless(made: Judgement, known: Noise, best: int) -> bool:
    """Whether all rounds would hardly settle it: not even with a gain one standard error larger than measured."""
    assert made.interval is not None
    count = len(made.runs)
    middle = (made.interval.low + made.interval.high) / 2 - known.fraction * math.sqrt(1 / best + 1 / count)
    foreseen = Noise(known.variance, known.freedom + 2 * (ROUNDS - count)).interval(middle, ROUNDS, ROUNDS)
    return not _decisive(foreseen.scaled(WIDER))


def _beside(standing: Standing, take: Take, made: Judgement) -> bool:
    """Run the best once more; False where the budget does not allow it."""
    run = take("best")
    if run is None:
        made.outcome = "budget"
        return False
    if run.failed is None:
        standing.repeat(run)
    return True


def clearly_faster(standing: Standing) -> bool:
    """Whether the best, run twice or more, is faster than the baseline beyond what runs differ by on a busy machine."""
    known = noise([standing.baseline, standing.best])
    return len(standing.best) > 1 and _decisive(change(standing.baseline, standing.best, with_prior(known)))


def confirmed(standing: Standing, take: Take) -> bool:
    """Whether all that was kept is faster than the baseline, both run once more where the budget allows it."""
    for side, runs in (("trial", standing.baseline), ("best", standing.best)):
        again = take(side)  # type: ignore[arg-type]
        if again is not None and again.failed is None:
            runs.append(again)
    interval = overall(standing)
    return interval.high < 0


def overall(standing: Standing) -> Interval:
    """The interval of the logarithm of best / baseline."""
    known = noise([standing.baseline, standing.best])
    return change(standing.baseline, standing.best, assumed(known))


def _decisive(interval: Interval | None) -> bool:
    return interval is not None and interval.high < math.log1p(-LEAST_GAIN)


def _losses(standing: Standing, run: Run, made: Judgement, *, alters: bool, redraws: bool) -> Outcome | None:
    """What is wrong with a run's losses beside the best's; None where nothing is, or the baseline's were not seen."""
    made.limit = measured.limit([standing.baseline, standing.best], alters=alters)
    if made.limit is None:
        return None
    made.moved = measured.moved(standing.best, run)
    if made.moved is None:
        return "losses_not_seen"
    if made.moved > made.limit and redraws and (in_all := measured.moved_in_all(standing.best, run)) is not None:
        # The same items with other random numbers: step by step they differ, on average over the steps they must not.
        limit = measured.limit_of_draws([*standing.baseline, *standing.best], in_all[1])
        if limit is not None:
            made.redrawn, made.moved, made.limit = True, in_all[0], max(limit, made.limit)
    return "losses_moved" if made.moved > made.limit else None


def why(made: Judgement) -> str:
    """The sentence for what became of a change."""
    match made.outcome:
        case "faster" if not made.beyond_chance:
            told = f"the budget ended; faster by more than equal runs differ, as surely predicted ({_interval(made)})"
            return told + _redrawn(made)
        case "faster":
            return f"the whole 95 % interval, {_interval(made)}, lies beyond {units.share(LEAST_GAIN)}{_redrawn(made)}"
        case "losses_moved" if made.redrawn:
            return (
                f"the mean loss of the first steps moved by {_fraction(made.moved)}, more than the "
                f"{_fraction(made.limit)} that other random numbers in the data explain"
            )
        case "no_gain":
            return f"no gain of {units.share(LEAST_GAIN)} measured ({_interval(made)})"
        case "not_beyond_chance":
            return f"{units.plural(len(made.runs), 'run')} can't tell it from chance ({_interval(made)})"
        case "losses_moved":
            return (
                f"the losses of the first steps moved by {_fraction(made.moved)}, more than the "
                f"{_fraction(made.limit)} that the order of sums and the noise between runs explain"
            )
        case "losses_not_seen":
            return "its losses could not be seen, those of the baseline could"
        case "not_applied":
            return f"nothing in the job took it: {made.detail}"
        case "hung":
            return f"it had not ended after {made.detail} s, and was killed"
        case "failed":
            last = made.detail.splitlines()
            return f"the job failed: {last[-1].strip()}" if last else "the job failed"
        case "no_steps":
            return "no steps were recorded"
        case "budget":
            unfinished = f"the budget ended its run after {made.detail} s, unfinished"
            return unfinished if made.detail else "the budget ended before it was settled"
        case "not_confirmed":
            return "with all that was kept, beside the baseline once more, no gain was left beyond chance"


def _redrawn(made: Judgement) -> str:
    """What differs where the data's random numbers do."""
    if not made.redrawn:
        return ""
    return (
        f"; the data's random numbers are others (workers draw their own): the mean loss of the first steps moved by "
        f"{_fraction(made.moved)}, steps alone explain up to {_fraction(made.limit)}"
    )


def _interval(made: Judgement) -> str:
    if made.interval is None:
        return "no interval"
    low, high = (100 * math.expm1(one) for one in (made.interval.low, made.interval.high))
    return f"{low:+.1f} to {high:+.1f} %"


def _fraction(value: float | None) -> str:
    return "an unknown part" if value is None else "no end" if math.isinf(value) else f"{100 * value:.2g} %"
