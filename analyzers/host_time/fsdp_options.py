"""What FullyShardedDataParallel (FSDP1) does that its options would spare: a limit on gathers that the device waits
for, and gathers that only begin once the backward pass needs them.

Both show in ranges of torch/distributed/fsdp/_runtime_utils.py. FSDP2 (`fully_shard`) has neither option.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE, FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.host_time.judged_windows import Judged, judged
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import Finding, made
from gpuscope.catalogue.findings.data_parallel import LateGathers, LimitedGathers
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import Spans, intersect, join, measure_within, union
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

LIMITER = "FullyShardedDataParallel.rate_limiter"
BEFORE = "FullyShardedDataParallel._pre_backward_hook"
AHEAD = "FullyShardedDataParallel._pre_backward_prefetch"
"""Within the hook: gathers issued in it are of the module behind, those outside it of this one."""
AT_ONCE = 0.5
"""Share of the gathers of a backward pass that begin where they are needed, from which none is fetched ahead."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The findings `limited_gathers` and `late_gathers`."""
    result = Result(ANALYZER.name)
    if all(trace.names.find(name) < 0 for name in (LIMITER, BEFORE)):
        return result
    for view in lanes:
        part = judged(view)
        if part.steady:
            result.findings += [*_limited(trace, view, part), *_late(trace, view, part)]
    return result


def _ranges(trace: Trace, rank: int, name: str) -> Times:
    """Rows of host events of that name."""
    host = trace["host_events"]
    return np.flatnonzero((host["rank"] == rank) & (host["name"] == trace.names.find(name)))


def _spans(trace: Trace, rows: Times) -> Spans:
    host = trace["host_events"]
    return union(host["start"][rows], host["end"][rows])


def _gathers(trace: Trace, rank: int, part: Judged) -> tuple[Times, Times]:
    """All-gathers issued in judged steps, in order of issue: rows of `collectives`, and when each was issued."""
    table, device, host = trace["collectives"], trace["device_events"], trace["host_events"]
    rows = np.flatnonzero((table["rank"] == rank) & (table["op"] == trace.names.find("all_gather")))
    rows = rows[table["event"][rows] != NA]
    launch = device.at("launch", table["event"][rows])
    rows, issued = rows[launch != NA], host["start"][launch[launch != NA]]
    kept = part.place(issued) != NA
    order = np.argsort(issued[kept], kind="stable")
    return rows[kept][order], issued[kept][order]


def _limited(trace: Trace, view: LaneView, part: Judged) -> list[FindingEntry]:
    """From each wait of the limiter to the end of the gather behind it: what of this is not compute."""
    host, table = trace["host_events"], trace["collectives"]
    rows = _ranges(trace, view.lane.rank, LIMITER)
    rows = rows[part.place(host["start"][rows]) != NA]
    gathers, issued = _gathers(trace, view.lane.rank, part)
    if not len(rows) or not len(gathers):
        return []
    behind = np.minimum(np.searchsorted(issued, host["end"][rows]), len(gathers) - 1)
    held = union(host["start"][rows], np.maximum(table["end"][gathers[behind]], host["end"][rows]))
    stalled = join(view.parts.idle, view.parts.exposed_communication)
    cost = intersect(intersect(stalled, held), union(part.start, part.end)).total
    whole = int((part.end - part.start).sum())
    if cost < MIN_SHARE * whole:
        return []
    return [_finding(LimitedGathers(cost / whole), trace, view, part, cost, rows, "the limiter's wait")]


def _late(trace: Trace, view: LaneView, part: Judged) -> list[FindingEntry]:
    """Gathers of the backward pass that are issued in the hook of the module that needs them, and exposed."""
    table, device, rank = trace["collectives"], trace["device_events"], view.lane.rank
    rows, issued = _gathers(trace, rank, part)
    hooks, ahead = _spans(trace, _ranges(trace, rank, BEFORE)), _spans(trace, _ranges(trace, rank, AHEAD))
    within = measure_within(hooks, issued, issued + 1) > 0
    needed = within & (measure_within(ahead, issued, issued + 1) == 0)
    if needed.sum() <= AT_ONCE * within.sum():
        return []
    late = rows[needed]
    spans = union(table["start"][late], table["end"][late])
    exposed = intersect(intersect(view.parts.exposed_communication, spans), union(part.start, part.end)).total
    whole = int((part.end - part.start).sum())
    if exposed < MIN_SHARE * whole:
        return []
    events = device.at("launch", table["event"][late])
    words = LateGathers(int(needed.sum()), int(within.sum()), exposed / whole)
    return [_finding(words, trace, view, part, exposed, events, "issued where it is needed")]


def _finding(
    words: Finding, trace: Trace, view: LaneView, part: Judged, cost: int, rows: Times, note: str
) -> FindingEntry:
    host, share = trace["host_events"], cost / int((part.end - part.start).sum())
    evidence: list[Evidence] = [
        {"rank": view.lane.rank, "start_ns": int(host["start"][row]),
         "dur_ns": int(host["end"][row] - host["start"][row]), "name": trace.names[int(host["name"][row])],
         "note": note}
        for row in rows[:EVIDENCE].tolist()
    ]  # fmt: skip
    return made(words, ranks=[view.lane.rank], share=share, cost_ns=cost, mean_ns=cost // len(part), evidence=evidence)


ANALYZER = FileAnalyzer("fsdp_options", run, (Need("host_events", "record CPU activities too", optional=True),))
