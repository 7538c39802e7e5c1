"""From findings to suggestions: every change that a rule proposes is tried in the replay.

Of the values of one knob the first within `TIE_FRAC` of the best is taken. A suggestion is dropped where another one
for the same finding leads at least as far and nothing is gained by making both. Gains are never added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeVar

from gpuscope.analyzers.advice.prediction_cache import (
    MIN_GAIN_FRAC,
    TIE_FRAC,
    UNCERTAIN_GAIN_FRAC,
    Tries,
    beyond,
    explained,
    is_gain,
    may_gain,
    step_bound,
)
from gpuscope.analyzers.advice.rule import Case, Estimate, Predict, Proposal, Rule, is_startup, of_wrapper, rules_for
from gpuscope.analyzers.advice.settings.known import Known
from gpuscope.analyzers.advice.settings.settings import KNOWN
from gpuscope.analyzers.advice.transfer_bounds import of_part, transfer_bounds
from gpuscope.analyzers.what_if_changes import UNMATCHED, PipelineChange, Predicted, Refused
from gpuscope.catalogue.finding import within_compute
from gpuscope.catalogue.suggestion import BY_CODE, UNDIVIDED
from gpuscope.report.view import main_finding
from gpuscope.schema.document import (
    AdviceEntry,
    Diagnosis,
    FindingEntry,
    NothingGainsEntry,
    PlanEntry,
    StepBound,
    SuggestionEntry,
    TriedEntry,
    UnpredictedEntry,
)
from gpuscope.schema.provenance import Prediction
from gpuscope.when_used import dataclass
from gpuscope.words import units

# The best combination of changes: greedy, each step of it replayed together with those before, never added up.

MOST = 12
"""Proposals that are combined, the most promising first: tries grow with the square."""


@dataclass(frozen=True)
class Plan:
    """Changes to make together."""

    steps: Sequence[tuple[Proposal, int]]
    """Each with the step that it and those before it lead to, ns."""
    predicted: Predicted
    """Of all of them together."""


def best_plan(candidates: Sequence[Proposal], tries: Tries) -> Plan | None:
    """The combination with the shortest step that the greedy search finds; None where no two gain more than one.

    Some changes can't be made together (a pipeline's with others), so the search begins with each of the two best.
    """
    chosen = _promising(candidates, tries)
    if len(chosen) < 2:
        return None
    outcome = next((own for one in chosen if isinstance(own := tries.outcome(one), Predicted)), None)
    if outcome is None:
        return None
    least = MIN_GAIN_FRAC * outcome.before
    found = [_greedy(chosen, tries, outcome.before, least)]
    first = found[0][0][0] if found[0] else None
    found.append(_greedy([one for one in chosen if one is not first], tries, outcome.before, least))
    best = min((steps for steps in found if len(steps) > 1), key=lambda steps: steps[-1][1], default=None)
    steps = [step for one in chosen if not isinstance(step := tries.step(one), Refused)]
    alone = min(steps, default=0)
    if best is None or best[-1][1] > alone - least:
        return None
    predicted = tries.predict_together([one for one, _ in best])
    if isinstance(predicted, Refused) or not is_gain(predicted):
        return None
    return Plan(best, predicted)


def _promising(candidates: Sequence[Proposal], tries: Tries) -> list[Proposal]:
    """Each setting once, by what it leads to alone; behind them those that only others make possible."""
    once: dict[tuple[str, str], Proposal] = {}
    for one in candidates:
        once.setdefault((one.setting["name"], one.setting["value"]), one)

    def step(one: Proposal) -> float:
        after = tries.step(one)
        return float("inf") if isinstance(after, Refused) else after

    return sorted(once.values(), key=step)[:MOST]


def _greedy(chosen: Sequence[Proposal], tries: Tries, before: float, least: float) -> list[tuple[Proposal, int]]:
    """Add what shortens the step most, as long as something does by `least` ns."""
    made: list[tuple[Proposal, int]] = []
    now = before
    while True:
        best: tuple[float, Sequence[Proposal]] | None = None
        for added in _moves(chosen, [one for one, _ in made]):
            after = tries.together([*(one for one, _ in made), *added])
            if not isinstance(after, Refused) and after <= now - least and (best is None or after < best[0]):
                best = (after, added)
        if best is None:
            return made
        for one in best[1]:
            after = tries.together([*(own for own, _ in made), one])
            made.append((one, round(best[0]) if isinstance(after, Refused) else after))
        now = best[0]


def _moves(chosen: Sequence[Proposal], made: Sequence[Proposal]) -> Iterator[Sequence[Proposal]]:
    """What can be added: one proposal, or all of one finding, for two late ranks hide behind each other."""
    codes = {one.code for one in made}
    left = [
        one for one in chosen if one not in made and (not (needs := one.possible_after) or codes.intersection(needs))
    ]
    yield from ([one] for one in left)
    for finding in {one.finding["code"]: None for one in left}:
        together = [one for one in left if one.finding["code"] == finding and one.record.subject]
        if len(together) > 1:
            yield together


COSTLY_FRAC = 0.05
"""Share of the time from which a cause that no change helps against is said to be one."""
UNSHOWN_FRAC, UNSHOWN_TIMES = 0.02, 1.25
"""Of the step, and of the gain that is certain: more than both is not promised where the gain hangs on what the trace
does not show. Where no more than nine ranges in ten hold, half as much again would be too much now and then."""
NOT_ASKED = "advice was not asked for"
Outcome = TypeVar("Outcome")


@dataclass
class _Found:
    """What became of the proposals."""

    kept: list[tuple[Proposal, Predicted]] = field(default_factory=list)
    refused: list[tuple[Proposal, str]] = field(default_factory=list)
    without_gain: list[tuple[Proposal, int]] = field(default_factory=list)
    candidates: list[Proposal] = field(default_factory=list)
    """Best value of each knob whose changes the replay knows, whether it gains alone or not."""

    def take_large(self, minor: _Found) -> None:
        """What answers a cause that costs little, where it gains much for certain: a wait also delays what follows, and
        ranks wait for a late one while they compute."""
        kept = [one for one in minor.kept if one[1].high <= one[1].before * (1 - UNCERTAIN_GAIN_FRAC)]
        self.kept += kept
        self.candidates += [proposal for proposal, _ in kept if proposal.changes]


def advise(
    report: Diagnosis, predict: Predict, among: Sequence[Rule] | None = None, estimate: Estimate | None = None
) -> tuple[list[SuggestionEntry], AdviceEntry]:
    """The suggestions for a report, first what answers the trouble, then by the gain that is certain; and why there are
    no (more) of them, with the plan that combines them if two together gain more than one.

    `predict` replays changes made together; `estimate` does so without a range.
    """
    tries = Tries(predict, estimate)
    case = Case(report, tries.predict, tries.after)
    found = _Found()
    answering = rules_for({finding["code"] for finding in report["findings"]}) if among is None else among
    for proposals in _proposals(case, answering):
        if costs_little(proposals[0].finding):
            _sort_out(minor := _Found(), proposals, tries, report)
            found.take_large(minor)
        else:
            _sort_out(found, proposals, tries, report)
    if report["verdict"]["bound_by"] == "compute":
        # There a change of anything but the kernels is worth it only where it is certain to gain.
        found.kept = [
            one
            for one in found.kept
            if not one[0].gains_time or within_compute(one[0].finding["code"]) or is_gain(one[1])
        ]
        found.refused = [one for one in found.refused if one[0].finding["code"] not in BY_CODE]
    main = main_finding.main_finding(report)
    trouble = main["code"] if main is not None else ""
    kept = _undominated(_once(sorted(found.kept, key=_rank)), tries, trouble)
    plan = best_plan(found.candidates, tries)
    at_best = transfer_bounds(report, tries.after)
    taken = {proposal.code for proposal, _ in kept}
    told = [_of_the_reason(one, found.kept, trouble) for one in kept]
    suggestions = main_finding.in_order(report, [_suggestion(*one, report, tries) for one in told])
    refused = [_unpredicted(report, at_best, *one) for one in _once(found.refused) if one[0].code not in taken]
    unpredicted = main_finding.answering_first(report, refused)
    advice: AdviceEntry = {
        "why": _why(report, suggestions, unpredicted),
        "unpredicted": unpredicted,
        "nothing_gains": _nothing_gains(report, found, plan, at_best),
    }
    if at_best:
        advice["at_best"] = [{"finding": code, "bound": bound} for code, bound in at_best.items()]
    if plan is not None:
        advice["plan"] = _plan(plan)
    elif why := _no_plan([proposal for proposal, _ in kept if proposal.changes], tries):
        advice["no_plan"] = why
    return suggestions, advice


def not_asked() -> AdviceEntry:
    """The advice of a report without tries."""
    return {"why": NOT_ASKED, "asked": False, "unpredicted": [], "nothing_gains": []}


def worth_answering(report: Diagnosis, finding: FindingEntry) -> bool:
    """Whether a finding may lead to advice: a stall of a run that can be judged and is not start-up alone, which no
    step repeats."""
    if finding["code"] == UNDIVIDED:
        return not report["verdict"]["abstained"] and finding["severity"] != "low"
    return finding["code"] not in BY_CODE or not (report["verdict"]["abstained"] or is_startup(report))


def costs_little(finding: FindingEntry) -> bool:
    """Whether a finding is a stall below 3 % (of severity low)."""
    return finding["code"] in BY_CODE and finding["severity"] == "low"


def _proposals(case: Case, among: Sequence[Rule]) -> Iterator[list[Proposal]]:
    """Per finding and knob: the values proposed for it."""
    for rule in (rule for rule in among if case.program is None or case.program in rule.programs):
        for finding in case.report["findings"]:
            if finding["code"] not in rule.answers or not worth_answering(case.report, finding):
                continue
            knobs: dict[tuple[str, str, str], list[Proposal]] = {}
            for one in rule.propose(case, finding):
                proposal = replace(one, setting=of_wrapper(case, one.setting))
                if _fits(case, proposal) and not _needs_others(case, proposal):
                    knobs.setdefault((proposal.code, proposal.record.subject, proposal.path), []).append(proposal)
            yield from knobs.values()


def _fits(case: Case, proposal: Proposal) -> bool:
    """Whether the recorded version has the setting, and another value than this by default. To go back to the default
    is advice where the rule has seen another value, or the replay shows that the run is not as the default makes it."""
    known = KNOWN.get(proposal.setting["name"])
    if known is None:
        return True
    version = case.version(known.package)
    if not known.exists(version) or _in_effect(case, known, proposal.setting["value"]):
        return False
    if known.restores or proposal.differs or not known.is_default(proposal.setting["value"], version):
        return True
    return bool(proposal.changes) and not isinstance(case.estimate(proposal.changes), Refused)


def _in_effect(case: Case, known: Known, value: str) -> bool:
    """Whether the recorder saw this value of a setting in effect, and no other."""
    seen = case.settings.get(_recorder_name(case, known.name), [])
    return bool(seen) and all(
        known.is_default(value, case.version(known.package)) if one in UNSET else known.alike(one, value)
        for one in seen
    )


UNSET = ("default", "none")
"""What the recorder writes where the script gives no value."""
_WRAPPER = "DistributedDataParallel."


def _recorder_name(case: Case, name: str) -> str:
    """What the recorder calls a setting that advice calls so; empty where it knows none."""
    if name.startswith(_WRAPPER):
        return f"ddp.{name.removeprefix(_WRAPPER)}"
    owner, _, argument = name.rpartition(".")
    if owner.startswith("torch.optim.") and case.settings.get("optimizer.class") == [owner.rpartition(".")[2]]:
        return f"optimizer.{argument}"
    return f"env.{name}"


def _needs_others(case: Case, proposal: Proposal) -> bool:
    """Of what answers `UNDIVIDED` the ranks at hand settle what the replay can make on their own timeline, with the
    other ranks assumed and said; and what is bounded for every possible cause."""
    if proposal.finding["code"] != UNDIVIDED or (proposal.record.reaches and not proposal.changes):
        return False
    return isinstance(case.estimate(proposal.changes), Refused)


def _sort_out(found: _Found, proposals: Sequence[Proposal], tries: Tries, report: Diagnosis) -> None:
    """The values of one knob: the one to take, or why none is."""
    steps = [(proposal, tries.step(proposal)) for proposal in proposals]
    known = [(proposal, step) for proposal, step in steps if not isinstance(step, Refused)]
    found.candidates += [p for p, _ in steps if p.possible_after and p.changes]
    if not known:
        found.refused += [(p, step.why) for p, step in steps[:1] if isinstance(step, Refused)]
        return
    best, measured = min(step for _, step in known), report["step_time"]
    near = best + TIE_FRAC * (measured["median_ns"] if measured else best)
    close = [proposal for proposal, step in known if step <= near]
    others = sorted((one for one in known if one[0] not in close), key=lambda one: one[1])
    ordered = [*close, *(proposal for proposal, _ in others)]
    perhaps: list[tuple[Proposal, Predicted]] = []
    unclear: list[tuple[Proposal, str]] = []
    step_of = {id(proposal): step for proposal, step in known}
    for proposal in ordered:
        if tries.hopeless(proposal, step_of[id(proposal)]):
            break  # as those behind it, which gain less
        outcome = tries.outcome(proposal)
        if isinstance(outcome, Refused):  # its range says nothing
            unclear.append((proposal, outcome.why))
            continue
        outcome = explained(report, proposal.finding, outcome)
        if not proposal.gains_time or is_gain(outcome):
            found.kept.append((proposal, _careful(outcome)))
            found.candidates += [proposal] if proposal.changes else []
            return
        if outcome.after > outcome.before * (1 - MIN_GAIN_FRAC):
            break
        perhaps += [(proposal, outcome)] if may_gain(outcome) else []
    if perhaps:  # part of a plan that is certain to gain as a whole
        proposal, outcome = perhaps[0]
        outcome = replace(outcome, unshown=outcome.unshown or bool(proposal.if_unused))  # what values are needed for
        found.kept.append((proposal, _careful(outcome)))
        found.candidates += [proposal] if proposal.changes else []
    elif unclear:
        found.refused.append(unclear[0])
    else:
        found.candidates += ordered[:1] if ordered[0].changes else []
        found.without_gain.append((ordered[0], step_of[id(ordered[0])]))


def _careful(outcome: Predicted) -> Predicted:
    """Where the trace does not show what a gain hangs on: the range as it is, the promise careful, and what is expected
    beside it."""
    certain = max(outcome.before - outcome.high, 0)
    least = outcome.before - int(UNSHOWN_TIMES * certain + UNSHOWN_FRAC * outcome.before)
    if not outcome.unshown or outcome.after >= least:
        return outcome
    told = f"{units.duration(outcome.after)} is expected, but what that hangs on is not in the trace: {outcome.basis}"
    return replace(outcome, after=least, basis=told)


def _rank(one: tuple[Proposal, Predicted]) -> tuple[bool, int]:
    """Those that are certain to gain first, by the gain that is certain: an estimate that rests on assumptions has a
    wide range, and comes behind one that gains a little less for sure."""
    proposal, predicted = one
    return proposal.gains_time and not is_gain(predicted), predicted.high


def _once(kept: Iterable[tuple[Proposal, Outcome]]) -> list[tuple[Proposal, Outcome]]:
    """Each setting once: two findings may lead to the same one."""
    seen: dict[tuple[str, str, str], tuple[Proposal, Outcome]] = {}
    for one in kept:
        seen.setdefault((one[0].setting["name"], one[0].setting["value"], one[0].path), one)
    return list(seen.values())


def _of_the_reason(
    one: tuple[Proposal, Predicted], kept: Sequence[tuple[Proposal, Predicted]], trouble: str
) -> tuple[Proposal, Predicted]:
    """The same change as it was proposed for what makes the trouble (too few micro-batches, a slow stage), where it was
    proposed for the trouble (the bubble) and for that; else for the trouble, where it was for others too."""
    if one[0].finding["code"] not in BY_CODE:
        return one
    same = [other for other in kept if other[0].setting == one[0].setting and other[0].changes == one[0].changes]
    reason = next((other for other in same if other[0].finding["code"] not in BY_CODE), None)
    return reason or next((other for other in same if other[0].finding["code"] == trouble), one)


def _undominated(
    kept: Sequence[tuple[Proposal, Predicted]], tries: Tries, trouble: str
) -> list[tuple[Proposal, Predicted]]:
    """Without those that lead no further than another one for the same finding, alone or together with it, than a
    part of their own changes, or, beside the trouble, than what mends on all ranks what they mend on one; of what
    changes the training than any that does not."""
    left: list[tuple[Proposal, Predicted]] = []
    plain = [one for one in kept if not one[0].record.alters_training]
    for proposal, outcome in kept:
        near = outcome.after + TIE_FRAC * outcome.before
        of_cause = proposal.record.of_cause if proposal.finding["code"] != trouble else None
        better = [
            other
            for other, predicted in ([*left, *plain] if proposal.record.alters_training else left)
            if other.finding["code"] == proposal.finding["code"]
            and other.record.subject == proposal.record.subject
            and predicted.after <= near
            and (proposal.record.alters_training or not other.record.alters_training)
        ]
        better += [
            one
            for one, told in kept
            if told.after <= near and (set(one.changes) < set(proposal.changes) or one.finding["code"] == of_cause)
        ]
        if not any(_superfluous(proposal, other, outcome, tries) for other in better):
            left.append((proposal, outcome))
    return left


def _superfluous(proposal: Proposal, other: Proposal, outcome: Predicted, tries: Tries) -> bool:
    """Whether a proposal gains nothing more once another one is made."""
    if not (proposal.changes and other.changes):
        return False
    # Schedules, splits and numbers of micro-batches ask for different work and memory: the reader chooses.
    if all(isinstance(change, PipelineChange) for change in (*proposal.changes, *other.changes)):
        return False
    alone, both = tries.step(other), tries.together([other, proposal])
    if isinstance(alone, Refused) or isinstance(both, Refused):
        return False
    return both > alone - MIN_GAIN_FRAC * outcome.before


def _prediction(predicted: Predicted) -> Prediction:
    return Prediction(
        step_ns_before=predicted.before,
        step_ns_after=predicted.after,
        low_ns=predicted.low,
        high_ns=predicted.high,
        basis=predicted.basis,
        provenance=predicted.provenance,
    )


def _suggestion(proposal: Proposal, predicted: Predicted, report: Diagnosis, tries: Tries) -> SuggestionEntry:
    entry: SuggestionEntry = {
        "code": proposal.code,
        "finding": proposal.finding["code"],
        "action": proposal.says("action"),
        "why": proposal.says("why"),
        "setting": proposal.setting,
        "predicted": _prediction(predicted),
        "certain": not proposal.gains_time or is_gain(predicted),
        "risk": proposal.says("risk"),
        "verify": proposal.says("verify"),
        "facts": proposal.record.facts(),
    }
    if grounds := proposal.says("grounds"):
        entry["grounds"] = grounds
    if (more := beyond(report, proposal.finding, predicted)) is not None:
        entry["beyond"] = more
    if proposal.if_unused and isinstance(unused := tries.if_unused(proposal), Predicted):
        entry["if_unused"] = _prediction(unused)
    return entry


def _unpredicted(report: Diagnosis, at_best: Mapping[str, StepBound], proposal: Proposal, why: str) -> UnpredictedEntry:
    entry: UnpredictedEntry = {
        "code": proposal.code,
        "finding": proposal.finding["code"],
        "action": proposal.says("action"),
        "setting": proposal.setting,
        "why_not": why,
        "risk": proposal.says("risk"),
        "verify": proposal.says("verify"),
        "facts": proposal.record.facts(),
    }
    if grounds := proposal.says("grounds"):
        entry["grounds"] = grounds
    if (
        proposal.gains_time
        and proposal.record.bounded
        and (bound := _bound(report, proposal, at_best.get(proposal.finding["code"]))) is not None
    ):
        entry["bound"] = bound
    if proposal.saves is not None:
        entry["memory_bound"] = proposal.saves
    if proposal.path:
        entry["path"] = proposal.path
    return entry


def _bound(report: Diagnosis, proposal: Proposal, at_best: StepBound | None) -> StepBound | None:
    """What it can save at most: of transfers what the part of their bound gives that it reaches for."""
    counted = step_bound(report, proposal.finding, proposal.at_most)
    if at_best is None or (counted is not None and not proposal.record.reaches):
        return counted  # which may take away more than any part of it
    return of_part(at_best, proposal.record.reaches)


def _no_plan(kept: Sequence[Proposal], tries: Tries) -> str:
    """Why what gains can't be replayed together, where steps lack messages; else empty."""
    both = tries.together(kept[:2]) if len(kept) > 1 else None
    return both.why if isinstance(both, Refused) and both.code == UNMATCHED else ""


