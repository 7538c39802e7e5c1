"""Streams that carry both compute and communication: there the two can never overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result, longest
from gpuscope.analyzers.base.evidence import shown_by
from gpuscope.analyzers.base.lanes import LaneView, count_steps
from gpuscope.analyzers.base.needs import DEVICE_EVENTS, NO_SERVER
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.device import SharedStream
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import Spans, intersect, union
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `shared_stream` per lane whose exposed communication runs on a stream that also computes."""
    result = Result(ANALYZER.name)
    for view in lanes:
        rows = _sharing(trace, view.rows)
        device = trace["device_events"]
        exposed = intersect(view.parts.exposed_communication, union(device["start"][rows], device["end"][rows]))
        if exposed.total and exposed.total >= MIN_SHARE * view.breakdown.window:
            result.findings.append(_finding(trace, view, rows, exposed))
    return result


def _sharing(trace: Trace, rows: Times) -> Times:
    """Communication events of streams on which kernels compute as well."""
    device = trace["device_events"]
    if not (device["kind"] == Kind.COMMUNICATION).any():
        return rows[:0]
    rows = rows[(device.at("stream", rows) != NA) & (device["device"][rows] != NA)]
    kind, stream = device["kind"][rows], device.at("stream", rows)
    computing = distinct_values(stream[kind == Kind.COMPUTE])
    sharing: Times = rows[(kind == Kind.COMMUNICATION) & np.isin(stream, computing)]
    return sharing


def _finding(trace: Trace, view: LaneView, rows: Times, exposed: Spans) -> FindingEntry:
    device = trace["device_events"]
    share = exposed.total / view.breakdown.window
    return made(
        SharedStream(np.unique(device.at("stream", rows)).tolist(), share),
        ranks=[view.lane.rank],
        share=share,
        cost_ns=exposed.total,
        mean_ns=round(exposed.total / max(count_steps(view.steps), 1)),
        evidence=[_evidence(trace, rows, exposed, index) for index in longest(exposed).tolist()],
    )


def _evidence(trace: Trace, rows: Times, exposed: Spans, index: int) -> Evidence:
    device = trace["device_events"]
    start, end = int(exposed.start[index]), int(exposed.end[index])
    row = int(rows[np.searchsorted(device["start"][rows], start, "right") - 1])
    note = f"on stream {int(device['stream'][row])}, which also computes"
    return shown_by(trace, "device_events", row, note, (start, end))


ANALYZER = FileAnalyzer("streams", run, (DEVICE_EVENTS, NO_SERVER))
