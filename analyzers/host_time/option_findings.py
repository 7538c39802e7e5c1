"""What the findings on options of DDP and FSDP have in common: ranges by name, and what an option costs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE
from gpuscope.analyzers.base.evidence import shown_by
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.host_time.judged_windows import Judged
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import Finding, made
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.intervals import Spans, intersect, union
from gpuscope.trace.trace import Trace


def ranges(trace: Trace, rank: int, name: str) -> Times:
    """Rows of a rank's host events of that name, in order of start."""
    host = trace["host_events"]
    rows = np.flatnonzero((host["rank"] == rank) & (host["name"] == trace.names.find(name)))
    return np.asarray(rows[np.argsort(host["start"][rows], kind="stable")])


def covered(table: Table, rows: Times) -> Spans:
    """When any of these rows of a table lasted."""
    return union(table["start"][rows], table["end"][rows])


def finding_of(
    words: Callable[[float], Finding], view: LaneView, steps: Judged, lost: Spans | int, shown: list[Evidence]
) -> list[FindingEntry]:
    """The finding on an option that costs `lost`, of which what lies in the judged steps counts; none below the least
    share. `words` makes its record from the share."""
    judged = union(steps.start, steps.end)
    cost = lost if isinstance(lost, int) else intersect(lost, judged).total
    whole = int((steps.end - steps.start).sum())
    if cost < MIN_SHARE * whole:
        return []
    share = cost / whole
    return [
        made(
            words(share), ranks=[view.lane.rank], share=share, cost_ns=cost, mean_ns=cost // len(steps), evidence=shown
        )
    ]


def shown(trace: Trace, of: str, rows: Times, note: str) -> list[Evidence]:
    """The first of these rows of a table as evidence."""
    return [shown_by(trace, of, row, note) for row in rows[:EVIDENCE].tolist()]
