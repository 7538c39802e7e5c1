"""What DistributedDataParallel does that its options would spare: gradients reduced in every micro-batch, a search for
unused parameters in every step, and copies between gradients and buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.device_time.kernels.kernel_facts import kernel_facts
from gpuscope.analyzers.host_time.calls_per_step import DDP_FORWARD
from gpuscope.analyzers.host_time.judged_windows import Judged, judged
from gpuscope.analyzers.host_time.option_findings import covered, finding_of, ranges, shown
from gpuscope.catalogue.findings.data_parallel import GradientCopies, SyncedAccumulation, UnusedParameterSearch
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import intersect, subtract, union
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
        steps = judged(view)
        if steps.steady:
            result.findings += synced_accumulation(trace, view, steps, DDP_FORWARD, "all_reduce")
            result.findings += [*_search(trace, view, steps), *_copies(trace, view, steps)]
    return result


def synced_accumulation(trace: Trace, view: LaneView, steps: Judged, of_model: str, op: str) -> list[FindingEntry]:
    """Several forward passes (ranges `of_model`) per step, each followed by reductions of its own."""
    host, table = trace["host_events"], trace["collectives"]
    forward = ranges(trace, view.lane.rank, of_model)
    recorded = trace["steps"]
    begin = np.sort(recorded["start"][recorded["rank"] == view.lane.rank])
    if not len(forward) or not len(begin):
        return []
    reduced = np.flatnonzero((table["rank"] == view.lane.rank) & (table["op"] == trace.names.find(op)))
    issued = _issued(trace, reduced)
    order = np.argsort(issued, kind="stable")
    reduced, issued = reduced[order], issued[order]
    starts = host["start"][forward]
    behind = np.searchsorted(starts, issued, "right") - 1  # the forward pass each comes after
    step_of = np.searchsorted(begin, starts, "right") - 1
    needless = np.zeros(len(reduced), np.bool_)
    passes: list[int] = []
    for which in distinct_values(step_of[step_of >= 0]).tolist():
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
    judged_time = union(steps.start, steps.end)
    exposed = intersect(intersect(view.parts.exposed_communication, covered(table, reduced)), judged_time).total
    exposed = min(exposed, intersect(covered(table, rows), judged_time).total)
    evidence = shown(trace, "collectives", rows, "before the step's last micro-batch")
    return finding_of(lambda share: SyncedAccumulation(count, share), view, steps, exposed, evidence)


def _issued(trace: Trace, rows: Times) -> Times:
    """When each collective was launched, else when it began."""
    device, host, table = trace["device_events"], trace["host_events"], trace["collectives"]
    event = table["event"][rows]
    launch = np.where(event != NA, device.at("launch", np.maximum(event, 0)) if len(device) else NA, NA)
    return np.asarray(np.where(launch != NA, host["start"][np.maximum(launch, 0)], table["start"][rows]), np.int64)


def _copies(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    """Copies between gradients and buckets, as far as nothing else runs beside them."""
    device = trace["device_events"]
    copied = kernel_facts(trace).gradient_copy
    rows = view.rows[copied[view.rows]]
    rows = rows[steps.place(device["start"][rows]) != NA]
    alone = subtract(covered(device, rows), covered(device, view.rows[~copied[view.rows]]))
    evidence = shown(trace, "device_events", rows, "between a gradient and its bucket")
    return finding_of(GradientCopies, view, steps, alone, evidence)


def _search(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    """The search, as far as the device idles beneath it."""
    host = trace["host_events"]
    rows = ranges(trace, view.lane.rank, SEARCH)
    rows = rows[steps.place(host["start"][rows]) != NA]
    if len(rows) < len(steps):
        return []
    idle = intersect(view.parts.idle, covered(host, rows))
    return finding_of(UnusedParameterSearch, view, steps, idle, shown(trace, "host_events", rows, ""))


ANALYZER = FileAnalyzer(
    "ddp_options", run, (Need("collectives", "record collectives: a job on one device has none", optional=True),)
)
