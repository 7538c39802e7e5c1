"""What a rule is, and how its proposals become suggestions.

A rule is a module of this package with a `RULE`. It reads a report's findings and facts, never tables, and
proposes exact settings; the replay alone says what each would gain on the user's own trace. Proposals of
one code are values of one knob: the first whose predicted time is within `TIE_FRAC` of the best is taken,
so rules list the least intrusive value first. Gains are never added up: findings overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gpuscope.analyzers.frame.changes import Change, Predicted, Refused
from gpuscope.plugins import listed
from gpuscope.report.schema.document import (
    AdviceEntry,
    Diagnosis,
    FindingEntry,
    Setting,
    SuggestionEntry,
    UnpredictedEntry,
)
from gpuscope.report.schema.host_calls_section import HostCallsEntry
from gpuscope.report.schema.replay_section import Prediction
from gpuscope.report.view.causes import BY_CODE
from gpuscope.trace.naming.programs import Program

Predict = Callable[[Sequence[Change]], Predicted | Refused]
"""What a replay of the run says of changes made together."""

MIN_GAIN_FRAC = 0.01
"""A gain below one percent of the step is within what two runs differ by: not worth a change."""
TIE_FRAC = 0.005
"""Half of that: values of one knob that come closer than this are equally good."""


@dataclass(frozen=True)
class Proposal:
    """One exact setting, and the changes of the replay that it amounts to."""

    code: str
    action: str
    why: str
    setting: Setting
    risk: str
    verify: str
    changes: tuple[Change, ...] = ()
    outcome: Predicted | Refused | None = None
    """Where the rule knows the outcome from elsewhere (a replay of the allocator), not from `changes`."""
    gains_time: bool = True
    """False for what saves something else than time (memory): kept though the step takes as long."""
    subject: str = ""
    """What the knob is set for, where there are several (`rank 3`): each has its own suggestion."""


@dataclass(frozen=True)
class Case:
    """What rules see of a run."""

    report: Diagnosis
    predict: Predict

    @property
    def program(self) -> Program | None:
        """The kind of program; None where the files hold no events that could tell."""
        return self.report["trace"]["program"]

    @property
    def native(self) -> bool:
        """Whether the program calls CUDA or HIP itself: nothing of PyTorch or JAX can be set in it."""
        return self.program == "native"

    @property
    def host_calls(self) -> list[HostCallsEntry]:
        """What the launching threads of each rank call per step."""
        return self.report.get("host_calls", [])

    @property
    def rocm(self) -> bool:
        """Whether the devices are AMD's."""
        return any(entry["runtime"] == "hip" for entry in self.host_calls)

    @property
    def steady_steps(self) -> int:
        """How many step numbers are steady on some rank."""
        return len({step["step"] for step in self.report["steps"] if step["role"] == "steady"})

    @property
    def frameworks(self) -> list[str]:
        """Frameworks that left a mark in the trace, the outermost first."""
        return self.report["trace"]["frameworks"]

    def finding(self, code: str) -> FindingEntry | None:
        """The costliest finding of that code."""
        return next((finding for finding in self.report["findings"] if finding["code"] == code), None)


@dataclass(frozen=True)
class Knob:
    """One thing that a rule may propose to set; a row of docs/advice.md."""

    code: str
    """Code of its suggestions."""
    answers: tuple[str, ...]
    """Codes of the findings that it answers."""
    setting: str
    """Markdown: the settings, by the frameworks' names for them."""


