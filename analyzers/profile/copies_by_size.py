"""Copies, memsets and migrations by kind and size: how many, how long, at what bandwidth."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, entries_of_devices
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.analyzers.base.sections import COPIES
from gpuscope.analyzers.profile.recorded_ranks import of_lane
from gpuscope.schema.profile_sections import CopyEntry
from gpuscope.trace.columns.distinct import distinct_pairs
from gpuscope.trace.columns.grouped_durations import grouped
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace

BOUNDS = (0, 1 << 12, 1 << 16, 1 << 20, 1 << 24)
"""Sizes from which a class of copies begins, bytes: a page, what is cheap to stage, what fills a link, and large."""
_UNKNOWN = -1


def _of_lane(trace: Trace, view: LaneView) -> list[CopyEntry]:
    device = trace["device_events"]
    rows = of_lane(trace, view)
    rows = rows[device["kind"][rows] == Kind.MEMORY]
    if not len(rows):
        return []
    size = device["bytes"][rows]
    kind = np.where(device["copy_kind"][rows] == NO_NAME, device["name"][rows], device["copy_kind"][rows])
    size_class = np.where(size == NA, _UNKNOWN, np.searchsorted(BOUNDS, size, "right") - 1)
    groups, of_group = distinct_pairs(kind, size_class)
    stats = grouped(device["end"][rows] - device["start"][rows], of_group, len(groups))
    moved = np.zeros(len(groups), np.int64)
    np.add.at(moved, of_group, np.maximum(size, 0))
    entries: list[CopyEntry] = []
    for index in np.argsort(-stats.total, kind="stable").tolist():
        name, place = groups[index]
        known, spent, carried = place != _UNKNOWN, int(stats.total[index]), int(moved[index])
        entries.append(
            {
                "rank": view.lane.rank,
                "device": view.lane.device,
                "kind": trace.names[name],
                "least_bytes": BOUNDS[place] if known else None,
                "below_bytes": BOUNDS[place + 1] if known and place + 1 < len(BOUNDS) else None,
                "count": int(stats.number[index]),
                "bytes": carried if known else None,
                "dur_ns": spent,
                "median_ns": int(stats.median[index]),
                "max_ns": int(stats.largest[index]),
                "bandwidth_gbps": carried / spent if known and spent else None,
            }
        )
    return entries


ANALYZER = FileAnalyzer("copies", entries_of_devices("copies", COPIES, _of_lane), (DEVICE_EVENTS,), (COPIES,))
