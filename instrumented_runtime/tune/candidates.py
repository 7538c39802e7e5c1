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
    findings: frozenset[str] = frozenset()
    """Codes of those that it answers."""

    @property
    def order(self) -> tuple[int, float]:
        """By the gain that is certain; those without a figure by their bound, after the others."""
        if self.high is not None:
            return 0, self.high
        return 1, 1.0 if self.bound is None else self.bound


SURE = 0.95
"""Of the step: what a change leads to at most that is tried together with others before it was tried alone."""


def together(waiting: Sequence[Candidate]) -> Candidate | None:
    """The changes that are sure to gain much, each of a finding and of knobs that no other touches, as one; None of
    fewer than two."""
    chosen: list[Candidate] = []
    for one in waiting:
        apart = all(one.findings.isdisjoint(other.findings) and not _names(one) & _names(other) for other in chosen)
        if one.high is not None and one.high < SURE and one.findings and apart:
            chosen.append(one)
    return _joined(chosen) if len(chosen) > 1 else None


def _joined(members: Sequence[Candidate]) -> Candidate:
    """At best what each takes off the step is taken off it, at worst what each leaves of it is left of what the others
    leave; as expected in the middle."""
    low = max(1 - sum(1 - one.low for one in members if one.low is not None), 0.0)
    after = math.prod(one.after for one in members if one.after is not None)
    added = max(1 - sum(1 - one.after for one in members if one.after is not None), low)
    return Candidate(
        " + ".join(one.code for one in members), "; ".join(one.action for one in members),
        ", ".join(one.setting for one in members), tuple(change for one in members for change in one.changes),
        (after + added) / 2, low, math.prod(one.high for one in members if one.high is not None),
        findings=frozenset().union(*(one.findings for one in members)),
    )  # fmt: skip


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
        return Candidate(*named, *(predicted[key] / before for key in ("step_ns_after", "low_ns", "high_ns")))
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
    why = f"it may alter training: {options} tries it" if groups else BY_SCRIPT
    return {"code": entry["code"], "action": entry["action"], "setting": shown(entry["setting"]), "why": why}
