"""Copies between pinned host memory and a GPU that stay far below what its PCIe link can carry.

No recorder says at what rate and width a link ran; large copies from pinned memory show it: the fastest of several is
what the link gives when nothing else is on it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.analyzers.device_time.kernels.operator_work import device_models
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import SlowCopies
from gpuscope.hardware.link_rates import gpu_pcie
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.intervals import intersect, union
from gpuscope.trace.schema import Kind
from gpuscope.trace.trace import Trace

LARGE = 4 << 20
"""Bytes from which a copy's fixed cost (some 10 µs) is a few percent of it on any link."""
SEVERAL = 5
"""Copies of which one can be expected to have had the link for itself."""
FAR_BELOW = 0.6
"""Share of the usable rate: half the lanes, or one generation less, leave half of it."""
WAYS = ("HtoD", "DtoH")
"""Kinds of copies, as sources name those that are not pageable."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `slow_copies` per lane."""
    result = Result(ANALYZER.name)
    pinned = trace.names.matching(lambda kind: kind in WAYS)
    for view in lanes:
        link = gpu_pcie(device_models(trace).get(view.key, ""))
        if link is not None and (found := _of_lane(trace, view, pinned, link.usable)) is not None:
            result.findings.append(found)
    return result


def _of_lane(trace: Trace, view: LaneView, pinned: np.ndarray, usable: float) -> FindingEntry | None:
    device = trace["device_events"]
    rows = view.rows[(device["kind"][view.rows] == Kind.MEMORY) & device.known("copy_kind")[view.rows]]
    rows = rows[pinned[device["copy_kind"][rows]]]
    large = rows[(device["bytes"][rows] >= LARGE) & (device["end"][rows] > device["start"][rows])]
    if len(large) < SEVERAL:
        return None
    best = float(np.max(device["bytes"][large] / (device["end"][large] - device["start"][large])))
    if best >= FAR_BELOW * usable:
        return None
    copying = union(device["start"][rows], device["end"][rows])
    held = intersect(intersect(copying, view.parts.exposed_memory), view.judged_spans).total
    cost, steps = round(held * (1 - best / usable)), len(view.judged_steps)
    return made(
        SlowCopies(round(best * 1e9), round(usable * 1e9), len(large)),
        ranks=[view.lane.rank],
        share=cost / max(view.judged_spans.total, 1),
        cost_ns=cost,
        mean_ns=cost // steps if steps else None,
    )


ANALYZER = FileAnalyzer("slow_copies", run, (DEVICE_EVENTS,))
