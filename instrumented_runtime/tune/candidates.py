"""What is worth trying: the report's advice, the most certain gain first, as far as it can be followed from outside.

Another source of candidates is another function of this kind, given to the session (`tuning.Session.sources`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.schema.tune_document import ByHand
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
