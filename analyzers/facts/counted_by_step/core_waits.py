"""How long each rank's training thread ran, and was ready to run without a core, as gpuscope's recorder counts it."""

from __future__ import annotations

from typing import NamedTuple

from gpuscope.analyzers.facts.counted_by_step.step_counts import recorded_number, recorded_steps
from gpuscope.trace.trace import Trace

KEY = "gpuscope_cores"


class CoreTimes(NamedTuple):
    """Of a step: ns on a core (None in older recordings), and ns ready to run without one."""

    ran: int | None
    waited: int


def core_times(trace: Trace, rank: int) -> dict[int, CoreTimes]:
    """A rank's times by step; empty where they are not recorded."""
    found = {}
    for step, row in recorded_steps(trace, rank, KEY).items():
        waited, ran = row.get("waited_ns"), row.get("ran_ns")
        if waited is not None and waited >= 0:
            found[step] = CoreTimes(ran if ran is not None and ran > 0 else None, waited)
    return found


def core_waits(trace: Trace, rank: int) -> dict[int, int]:
    """ns that a rank's training thread was runnable without a core, by step; empty where that is not recorded."""
    return {step: times.waited for step, times in core_times(trace, rank).items()}


def threads_and_cores(trace: Trace, rank: int) -> tuple[int, int]:
    """In how many threads a rank's operators run, and on how many cores its process may; 0 where not recorded."""
    return recorded_number(trace, rank, KEY, "threads") or 0, recorded_number(trace, rank, KEY, "cores") or 0
