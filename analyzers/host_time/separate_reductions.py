"""All-reduces that follow one another where one would do: a loop over parameters that averages each gradient by itself.

Wrappers (DDP, FSDP, DeepSpeed…) gather gradients in buckets; where one left its marks, nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS, Need
from gpuscope.analyzers.device_time.kernels.kernel_facts import kernel_facts
from gpuscope.analyzers.device_time.kernels.operator_work import is_multiplying
from gpuscope.analyzers.host_time.judged_windows import Judged, judged
from gpuscope.analyzers.host_time.option_findings import covered, finding_of, shown
from gpuscope.catalogue.findings.data_parallel import SeparateReductions
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import intersect
from gpuscope.trace.naming.frameworks import WRAPPERS, frameworks
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

MANY = 10
"""Messages in a row from which it is a loop."""
GRADIENTS = 1 << 20
"""Bytes per step: fewer are a model's metrics, not its gradients."""
BUCKET = 25 << 20
"""DDP's: as few messages as it would send are no loop over parameters."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `separate_reductions` per rank that reduces in such a loop."""
    result = Result(ANALYZER.name)
    if trace.names.find("all_reduce") < 0 or frameworks(trace.names.names, among=WRAPPERS):
        return result
    for view in lanes:
        result.findings += _of_lane(trace, view, judged(view))
    return result


def _of_lane(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    table = trace["collectives"]
    runs = _runs(trace, view, steps)
    if len(runs) < len(steps):
        return []
    count = int(np.median([len(run) for run in runs]))
    rows = np.concatenate(runs)
    known = bool((table["bytes"][rows] != NA).all())
    total = int(np.median([table["bytes"][run].sum() for run in runs])) if known else None
    if count < MANY or (total is not None and (total < GRADIENTS or count < 2 * (1 + -(-total // BUCKET)))):
        return []
    exposed = intersect(view.parts.exposed_communication, covered(table, rows))
    evidence = shown(trace, "collectives", rows, "one of many in a row")
    return finding_of(lambda share: SeparateReductions(count, total, share), view, steps, exposed, evidence)


def _runs(trace: Trace, view: LaneView, steps: Judged) -> list[Times]:
    """The longest run of each judged step that has one: all-reduces between which no matrix product starts, rows."""
    table, device = trace["collectives"], trace["device_events"]
    own = (table["rank"] == view.lane.rank) & (table["op"] == trace.names.find("all_reduce")) & (table["event"] != NA)
    rows = np.flatnonzero(own)
    rows = rows[np.argsort(table["start"][rows], kind="stable")]
    place = steps.place(table["start"][rows])
    rows, place = rows[place != NA], place[place != NA]
    if len(rows) < MANY:
        return []
    products = np.sort(device["start"][view.rows[is_multiplying(kernel_facts(trace).category[view.rows])]])
    before = np.searchsorted(products, table["start"][rows])
    parted = np.flatnonzero((np.diff(before) > 0) | (np.diff(place) > 0)) + 1
    longest: dict[int, Times] = {}
    for piece in np.split(np.arange(len(rows)), parted):
        step = int(place[piece[0]])
        if len(piece) > len(longest.get(step, ())):
            longest[step] = rows[piece]
    return list(longest.values())


ANALYZER = FileAnalyzer(
    "separate_reductions",
    run,
    (DEVICE_EVENTS, Need("collectives", "record collectives: a job on one device has none", optional=True)),
)
