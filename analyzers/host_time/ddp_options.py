"""What DistributedDataParallel does that its options would spare: gradients reduced in every micro-batch, a search for
unused parameters in every step, and copies between gradients and buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE, FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.device_time.kernels.kernel_facts import kernel_facts
from gpuscope.analyzers.host_time.calls_per_step import DDP_FORWARD
from gpuscope.analyzers.host_time.judged_windows import Judged, judged
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import Finding, made
from gpuscope.catalogue.findings.data_parallel import GradientCopies, SyncedAccumulation, UnusedParameterSearch
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.intervals import Spans, intersect, subtract, union
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
"""The range around the search (torch/csrc/distributed/c10d/reducer.cpp)."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The findings `synced_accumulation`, `unused_parameter_search` and `gradient_copies`."""
    result = Result(ANALYZER.name)
    if trace.names.find(DDP_FORWARD) < 0:
        return result
    for view in lanes:
        part = judged(view)
        if part.steady:
            result.findings += [
                *_accumulation(trace, view, part), *_search(trace, view, part), *_copies(trace, view, part),
            ]  # fmt: skip
    return result


def _ranges(trace: Trace, rank: int, name: str) -> Times:
    """Rows of host events of that name, in order of start."""
    host = trace["host_events"]
    rows = np.flatnonzero((host["rank"] == rank) & (host["name"] == trace.names.find(name)))
    return np.asarray(rows[np.argsort(host["start"][rows], kind="stable")])


def _accumulation(trace: Trace, view: LaneView, part: Judged) -> list[FindingEntry]:
    """Several forward passes per step, each followed by all-reduces of its own."""
    host, table = trace["host_events"], trace["collectives"]
    forward = _ranges(trace, view.lane.rank, DDP_FORWARD)
    steps = trace["steps"]
    own = np.flatnonzero(steps["rank"] == view.lane.rank)
    begin = np.sort(steps["start"][own])
    if not len(forward) or not len(begin):
        return []
    reduced = np.flatnonzero((table["rank"] == view.lane.rank) & (table["op"] == trace.names.find("all_reduce")))
    issued = _issued(trace, reduced)
    order = np.argsort(issued, kind="stable")
    reduced, issued = reduced[order], issued[order]
    starts = host["start"][forward]
    behind = np.searchsorted(starts, issued, "right") - 1  # the forward pass each all-reduce comes after
    step_of = np.searchsorted(begin, starts, "right") - 1
    needless = np.zeros(len(reduced), np.bool_)
    passes: list[int] = []
    for which in np.unique(step_of[step_of >= 0]).tolist():
        mine = np.flatnonzero(step_of == which)
        counts = np.array([int((behind == place).sum()) for place in mine.tolist()])
        passes.append(len(mine))
        if len(mine) > 1 and counts.min() > 0 and counts.max() == counts.min():
            needless |= np.isin(behind, mine[:-1])
    count = int(np.median(passes)) if passes else 1
    if count < 2 or not needless.any():
        return []
    rows = reduced[needless]
    # What they do not expose themselves they push behind: the last micro-batch's wait for the link.
    bounds, whole = union(part.start, part.end), int((part.end - part.start).sum())
    exposed = intersect(intersect(view.parts.exposed_communication, _spans(table, reduced)), bounds).total
    exposed = min(exposed, intersect(_spans(table, rows), bounds).total)
    if exposed < MIN_SHARE * whole:
        return []
    shown = _shown(trace, view, "collectives", rows, "before the step's last micro-batch")
    return [_finding(SyncedAccumulation(count, exposed / whole), view, part, exposed, shown)]


def _finding(words: Finding, view: LaneView, part: Judged, cost: int, evidence: list[Evidence]) -> FindingEntry:
    """That costs so many ns of the judged steps."""
    share = cost / int((part.end - part.start).sum())
    return made(words, ranks=[view.lane.rank], share=share, cost_ns=cost, mean_ns=cost // len(part), evidence=evidence)


def _shown(trace: Trace, view: LaneView, of: str, rows: Times, note: str) -> list[Evidence]:
    """The first of these rows of a table as evidence."""
    table, named = trace[of], "op" if of == "collectives" else "name"
    return [
        {"rank": view.lane.rank, "start_ns": int(table["start"][row]),
         "dur_ns": int(table["end"][row] - table["start"][row]), "name": trace.names[int(table[named][row])],
         "note": note}
        for row in rows[:EVIDENCE].tolist()
    ]  # fmt: skip


def _spans(table: Table, rows: Times) -> Spans:
    return union(table["start"][rows], table["end"][rows])


def _issued(trace: Trace, rows: Times) -> Times:
    """When each collective was launched, else when it began."""
    device, host, table = trace["device_events"], trace["host_events"], trace["collectives"]
    event = table["event"][rows]
    launch = np.where(event != NA, device.at("launch", np.maximum(event, 0)) if len(device) else NA, NA)
    return np.asarray(np.where(launch != NA, host["start"][np.maximum(launch, 0)], table["start"][rows]), np.int64)


def _copies(trace: Trace, view: LaneView, part: Judged) -> list[FindingEntry]:
    """Copies between gradients and buckets, as far as nothing else runs beside them."""
    device = trace["device_events"]
    copied = kernel_facts(trace).gradient_copy
    rows = view.rows[copied[view.rows]]
    rows = rows[part.place(device["start"][rows]) != NA]
    others = view.rows[~copied[view.rows]]
    spans = subtract(_spans(device, rows), _spans(device, others))
    alone = intersect(spans, union(part.start, part.end)).total
    whole = int((part.end - part.start).sum())
    if alone < MIN_SHARE * whole:
        return []
    shown = _shown(trace, view, "device_events", rows, "between a gradient and its bucket")
    return [_finding(GradientCopies(alone / whole), view, part, alone, shown)]


def _search(trace: Trace, view: LaneView, part: Judged) -> list[FindingEntry]:
    """The search, as far as the device idles beneath it."""
    host = trace["host_events"]
    rows = _ranges(trace, view.lane.rank, SEARCH)
    rows = rows[part.place(host["start"][rows]) != NA]
    if len(rows) < len(part):
        return []
    spans = union(host["start"][rows], host["end"][rows])
    idle = intersect(intersect(view.parts.idle, spans), union(part.start, part.end)).total
    whole = int((part.end - part.start).sum())
    if idle < MIN_SHARE * whole:
        return []
    shown = _shown(trace, view, "host_events", rows, "")
    return [_finding(UnusedParameterSearch(idle / whole), view, part, idle, shown)]


ANALYZER = FileAnalyzer(
    "ddp_options", run, (Need("collectives", "record collectives: a job on one device has none", optional=True),)
)
