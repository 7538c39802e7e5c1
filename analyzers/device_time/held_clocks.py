"""Clocks of GPUs that something holds down, and what each GPU draws: from NVML's samples."""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.base.sections import POWER
from gpuscope.analyzers.facts.counted_by_step.gpu_clocks import HELD, KEY, GpuClocks
from gpuscope.analyzers.facts.counted_by_step.step_counts import recorded_steps
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.device import CLOCK_HOLDERS, ClocksHeld
from gpuscope.schema.compute_section import PowerEntry
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.trace import Trace


def run(facts: RunFacts) -> Result:
    """The section `power`, and a finding `clocks_held` per reason that holds clocks down in a tenth of the samples.

    Clocks that somebody has set are a choice, and no finding: a rank that is slow by them is told so where it is late.
    """
    result = Result(ANALYZER.name)
    clocks = facts.gpu_clocks
    if not clocks:
        return result
    step = facts.steady.step_ns
    result.sections[POWER] = [_entry(rank, own, step) for rank, own in sorted(clocks.items())]
    for holder in CLOCK_HOLDERS:
        held = {rank: own for rank, own in clocks.items() if own.held.get(holder, 0.0) >= HELD}
        if held and holder != "set_clocks":
            result.findings.append(_finding(holder, held))
    return result


def _entry(rank: int, own: GpuClocks, step: int | None) -> PowerEntry:
    joules = own.watts * step / 1e9 if own.watts is not None and step else None
    return {
        "rank": rank,
        "samples": own.samples,
        "sm_mhz": own.mhz,
        "power_w": own.watts,
        "joules_per_step": joules,
        "held_frac": dict(own.held),
    }


def _finding(holder: str, held: Mapping[int, GpuClocks]) -> FindingEntry:
    worst = max(held, key=lambda rank: held[rank].held[holder])
    own = held[worst]
    words = ClocksHeld(worst, sorted(held), holder, own.held[holder], own.mhz, own.watts)
    return made(words, ranks=held, cost_ns=None, mean_ns=None)


def _sampled(trace: Trace) -> bool:
    return any(recorded_steps(trace, rank, KEY) for rank in trace.ranks)


ANALYZER = RunAnalyzer(
    "held_clocks",
    run,
    (Need("samples of clocks and power", "record with --nvml-interval 100", _sampled, optional=True),),
    (POWER,),
)
