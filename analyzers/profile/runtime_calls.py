"""Calls of the CUDA, HIP or CANN runtime by function: count, total, median, largest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.analyzers.base.sections import API_CALLS
from gpuscope.analyzers.host_time.blocking_sites import plain
from gpuscope.analyzers.profile.recorded_ranks import RecordedRank, recorded_ranks
from gpuscope.schema.profile_sections import ApiCallEntry
from gpuscope.trace.columns.grouped_durations import grouped_parts
from gpuscope.trace.columns.table import Times, blocks
from gpuscope.trace.schema import Category
from gpuscope.trace.trace import Trace


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `api_calls` of a file's ranks, the function with most time first."""
    result = Result(ANALYZER.name)
    entries = [entry for recorded in recorded_ranks(trace, lanes) for entry in _of_rank(trace, recorded)]
    if entries:
        result.sections[API_CALLS] = entries
    return result


def _of_rank(trace: Trace, recorded: RecordedRank) -> list[ApiCallEntry]:
    host = trace["host_events"]

    def calls() -> Iterator[Times]:
        for rows in blocks(*recorded.bounds):
            own = (host["category"][rows] == Category.RUNTIME) & recorded.began(host["start"][rows])
            yield np.flatnonzero(own) + rows.start

    called = np.zeros(len(trace.names), np.bool_)
    for rows in calls():
        called[host["name"][rows]] = True
    codes = np.flatnonzero(called)
    if not len(codes):
        return []
    # nsys records versions of one function under several names.
    names, of_name = np.unique([plain(trace.names[code]) for code in codes.tolist()], return_inverse=True)
    of_code = np.zeros(len(trace.names), np.int64)
    of_code[codes] = of_name
    stats = grouped_parts(
        lambda: ((host["end"][rows] - host["start"][rows], of_code[host["name"][rows]]) for rows in calls()), len(names)
    )
    everything = int(stats.total.sum())
    return [
        {
            "rank": recorded.rank,
            "name": str(names[index]),
            "count": int(stats.number[index]),
            "dur_ns": int(stats.total[index]),
            "mean_ns": int(stats.total[index] // stats.number[index]),
            "median_ns": int(stats.median[index]),
            "min_ns": int(stats.least[index]),
            "max_ns": int(stats.largest[index]),
            "share_frac": int(stats.total[index]) / everything if everything else 0.0,
        }
        for index in np.argsort(-stats.total, kind="stable").tolist()
    ]


ANALYZER = FileAnalyzer("api_calls", run, (DEVICE_EVENTS,), (API_CALLS,))