@dataclass(frozen=True)
class Rule:
    """A topic of advice: what it may set, and what it proposes for one finding."""

    name: str
    knobs: tuple[Knob, ...]
    propose: Callable[[Case, FindingEntry], Iterable[Proposal]]
    programs: tuple[Program, ...] = ("pytorch",)
    """Kinds of programs that have its settings. Where the kind is unknown, every rule applies."""

    @property
    def answers(self) -> frozenset[str]:
        """Codes of the findings that it answers."""
        return frozenset(code for knob in self.knobs for code in knob.answers)


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of this package, in order of module name."""
    return tuple(listed("gpuscope.analyzers.advice.rules", "RULE"))


def advise(
    report: Diagnosis, predict: Predict, among: Sequence[Rule] | None = None
) -> tuple[list[SuggestionEntry], AdviceEntry]:
    """The suggestions for a report, the largest gain first, and why there are no (more) of them."""
    case = Case(report, predict)
    suggestions: list[SuggestionEntry] = []
    unpredicted: list[UnpredictedEntry] = []
    for finding, proposals in _proposals(case, rules() if among is None else among):
        kept, refused = _best(proposals, predict)
        suggestions += [_suggestion(proposal, finding, predicted) for proposal, predicted in kept]
        unpredicted += [_unpredicted(proposal, finding, why) for proposal, why in refused]
    suggestions = _once(sorted(suggestions, key=lambda one: one["predicted"]["step_ns_after"]))
    taken = {one["code"] for one in suggestions}
    # In a run bound by compute a stall is worth a change only where it is certain to gain.
    stalls = BY_CODE if report["verdict"]["bound_by"] == "compute" else ()
    unpredicted = [one for one in unpredicted if one["code"] not in taken and one["finding"] not in stalls]
    return suggestions, {"why": _why(report, suggestions, unpredicted), "unpredicted": unpredicted}


def worth_answering(report: Diagnosis, finding: FindingEntry) -> bool:
    """Whether a finding may lead to advice: a stall of at least 3 % (not of severity low) of a run that can be judged
    and is not start-up alone, which no step repeats."""
    if finding["code"] not in BY_CODE:
        return True
    return not report["verdict"]["abstained"] and finding["severity"] != "low" and not is_startup(report)


def is_startup(report: Diagnosis) -> bool:
    """Whether the recording was found to be start-up, without steady steps."""
    return any(finding["code"] == "startup" and finding["share_frac"] > 0 for finding in report["findings"])


def _proposals(case: Case, among: Sequence[Rule]) -> Iterator[tuple[FindingEntry, list[Proposal]]]:
    """Per finding and knob: the values proposed for it."""
    for rule in (rule for rule in among if case.program is None or case.program in rule.programs):
        for finding in case.report["findings"]:
            if finding["code"] not in rule.answers or not worth_answering(case.report, finding):
                continue
            knobs: dict[tuple[str, str], list[Proposal]] = {}
            for proposal in rule.propose(case, finding):
                knobs.setdefault((proposal.code, proposal.subject), []).append(proposal)
            for proposals in knobs.values():
                yield finding, proposals


def _best(
    proposals: Sequence[Proposal], predict: Predict
) -> tuple[list[tuple[Proposal, Predicted]], list[tuple[Proposal, str]]]:
    """The value to take with its outcome, if any is worth it; the first one refused, if none could be predicted."""
    worth: list[tuple[Proposal, Predicted]] = []
    refused: list[tuple[Proposal, str]] = []
    for proposal in proposals:
        outcome = proposal.outcome or predict(proposal.changes)
        if isinstance(outcome, Refused):
            refused.append((proposal, outcome.why))
        elif not proposal.gains_time or is_gain(outcome):
            worth.append((proposal, outcome))
    if not worth:
        return [], refused[:1] if len(refused) == len(proposals) else []
    best = min(outcome.after for _, outcome in worth)
    return [next((p, o) for p, o in worth if o.after <= best + TIE_FRAC * o.before)], []


def not_below(outcome: Predicted | Refused, floor: float) -> Predicted | Refused:
    """An outcome whose step is no shorter than `floor`, ns, nor its lower bound."""
    if isinstance(outcome, Refused):
        return outcome
    least = round(floor)
    shift = max(least - outcome.after, 0)
    # What the prediction misses upwards it misses from the floor on too.
    return replace(outcome, after=outcome.after + shift, low=max(outcome.low, least), high=outcome.high + shift)


def is_gain(predicted: Predicted) -> bool:
    """Whether the step gets at least `MIN_GAIN_FRAC` shorter, and shorter for certain."""
    return predicted.after <= predicted.before * (1 - MIN_GAIN_FRAC) and predicted.high < predicted.before


def _suggestion(proposal: Proposal, finding: FindingEntry, predicted: Predicted) -> SuggestionEntry:
    return {
        "code": proposal.code, "finding": finding["code"], "action": proposal.action, "why": proposal.why,
        "setting": proposal.setting,
        "predicted": Prediction(
            step_ns_before=predicted.before, step_ns_after=predicted.after, low_ns=predicted.low,
            high_ns=predicted.high, basis=predicted.basis, provenance=predicted.provenance,
        ),
        "risk": proposal.risk, "verify": proposal.verify,
    }  # fmt: skip


def _unpredicted(proposal: Proposal, finding: FindingEntry, why: str) -> UnpredictedEntry:
    return {
        "code": proposal.code, "finding": finding["code"], "action": proposal.action, "setting": proposal.setting,
        "why_not": why,
    }  # fmt: skip


def _once(suggestions: Iterable[SuggestionEntry]) -> list[SuggestionEntry]:
    """Each setting once: two findings may lead to the same one."""
    seen: dict[tuple[str, str], SuggestionEntry] = {}
    for one in suggestions:
        seen.setdefault((one["setting"]["name"], one["setting"]["value"]), one)
    return list(seen.values())


def _why(report: Diagnosis, suggestions: Sequence[SuggestionEntry], unpredicted: Sequence[UnpredictedEntry]) -> str:
    """Why there is no advice; empty where there is."""
    verdict = report["verdict"]
    if suggestions:
        return ""
    if verdict["abstained"]:
        return "no advice without a verdict; the verdict says what to record"
    if is_startup(report):
        return "the recording is start-up, not steady state: record steps after the first ones"
    if verdict["bound_by"] == "compute":
        return "compute-bound: no class of stalls reaches a tenth of the time, and no change is certain to gain"
    if unpredicted:
        return "no change whose gain this trace can predict"
    return "no change known to gain at least 1 % of the step with certainty"
