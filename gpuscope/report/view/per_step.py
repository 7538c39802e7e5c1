"""What pages and sentences call «per step», in one place (docs/definitions.md, «Steps»)."""

from __future__ import annotations

from gpuscope.schema.document import FindingEntry


def per_step_ns(share_frac: float, step_ns: int | None) -> int | None:
    """A share of the time as a part of «the step», ns: shares that add up to one add up to the step, and none exceeds
    it, which means over steps of different lengths do beside a median. None without steps."""
    return None if step_ns is None else round(share_frac * step_ns)


def with_per_step(finding: FindingEntry, step_ns: int | None) -> FindingEntry:
    """A finding with what it costs per step; None of what no step repeats."""
    repeats = finding["cost_ns_per_step"] is not None
    return {**finding, "per_step_ns": per_step_ns(finding["share_frac"], step_ns) if repeats else None}
