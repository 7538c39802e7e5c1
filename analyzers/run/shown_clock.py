"""The clock of a run as its report states it: one origin of all places, and how each rank's clock runs."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.schema.document import ClockEntry


def clock_entry(facts: RunFacts, compared: bool) -> ClockEntry | None:
    """None without windows. Where nothing ties the clocks, those of each host begin with its first window, unless they
    are `compared` all the same."""
    begun = {lane.rank: lane.window[0] for lane in sorted(facts.lanes, key=lambda lane: -lane.window[0])}
    if not begun:
        return None
    clocks, ranks = facts.clocks, facts.trace.ranks
    if clocks.error is None and not compared:
        first: dict[int, int] = {}
        for rank, start in begun.items():
            lead = clocks.clock.get(rank, rank)
            first[lead] = min(start, first.get(lead, start))
        origin = min(first.values())
        own = {rank: first.get(clocks.clock.get(rank, rank), origin) for rank in ranks}
    else:
        several = np.array(list(begun), np.int64)
        origin = int(clocks.common(several, np.array(list(begun.values()), np.int64)).min())
        of_all = np.array(ranks, np.int64)
        own = dict(zip(ranks, clocks.local(of_all, np.full(len(ranks), origin)).tolist(), strict=True))
    return {
        "origin_ns": origin,
        "offset_ns": {str(rank): start - origin for rank, start in own.items() if start != origin},
        "drift_frac": {str(rank): drift for rank, drift in clocks.drift.items() if drift},
    }
