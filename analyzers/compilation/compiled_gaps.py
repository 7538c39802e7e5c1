"""The idle time that a graph break leaves between the graphs of one compiled call, by the compiled frames around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView, bounds, step_at
from gpuscope.analyzers.base.needs import Need
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.table import Mask, Table, Times, rows_of_rank, rows_where
from gpuscope.trace.intervals import Spans, measure_within, subtract, union
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.trace import Trace

INSIDE = "<"
"""Between a frame and the one around it."""
_Gap = tuple[str, int, int]
"""Regions around the graph before it, begin, end."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table `compiled_gaps` of a file's lanes, by step."""
    result = Result(ANALYZER.name)
    rows: dict[str, list[int]] = {"rank": [], "regions": [], "step": [], "count": [], "host_ns": [], "idle_ns": []}
    for view in lanes:
        gaps = list(_gaps(trace, view.lane.rank))
        start, end = (np.array([gap[side] for gap in gaps], np.int64) for side in (1, 2))
        steps = np.array([NA, *(one.step for one in view.steps)], np.int64)[step_at(*bounds(view.steps), start) + 1]
        idle = measure_within(subtract(view.parts.idle, _compiling(trace, view.lane.rank)), start, end)
        regions = np.array([trace.names.code(gap[0]) for gap in gaps], np.int64)
        for name, step in sorted(set(zip(regions.tolist(), steps.tolist(), strict=True))):
            own = (regions == name) & (steps == step)
            rows["rank"].append(view.lane.rank)
            rows["regions"].append(name)
            rows["step"].append(step)
            rows["count"].append(int(own.sum()))
            rows["host_ns"].append(int((end - start)[own].sum()))
            rows["idle_ns"].append(int(idle[own].sum()))
    if rows["rank"]:
        result.tables["compiled_gaps"] = Table.build(SCHEMAS["compiled_gaps"], len(rows["rank"]), rows)
    return result


def _compiling(trace: Trace, rank: int) -> Spans:
    """When torch.compile was at work: what that takes is no cost of a break."""
    host, compiles = trace["host_events"], trace.names.matching(kinds.is_frame_compilation)
    rows = rows_where(*rows_of_rank(host, rank), lambda part: compiles[host["name"][part]])
    return union(host["start"][rows], host["end"][rows])


def _gaps(trace: Trace, rank: int) -> Iterator[_Gap]:
    """From the end of each compiled graph to the begin of the next within the same outermost compiled region."""
    host, names = trace["host_events"], trace.names
    region = names.matching(_is_region)
    wanted = region | names.matching(kinds.is_compiled_graph)
    rows = rows_where(*rows_of_rank(host, rank), lambda part: wanted[host["name"][part]])
    for thread in distinct_values(host["thread"][rows]).tolist():
        yield from _of_thread(trace, rows[host["thread"][rows] == thread], region)


def _of_thread(trace: Trace, rows: Times, region: Mask) -> Iterator[_Gap]:
    host = trace["host_events"]
    start, end, name = (host[column][rows] for column in ("start", "end", "name"))
    order = np.lexsort((-end, start))
    around: list[tuple[int, str]] = []  # ends and ids of the regions that are open, the outermost first
    last: tuple[str, int, int] | None = None  # regions, end and outermost region's end of the graph before
    for begin, until, code in zip(start[order].tolist(), end[order].tolist(), name[order].tolist(), strict=True):
        while around and around[-1][0] <= begin:
            around.pop()
        if region[code]:
            around.append((until, kinds.compiled_region(trace.names[code])))
        elif around:
            if last is not None and last[2] == around[0][0]:
                yield last[0], last[1], begin
            last = (INSIDE.join(one for _, one in reversed(around)), until, around[0][0])


def _is_region(name: str) -> bool:
    return bool(kinds.compiled_region(name))


def _recorded(trace: Trace) -> bool:
    return bool(trace.names.matching(_is_region).any())


ANALYZER = FileAnalyzer(
    "compiled_gaps",
    run,
    (Need("compiled regions", "torch.profiler records them where torch.compile is used", _recorded, optional=True),),
)
