"""Calls of the CUDA, HIP or CANN runtime by function: count, total, median, largest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import DEVICE_EVENTS
from gpuscope.analyzers.frame.sections import API_CALLS
from gpuscope.analyzers.host_time.blocking_sites import plain
from gpuscope.analyzers.profile.recorded_part import RankPart, parts
from gpuscope.report.schema.profile_sections import ApiCallEntry
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.grouped_durations import grouped
from gpuscope.trace.schema import Category
from gpuscope.trace.trace import Trace


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `api_calls` of a file's ranks, the function with most time first."""
    result = Result(ANALYZER.name)
    entries = [entry for part in parts(trace, lanes) for entry in _of_rank(trace, part)]
    if entries:
        result.sections[API_CALLS] = entries
    return result


def _of_rank(trace: Trace, part: RankPart) -> list[ApiCallEntry]:
    host = trace["host_events"]
    rows = part.host[host["category"][part.host] == Category.RUNTIME]
    if not len(rows):
        return []
    codes, of_code = distinct(host["name"][rows])
    # nsys records versions of one function under several names.
    names, of_name = np.unique([plain(trace.names[code]) for code in codes.tolist()], return_inverse=True)
    stats = grouped(host["end"][rows] - host["start"][rows], of_name[of_code], len(names))
    everything = int(stats.total.sum())
    return [
        {
            "rank": part.rank, "name": str(names[index]), "count": int(stats.number[index]),
            "dur_ns": int(stats.total[index]), "mean_ns": int(stats.total[index] // stats.number[index]),
            "median_ns": int(stats.median[index]), "min_ns": int(stats.least[index]),
            "max_ns": int(stats.largest[index]),
            "share_frac": int(stats.total[index]) / everything if everything else 0.0,
        }
        for index in np.argsort(-stats.total, kind="stable").tolist()
    ]  # fmt: skip


ANALYZER = FileAnalyzer("api_calls", run, (DEVICE_EVENTS,), (API_CALLS,))
