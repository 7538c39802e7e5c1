"""Exposed memory time: unified-memory paging apart from copies and memsets.

Allocator time is idle in the breakdown and memory by class; it is found with the other idle time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.base.analyzer import Attributed, FileAnalyzer, Result, attribute, longest, only_present
from gpuscope.analyzers.base.evidence import most_of, shown_by
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.schema.document import Evidence
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import Spans, clip, intersect, subtract, union
from gpuscope.trace.schema import Kind
from gpuscope.trace.trace import Trace


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """Split each lane's exposed memory time into `copy` and `paging`."""
    result = Result(ANALYZER.name)
    device = trace["device_events"]
    migrating = trace.names.matching(lambda kind: kind.startswith("migration"))
    for view in lanes:
        memory = view.rows[device["kind"][view.rows] == Kind.MEMORY]
        known = device.known("copy_kind")[memory]
        migration = known & migrating[np.where(known, device["copy_kind"][memory], 0)] if len(memory) else known
        copies = memory[~migration]
        exposed = view.parts.exposed_memory
        copying = intersect(exposed, union(device["start"][copies], device["end"][copies]))
        paging = subtract(exposed, copying)
        result.causes[view.key] = only_present(
            {
                "copy": _attributed(trace, view, copies, copying),
                "paging": _attributed(trace, view, memory[migration], paging),
            }
        )
    return result


def _attributed(trace: Trace, view: LaneView, rows: Times, exposed: Spans) -> Attributed:
    device = trace["device_events"]
    found = attribute(exposed, view, _evidence(trace, rows, exposed))
    busy = clip(union(device["start"][rows], device["end"][rows]), *view.window)
    return replace(found, operations=len(rows), busy=busy.total)


def _evidence(trace: Trace, rows: Times, spans: Spans) -> list[Evidence]:
    device, names = trace["device_events"], trace.names
    found: list[Evidence] = []
    for index in longest(spans).tolist():
        start, end = int(spans.start[index]), int(spans.end[index])
        at = rows[(device["start"][rows] < end) & (device["end"][rows] > start)]
        row = int(at[most_of(device["start"][at], device["end"][at], (start, end))])
        kind, size = names[int(device["copy_kind"][row])], int(device["bytes"][row])
        note = f"{kind}, {size} bytes" if size >= 0 else kind
        found.append(shown_by(trace, "device_events", row, note, (start, end)))
    return found


ANALYZER = FileAnalyzer("memory", run, (DEVICE_EVENTS,), causes=("copy", "paging"))
