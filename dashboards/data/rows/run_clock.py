"""A common clock for all ranks, and the matching of collectives across ranks."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace


class RunClock:
    """The clocks and matched collectives of a run; computed once, then read-only."""

    def __init__(self, trace: Trace) -> None:
        facts = RunFacts(trace, ())
        self._matched, self._clocks = facts.matched, facts.clocks

    @property
    def error(self) -> int | None:
        """Bound on the error of times compared across ranks, ns; None if the clocks are not aligned."""
        return self._clocks.error

    def common(self, rank: int, times: Times) -> Times:
        """Times of a rank's own clock on the run's clock, shape (n,)."""
        if not self._clocks.offset.get(rank) and not self._clocks.drift.get(rank):
            return times
        return self._clocks.common(np.full(len(times), rank), times)

    def shown(self, rank: int, time: int) -> int:
        """One time of a rank's own clock on the run's clock."""
        return int(self.common(rank, np.array([time], np.int64))[0])

    def same(self, row: int) -> Times:
        """The rows of `collectives` of the same operation on all its ranks; empty if not matched."""
        instance = int(self._matched.of_row[row])
        if instance == NA:
            return np.empty(0, np.int64)
        found = self._matched.instances
        return found.rows[found.bounds[instance] : found.bounds[instance + 1]]
