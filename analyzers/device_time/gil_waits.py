"""What waiting for Python's GIL costs the launching thread while its device is idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result, longest
from gpuscope.analyzers.base.evidence import most_of, shown_by
from gpuscope.analyzers.base.lanes import LaneView, count_steps
from gpuscope.analyzers.base.needs import DEVICE_EVENTS, Need
from gpuscope.analyzers.device_time.idleness.launching_threads import most_launching
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.device import WaitsForGil
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Times, rows_of_rank
from gpuscope.trace.intervals import Spans, intersect, union
from gpuscope.trace.naming import kinds
from gpuscope.trace.trace import Trace


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `waits_for_gil` per lane whose device is idle for 1 % of the time or more meanwhile."""
    result = Result(ANALYZER.name)
    waits = trace.names.find(kinds.WAITS_FOR_GIL)
    for view in lanes:
        main = most_launching(trace, view)
        rows = _waits(trace, view, waits, main)
        waited = union(trace["host_events"]["start"][rows], trace["host_events"]["end"][rows])
        spent = intersect(intersect(view.parts.idle, waited), view.judged_spans)
        if spent.total >= max(MIN_SHARE * view.breakdown.window, 1):
            result.findings.append(_finding(trace, view, rows, spent, _others(trace, view, waits, main)))
    return result


def _waits(trace: Trace, view: LaneView, name: int, thread: int) -> Times:
    """A thread's waits for the GIL: rows of host_events."""
    host, own = trace["host_events"], slice(*rows_of_rank(trace["host_events"], view.lane.rank))
    return np.asarray(own.start + np.flatnonzero((host["name"][own] == name) & (host["thread"][own] == thread)))


def _others(trace: Trace, view: LaneView, name: int, thread: int) -> list[str]:
    """Names of the other threads of the rank that waited for it, the one that waited most often first."""
    host, own = trace["host_events"], slice(*rows_of_rank(trace["host_events"], view.lane.rank))
    threads = host["thread"][own][host["name"][own] == name]
    found, counts = np.unique(threads[threads != thread], return_counts=True)
    ordered = found[np.argsort(-counts, kind="stable")].tolist()
    codes = [int(trace["threads"]["name"][one]) for one in ordered]
    return list(dict.fromkeys(trace.names[code] for code in codes if code != NO_NAME))


def _finding(trace: Trace, view: LaneView, rows: Times, spent: Spans, others: list[str]) -> FindingEntry:
    host = trace["host_events"]
    spans = [(int(spent.start[i]), int(spent.end[i])) for i in longest(spent).tolist()]
    share = spent.total / view.breakdown.window
    return made(
        WaitsForGil(share, others),
        ranks=[view.lane.rank],
        share=share,
        cost_ns=spent.total,
        mean_ns=round(spent.total / max(count_steps(view.steps), 1)),
        evidence=[
            shown_by(trace, "host_events", int(rows[most_of(host["start"][rows], host["end"][rows], span)]), span=span)
            for span in spans
        ],
    )


def _recorded(trace: Trace) -> bool:
    return trace.names.find(kinds.WAITS_FOR_GIL) != NO_NAME


ANALYZER = FileAnalyzer(
    "gil",
    run,
    (DEVICE_EVENTS, Need("waits for the GIL", "nsys -t osrt,python-gil records them", _recorded, optional=True)),
)
