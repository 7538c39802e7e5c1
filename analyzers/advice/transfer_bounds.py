"""What can be gained at most of transfers that are not hidden, by replay: no framework's marks are needed for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from gpuscope.analyzers.advice.prediction_cache import step_bound
from gpuscope.analyzers.what_if_changes import AtBest, BoundPart, Change, Refused
from gpuscope.catalogue.suggestion import UNDIVIDED
from gpuscope.schema.document import BoundParts, Diagnosis, StepBound

TRANSFERS = ("latency", "bandwidth", UNDIVIDED)
"""Findings of exposed transfers; in the last one waiting may be among them."""
LEAST_FRAC = 0.01
"""Of the step: findings that cost less are not worth a bound."""
BY_REPLAY = "by replay, if it could be had in full and nothing else changed"
OF_PARTS = {
    "no_fixed_cost": "without fixed costs",
    "half_bytes": "with half the bytes",
    "double_bandwidth": "at twice the bandwidth",
    "hidden": "hidden behind compute",
}


def transfer_bounds(report: Diagnosis, estimate: Callable[[Sequence[Change]], int | Refused]) -> dict[str, StepBound]:
    """By finding of exposed transfers the bound with its parts; nothing without a verdict."""
    exposed = [one for one in report["findings"] if one["code"] in TRANSFERS and one["share_frac"] >= LEAST_FRAC]
    if not exposed or report["verdict"]["abstained"] or not report["ranks"]:
        return {}
    by_part: dict[BoundPart, int | Refused] = {part: estimate((AtBest(part),)) for part in get_args(BoundPart)}
    bounds: dict[str, StepBound] = {}
    for finding in exposed:
        counted = step_bound(report, finding)
        if counted is None or finding["code"] in bounds:
            continue
        before = counted["step_ns_before"]
        values = {part: None if isinstance(own, Refused) else min(own, before) for part, own in by_part.items()}
        if values["hidden"] is None:
            values["hidden"] = counted["step_ns_low"]
        parts = BoundParts(
            no_fixed_cost_ns=values["no_fixed_cost"],
            half_bytes_ns=values["half_bytes"],
            double_bandwidth_ns=values["double_bandwidth"],
            hidden_ns=values["hidden"],
        )
        low = min(value for value in values.values() if value is not None)
        bounds[finding["code"]] = {"step_ns_before": before, "step_ns_low": low, "basis": BY_REPLAY, "parts": parts}
    return bounds


def of_part(bound: StepBound, reaches: Sequence[str]) -> StepBound:
    """The bound of a change that reaches for some of the parts alone."""
    parts = bound["parts"]
    known = [parts[key] for key in reaches if parts.get(key) is not None]  # type: ignore[literal-required]
    return {**bound, "step_ns_low": min(known)} if known else bound
