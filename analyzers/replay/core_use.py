"""What training leaves of a host's cores to processes beside it."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.facts.counted_by_step.core_waits import threads_and_cores
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.facts.setup import cores_counted
from gpuscope.analyzers.replay.rewrite import CoreUse
from gpuscope.trace.schema import NA


def core_use(facts: RunFacts) -> dict[int, CoreUse]:
    """By rank; empty where nothing tells how many cores there are. On a GPU training is a thread on the host."""
    cores = cores_counted(facts.trace)
    if cores is None:
        return {}
    found = {}
    for lane in facts.lanes:
        counted = facts.core_times.get(lane.rank, {})
        asleep = [
            step.end - step.start - own.ran - own.waited
            for step in lane.steps
            if (own := counted.get(step.step)) is not None and own.ran is not None and facts.steady.judged(step.step)
        ]
        threads = threads_and_cores(facts.trace, lane.rank)[0] if lane.device == NA else 0
        found[lane.rank] = CoreUse(cores, max(threads, 1), max(float(np.mean(asleep)), 0.0) if asleep else None)
    return found
