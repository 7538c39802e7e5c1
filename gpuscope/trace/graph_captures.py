"""When host threads captured CUDA graphs: what they launch then is recorded into the graph and runs later."""

from __future__ import annotations

import numpy as np

from gpuscope import when_used
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Mask, Table, joined
from gpuscope.trace.intervals import union
from gpuscope.trace.schema import SCHEMAS, Category

CAPTURE = "CUDA graph capture"
"""Name of the range that stands for a capture."""
_BEGIN = when_used.pattern(r"(cu(da)?|hip)StreamBeginCapture")
_END = when_used.pattern(r"(cu(da)?|hip)StreamEndCapture")


def with_captures(host: Table, names: NamePool) -> Table:
    """The host events and a range from each call that begins a capture to the one of its thread that ends it."""
    beginning, ending = (
        names.matching(lambda name: _BEGIN.match(name) is not None),
        names.matching(lambda name: _END.match(name) is not None),
    )
    if not beginning.any():  # as in most recordings
        return host
    begins, ends = np.flatnonzero(beginning[host["name"]]), np.flatnonzero(ending[host["name"]])
    tables = [host]
    for thread in distinct_values(host["thread"][begins]).tolist():
        begin = begins[host["thread"][begins] == thread]
        end = np.sort(host["end"][ends[host["thread"][ends] == thread]])
        begin = begin[np.argsort(host["start"][begin], kind="stable")]
        place = np.searchsorted(end, host["start"][begin])
        kept = place < len(end)
        values = {
            "rank": host["rank"][begin[kept]],
            "start": host["start"][begin[kept]],
            "end": end[place[kept]],
            "thread": thread,
            "name": names.code(CAPTURE),
            "category": int(Category.ANNOTATION),
        }
        tables.append(Table.build(SCHEMAS["host_events"], int(kept.sum()), values))
    return joined(tables)


def while_capturing(host: Table, names: NamePool) -> Mask:
    """Which host events began while their thread captured, shape (host events,)."""
    found = np.zeros(len(host), np.bool_)
    captures = names.matching(lambda name: name == CAPTURE)
    if not captures.any():
        return found
    rows = np.flatnonzero(captures[host["name"]])
    for thread in distinct_values(host["thread"][rows]).tolist():
        own = rows[host["thread"][rows] == thread]
        spans = union(host["start"][own], host["end"][own])
        on_thread = np.flatnonzero(host["thread"] == thread)
        start = host["start"][on_thread]
        found[on_thread] = np.searchsorted(spans.start, start, "right") > np.searchsorted(spans.end, start, "right")
    return found