def _plan(plan: Plan) -> PlanEntry:
    predicted = _careful(plan.predicted)
    return {
        "predicted": _prediction(predicted),
        "steps": [
            {
                "code": one.code,
                "finding": one.finding["code"],
                "action": one.says("action"),
                "setting": one.setting,
                "step_ns_after": max(after, predicted.after),
                "risk": one.says("risk"),
                "verify": one.says("verify"),
                "facts": one.record.facts(),
            }
            for one, after in plan.steps
        ],
    }


def _nothing_gains(
    report: Diagnosis, found: _Found, plan: Plan | None, at_best: Mapping[str, StepBound]
) -> list[NothingGainsEntry]:
    """Causes that cost much, and what was tried against them in vain."""
    if report["verdict"]["abstained"]:
        return []
    refused = [one for one in found.refused if one[0].record.bounded]  # others are no answer of their own
    answered = {one.finding["code"] for one, _ in (*found.kept, *refused, *(plan.steps if plan else ()))}
    entries: list[NothingGainsEntry] = []
    for finding in report["findings"]:
        code = finding["code"]
        if code not in BY_CODE or code in answered or finding["share_frac"] <= COSTLY_FRAC:
            continue
        tried: list[TriedEntry] = [
            {"code": one.code, "action": one.says("action"), "setting": one.setting, "step_ns_after": after}
            for one, after in found.without_gain
            if one.finding["code"] == code
        ]
        if tried:
            entry: NothingGainsEntry = {"finding": code, "share_frac": finding["share_frac"], "tried": tried}
            if (bound := at_best.get(code) or step_bound(report, finding)) is not None:
                entry["bound"] = bound
            entries.append(entry)
    return entries


def _why(report: Diagnosis, suggestions: Sequence[SuggestionEntry], unpredicted: Sequence[UnpredictedEntry]) -> str:
    """Why there is no advice; empty where there is."""
    verdict = report["verdict"]
    if suggestions or any("memory_bound" in one for one in unpredicted):
        return ""
    if verdict["abstained"]:
        told = "no figure" if unpredicted else "no advice"
        return f"{told} without a verdict; the verdict says what to record"
    if is_startup(report):
        return "the recording is start-up, not steady state: record steps after the first ones"
    if verdict["bound_by"] == "compute":
        return "compute-bound: no class of stalls reaches a tenth of the time, and no change is certain to gain"
    if unpredicted:
        return "no change whose gain this trace can predict"
    return "no change known to gain at least 1 % of the step with certainty"
