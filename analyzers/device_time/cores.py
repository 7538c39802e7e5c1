"""Training threads that wait for a core: more threads want to run than their processes have cores."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.analyzers.base.analyzer import EVIDENCE, Result
from gpuscope.analyzers.base.lanes import StepWindow
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.facts.counted_by_step.core_waits import core_waits, threads_and_cores
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.device import WaitsForCore
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class Waited:
    """A step of a rank and the ns of it in which its training thread had no core."""

    rank: int
    step: StepWindow
    ns: int


def run(facts: RunFacts) -> Result:
    """A finding `waits_for_core` where training threads had no core for 1 % of their counted steps or more."""
    result = Result(ANALYZER.name)
    counted: list[Waited] = []
    for lane in facts.lanes:
        own = facts.core_times.get(lane.rank, {})
        counted += [Waited(lane.rank, step, own[step.step].waited) for step in lane.steps if step.step in own]
    if counted and _share(counted) >= MIN_SHARE:
        most = max((threads_and_cores(facts.trace, one.rank) for one in counted), default=(0, 0))
        result.findings.append(_finding(counted, *most))
    return result


def _share(counted: Sequence[Waited]) -> float:
    return sum(one.ns for one in counted) / sum(one.step.end - one.step.start for one in counted)


def _finding(counted: Sequence[Waited], threads: int, cores: int) -> FindingEntry:
    ranks = sorted({one.rank for one in counted})
    share = _share(counted)
    return made(
        WaitsForCore(share, threads, cores),
        ranks=[rank for rank in ranks if _share([one for one in counted if one.rank == rank]) >= MIN_SHARE],
        share=share,
        cost_ns=sum(one.ns for one in counted),
        mean_ns=round(sum(one.ns for one in counted) / len(counted)),
        evidence=[_evidence(one) for one in sorted(counted, key=lambda one: -one.ns)[:EVIDENCE]],
    )


def _evidence(one: Waited) -> Evidence:
    return {
        "rank": one.rank,
        "start_ns": one.step.start,
        "dur_ns": one.step.end - one.step.start,
        "name": f"step {one.step.step}",
        "note": f"{units.duration(one.ns)} without a core",
    }


def _counted(trace: Trace) -> bool:
    return any(core_waits(trace, rank) for rank in trace.ranks)


ANALYZER = RunAnalyzer(
    "cores",
    run,
    (Need("counts of waiting for a core", "gpuscope record counts it on Linux", _counted, optional=True),),
)
