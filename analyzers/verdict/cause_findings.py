"""From attributed time to findings: one per cause that costs at least one percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpuscope.analyzers.base.analyzer import EVIDENCE, Attributed, LaneKey
from gpuscope.catalogue.cause import UNATTRIBUTED, Cause, FindingFacts
from gpuscope.catalogue.finding import severity_of
from gpuscope.catalogue.suggestion import CAUSES
from gpuscope.schema.document import FindingEntry, StragglerEntry
from gpuscope.schema.nccl_sections import GapEntry
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

# What is recorded in idle time that has no cause: the reason for having no verdict must be true of the trace.

MOST = 0.5
"""Share of the longest gaps without a cause that a call must cover to be named."""


@dataclass(frozen=True)
class Unexplained:
    """The host event that covers most of the longest gaps without a cause, where one does, and how much of them, ns."""

    host_recorded: bool = False
    call: str | None = None
    covered: int = 0
    stacks: bool = False
    """Whether Python stacks are recorded."""


def unexplained(gaps: list[GapEntry], stacks: bool = False) -> Unexplained:
    """What is known of the gaps without a cause among the longest."""
    own = [gap for gap in gaps if gap["cause"] == UNATTRIBUTED]
    covering: Counter[str] = Counter()
    for gap in own:
        if gap["host"] is not None:
            covering[gap["host"]] += gap.get("host_ns", 0)
    recorded = any("host_ns" in gap for gap in own)
    for call, covered in covering.most_common(1):
        if covered >= MOST * sum(gap["dur_ns"] for gap in own):
            return Unexplained(recorded, call, covered, stacks)
    return Unexplained(recorded, stacks=stacks)


MIN_SHARE = 0.01


@dataclass(frozen=True)
class Run:
    """What findings are measured against: window (ns) and steps of each lane, and who others waited for."""

    windows: Mapping[LaneKey, int]
    """Judged time of every lane, ns."""
    steps: Mapping[LaneKey, int]
    """Judged steps of every lane."""
    stragglers: Sequence[StragglerEntry]
    testable: bool = True
    """Whether there were enough collectives to test for a rank that always comes last."""
    clock_error: int | None = None


def findings(causes: Mapping[LaneKey, Mapping[str, Attributed]], run: Run) -> list[FindingEntry]:
    """The findings over all lanes, the costliest first. `cost_ns_per_step` is the mean over lanes of the
    time lost per step (per window where there are no steps)."""
    found: list[FindingEntry] = []
    for cause in CAUSES:
        own = {key: per[cause.code] for key, per in causes.items() if cause.code in per}
        share = sum(attributed.total for attributed in own.values()) / max(sum(run.windows.values()), 1)
        if share >= MIN_SHARE:
            found.append(_finding(cause, own, share, run))
    return sorted(found, key=lambda finding: -finding["share_frac"])


def _finding(cause: Cause, own: Mapping[LaneKey, Attributed], share: float, run: Run) -> FindingEntry:
    per_step = sum(attributed.total / max(run.steps[key], 1) for key, attributed in own.items()) / len(run.windows)
    losing = sorted({key[0] for key, attributed in own.items() if attributed.total >= MIN_SHARE * run.windows[key]})
    facts = FindingFacts(
        share_frac=share,
        operations=sum(attributed.operations for attributed in own.values()),
        busy_ns=sum(attributed.busy for attributed in own.values()),
        stragglers=run.stragglers,
        testable=run.testable,
        clock_error_ns=run.clock_error,
        on_cpu=all(device == NA for _, device in run.windows),
    )
    evidence = [item for attributed in own.values() for item in attributed.evidence]
    return {
        "code": cause.finding_code,
        "severity": severity_of(share),
        "message": cause.text(facts),
        "facts": {"operations": facts.operations, "busy_ns": facts.busy_ns, "on_cpu": facts.on_cpu},
        "ranks": (cause.ranks(facts) if cause.ranks else []) or losing,
        "cost_ns_per_step": round(per_step),
        "cost_ns": sum(attributed.total for attributed in own.values()),
        "share_frac": share,
        "evidence": sorted(evidence, key=lambda item: -item["dur_ns"])[:EVIDENCE],
    }
