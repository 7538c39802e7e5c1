"""What can be gained at most of transfers that are not hidden, in a line."""

from __future__ import annotations

from gpuscope.report.view import main_finding
from gpuscope.schema.document import Report, StepBound
from gpuscope.words import units

WORTH_FRAC = 0.01
"""Of the step: parts that would save less are left out."""
SAME_FRAC = 0.01
"""Of the step: parts that lead as far are told together."""
_PARTS = (
    ("hidden_ns", "if hidden"),
    ("double_bandwidth_ns", "at twice the bandwidth"),
    ("half_bytes_ns", "with half the bytes"),
    ("no_fixed_cost_ns", "without fixed costs"),
)


def at_best(report: Report) -> str:
    """`at best: 11.70 → 8.200 ms if hidden, 9.900 ms at twice the bandwidth`; empty where something else is wrong."""
    main = main_finding.main_finding(report)
    bounds = {one["finding"]: one["bound"] for one in report["advice"].get("at_best", [])}
    return "" if main is None or main["code"] not in bounds else in_words(bounds[main["code"]])


def in_words(bound: StepBound) -> str:
    """The same of any bound; empty where none of its parts saves what is worth telling."""
    before, told = bound["step_ns_before"], list[tuple[int, list[str]]]()
    for key, text in _PARTS:
        after = bound.get("parts", {}).get(key)
        if not isinstance(after, int) or before - after < WORTH_FRAC * before:
            continue
        same = next((one for one in told[1:] if abs(one[0] - after) <= SAME_FRAC * before), None)
        if same is None:
            told.append((after, [text]))
        else:
            same[1].append(text)
    if not told:
        return ""
    (first, own), *others = told
    parts = [f"{units.span(before, first, ' → ')} {' or '.join(own)}"]
    parts += [f"{units.duration(after)} {' or '.join(words)}" for after, words in others]
    return f"at best: {', '.join(parts)}"
