"""From attributed time to findings: one per cause that costs at least one percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuscope.analyzers.frame.analyzer import Attributed, LaneKey
from gpuscope.analyzers.frame.causes import CLASS_OF, UNATTRIBUTED, UNTOLD_COMMUNICATION
from gpuscope.report.schema.document import Evidence, FindingEntry, StragglerEntry
from gpuscope.report.view import units
from gpuscope.report.view.straggler_sentences import culprits, whose

MIN_SHARE = 0.01
Severity = Literal["high", "medium", "low"]
_SEVERITY: tuple[tuple[float, Severity], ...] = ((0.10, "high"), (0.03, "medium"), (0.0, "low"))

MESSAGES = {
    "input": "The device waits for the data loader",
    "sync": "A blocking call lets the launch queue run dry; the device idles until the next launch",
    "launch": "The host launches more slowly than the device finishes: its own code sets the pace",
    "gc": "Python's garbage collector runs on the launching thread while the device idles",
    "host_other": "The launching thread does other work (checkpoint, logging, files, locks) while the device idles",
    "straggler": "Collectives wait for the last rank to arrive",
    "latency": "Exposed messages are so small that their fixed cost dominates",
    "bandwidth": "Exposed transfers are limited by bytes over the link",
    "pipeline_bubble": "A pipeline stage waits for its neighbour",
    "copy": "Copies between host and device are not hidden behind compute",
    "paging": "Unified-memory pages migrate while nothing else runs",
    "allocator": "The device idles while the host allocates or frees memory",
    UNATTRIBUTED: "The device idles and the trace holds no host events that could explain it",
    UNTOLD_COMMUNICATION: "Communication is exposed, and the trace can't tell waiting from transferring",
}

NOUNS = {"copy": "copies and memsets", "paging": "migrations"}
"""What the operations behind a cause are called."""

CODES = {UNTOLD_COMMUNICATION: "exposed_communication"}
"""Code of a finding where it is not the cause's own name."""


@dataclass(frozen=True)
class Run:
    """What findings are measured against: window (ns) and steps of each lane, and who others waited for."""

    windows: Mapping[LaneKey, int]
    """Judged time of every lane, ns."""
    steps: Mapping[LaneKey, int]
    """Judged steps of every lane."""
    stragglers: Sequence[StragglerEntry]
    could_tell: bool = True
    """Whether there were enough collectives to tell a rank that always comes last."""
    clock_error: int | None = None


def findings(causes: Mapping[LaneKey, Mapping[str, Attributed]], run: Run) -> list[FindingEntry]:
    """The findings over all lanes, the costliest first. `cost_ns_per_step` is the mean over lanes of the
    time lost per step (per window where there are no steps)."""
    found: list[FindingEntry] = []
    for cause in (*CLASS_OF, UNATTRIBUTED, UNTOLD_COMMUNICATION):
        own = {key: per[cause] for key, per in causes.items() if cause in per}
        share = sum(attributed.total for attributed in own.values()) / max(sum(run.windows.values()), 1)
        if share >= MIN_SHARE:
            found.append(_finding(cause, own, share, run))
    return sorted(found, key=lambda finding: -finding["share_frac"])


def _finding(cause: str, own: Mapping[LaneKey, Attributed], share: float, run: Run) -> FindingEntry:
    per_step = sum(attributed.total / max(run.steps[key], 1) for key, attributed in own.items()) / len(run.windows)
    ranks = sorted({key[0] for key, attributed in own.items() if attributed.total >= MIN_SHARE * run.windows[key]})
    message = f"{MESSAGES[cause]}: {units.share(share)} of the time"
    if cause == "straggler" and run.stragglers:
        # Whose fault it is, not who suffers: `causes` tells that.
        ranks = sorted(entry["rank"] for entry in culprits(run.stragglers))
        message += f"; {whose(run.stragglers, run.could_tell, run.clock_error)}"
    if operations := sum(attributed.operations for attributed in own.values()):
        busy = units.duration(sum(attributed.busy for attributed in own.values()))
        message += f"; {operations:,} {NOUNS[cause]} took {busy} in all, hidden or not"
    return {
        "code": CODES.get(cause, cause),
        "severity": severity(share),
        "message": message,
        "ranks": ranks,
        "cost_ns_per_step": round(per_step),
        "cost_ns": sum(attributed.total for attributed in own.values()),
        "share_frac": share,
        "evidence": _strongest([attributed.evidence for attributed in own.values()]),
    }


def severity(share: float) -> Severity:
    """Of a finding that takes this share of the time."""
    return next(name for limit, name in _SEVERITY if share >= limit)


def _strongest(evidence: Sequence[Sequence[Evidence]], count: int = 5) -> list[Evidence]:
    return sorted((item for items in evidence for item in items), key=lambda item: -item["dur_ns"])[:count]
