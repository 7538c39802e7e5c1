"""A common clock for all ranks, and the matching of collectives across ranks."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gpuscope.analyzers.facts.matching import Matched
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.schema.document import Report
from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace


class RunClock:
    """The clocks and matched collectives of a run, these matched when first asked for."""

    def __init__(self, trace: Trace, report: Report) -> None:
        self._trace = trace
        self.error = report["trace"]["clock_error_ns"]
        """Bound on the error of times compared across ranks, ns; None if the clocks are not aligned."""
        self.told = report["trace"].get("clock")
        """As the report states it; None where no rank has a window."""

    @cached_property
    def _matched(self) -> Matched:
        return RunFacts(self._trace, ()).matched

    def common(self, rank: int, times: Times) -> Times:
        """Times of a rank's own clock on the run's clock, shape (n,); as `arrangement.Starts` places them."""
        offset = self.told["offset_ns"].get(str(rank), 0) if self.told else 0
        drift = self.told["drift_frac"].get(str(rank), 0.0) if self.told else 0.0
        if not self.told or not (offset or drift):
            return times
        since = times - (self.told["origin_ns"] + offset)
        return np.asarray(times - offset - np.rint(drift * since).astype(np.int64))

    def shown(self, rank: int, time: int) -> int:
        """One time of a rank's own clock on the run's clock."""
        return int(self.common(rank, np.array([time], np.int64))[0])

    def latest(self, table: Table) -> list[tuple[int, int]]:
        """Of each matched operation of several ranks, messages left out, the row that starts last and how much later
        than the first, ns; the latest first."""
        start = table["start"].copy()
        for rank in np.unique(table["rank"]).tolist():
            own = table["rank"] == rank
            start[own] = self.common(rank, start[own])
        found = self._matched.instances.select(~self._matched.instances.p2p)
        lasts = []
        for low, high in zip(found.bounds[:-1].tolist(), found.bounds[1:].tolist(), strict=True):
            rows = found.rows[low:high]
            row = int(rows[np.argmax(start[rows])])
            lasts.append((row, int(start[row] - start[rows].min())))
        return sorted(lasts, key=lambda one: -one[1])

    def same(self, row: int) -> Times:
        """The rows of `collectives` of the same operation on all its ranks; empty if not matched."""
        instance = int(self._matched.of_row[row])
        if instance == NA:
            return np.empty(0, np.int64)
        found = self._matched.instances
        return found.rows[found.bounds[instance] : found.bounds[instance + 1]]
