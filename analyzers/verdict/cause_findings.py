"""From attributed time to findings: one per cause that costs at least one percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.analyzers.base.analyzer import EVIDENCE, Attributed, LaneKey
from gpuscope.catalogue.cause import Cause, FindingFacts
from gpuscope.catalogue.cause_table import CAUSES
from gpuscope.catalogue.finding import severity_of
from gpuscope.schema.document import FindingEntry, StragglerEntry
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

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
