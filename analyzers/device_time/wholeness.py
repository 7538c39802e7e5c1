"""Whether a recording is whole, or someone dropped events from it (definitions: «Is the trace whole?»).

A thinned trace keeps its breakdown: what is there took the time that it took. But idle time may be work that was
dropped, and a gap's cause an event that was: it supports no cause and no gain.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.report.view import units
from gpuscope.trace.columns.table import Times
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

IDS_AT_LEAST = 1_000
"""External ids from which their density says something."""
ID_DENSITY = 0.6
"""Share of the external ids between the first and the last that a whole trace has (97–100 %; a sampled one 1.4 %)."""
TRIMMED = 0.01
"""Share of the ids left out at either end: a few stray ones say nothing of the rest."""
UNLINKED = 0.2
"""Share of the kernels without a launching call, and of these calls without a kernel."""
QUEUED_BEFORE = 50_000
"""ns by which an operation must have been queued before all it waits for had ended, to be ready without doubt."""
LATE_AFTER = 20_000
"""ns after which such operations start, in the median, only where work before them was dropped (whole: 0–2 µs)."""
READY_AT_LEAST = 20
"""Operations so queued from which their median says something."""


def id_density(ids: Times) -> float | None:
    """Share of the external ids between the first and the last that are there; None where there are too few.

    `ids`, shape (n,), of `cpu_op` rows. A whole trace numbers its operators one after the other.
    """
    ids = np.unique(ids)
    if len(ids) < IDS_AT_LEAST:
        return None
    trimmed = ids[int(TRIMMED * len(ids)) : len(ids) - int(TRIMMED * len(ids))]
    return len(trimmed) / float(trimmed[-1] - trimmed[0] + 1)


def why_thinned(trace: Trace, view: LaneView) -> str:
    """What shows that events of a lane were dropped; empty where nothing does."""
    without_call, without_kernel = unlinked(trace, view)
    if without_call > UNLINKED and without_kernel > UNLINKED:
        return (
            f"{units.share(without_call)} of the kernels have no launching call and {units.share(without_kernel)} of "
            "the launching calls no kernel"
        )
    late = start_delay_when_ready(trace, view)
    if late is not None and late >= LATE_AFTER:
        return f"operations that were queued and ready start {units.duration(late)} later in the median"
    return ""


def unlinked(trace: Trace, view: LaneView) -> tuple[float, float]:
    """Shares of a lane's kernels without a launching call, and of its rank's launching calls without a kernel."""
    device, host = trace["device_events"], trace["host_events"]
    kernels = view.rows[device["kind"][view.rows] != Kind.MEMORY]
    calls = np.flatnonzero((host["rank"] == view.lane.rank) & (host["category"] == Category.RUNTIME))
    calls = calls[trace.names.matching(kinds.is_kernel_launch)[host["name"][calls]]]
    launch = device["launch"]
    used = np.zeros(len(host), np.bool_)
    used[launch[launch != NA]] = True
    return (
        float((launch[kernels] == NA).mean()) if len(kernels) else 0.0,
        float((~used[calls]).mean()) if len(calls) else 0.0,
    )


def start_delay_when_ready(trace: Trace, view: LaneView) -> float | None:
    """Median ns from the end of a stream's last operation to the start of the next one, over those that had been
    queued long before; None where there are too few."""
    device, host = trace["device_events"], trace["host_events"]
    rows = view.rows[(device["launch"][view.rows] != NA) & (device["graph"][view.rows] == NA)]
    if not len(rows) or _waits_unknown(trace, view):
        return None
    order = np.lexsort((device["start"][rows], device["stream"][rows]))
    rows = rows[order]
    same = device["stream"][rows][1:] == device["stream"][rows][:-1]
    ready = device["end"][rows][:-1]
    issued = host["end"][device["launch"][rows]][1:]
    queued = same & (issued <= ready - QUEUED_BEFORE) & ~_another_stream_runs(trace, view, rows)
    if int(queued.sum()) < READY_AT_LEAST:
        return None
    return float(np.median((device["start"][rows][1:] - ready)[queued]))


def _waits_unknown(trace: Trace, view: LaneView) -> bool:
    """Whether a lane's streams wait for more than the trace model holds: Ascend's for notifications of other NPUs."""
    ranks = trace["ranks"]
    backends = ranks["backend"][ranks["rank"] == view.lane.rank]
    return trace.names.find("hccl") in backends.tolist()


def _another_stream_runs(trace: Trace, view: LaneView, rows: Times) -> Times:
    """For each operation but the first, whether the device was busy between its stream's last one and it: it may
    have waited for that."""
    device = trace["device_events"]
    start, end = np.sort(device["start"][view.rows]), np.sort(device["end"][view.rows])
    since, until = device["end"][rows][:-1], device["start"][rows][1:]
    begun_by_end = np.searchsorted(start, until, "left")
    ended_by_begin = np.searchsorted(end, since, "right")
    return np.asarray(begun_by_end > ended_by_begin)
