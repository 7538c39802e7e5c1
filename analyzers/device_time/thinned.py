"""Whether a recording is whole, or someone dropped events from it (definitions: «Is the trace whole?»).

A thinned trace keeps its breakdown: what is there took the time that it took. But idle time may be work that was
dropped, and a gap's cause an event that was: it supports no cause of idle time. Where the kernels that are missing
could change what bounds the run, it supports no verdict either (`verdict.class_stands`).
"""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace
from gpuscope.words import units

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


def why_thinned(trace: Trace, view: LaneView) -> str:
    """What shows that events of a lane were dropped; empty where nothing does."""
    density, without_launch, without_kernel, _ = _of_file(trace, view)
    if density is not None and density < ID_DENSITY:
        return f"only {units.share(density)} of the operators' External ids are there"
    if without_launch > UNLINKED and without_kernel > UNLINKED:
        return (
            f"{units.share(without_launch)} of the kernels have no launching call and {units.share(without_kernel)} of "
            "the launching calls no kernel"
        )
    late = start_delay_when_ready(trace, view)
    if late is not None and late >= LATE_AFTER:
        return f"operations that were queued and ready start {units.duration(late)} later in the median"
    return ""


def lost_work(trace: Trace, view: LaneView) -> int | None:
    """How long the kernels that a lane's file lacks may have run, ns: as many as launching calls have none, and as many
    as the operators that are missing would have launched, each as long as the mean of those that are there. None where
    only the kernels' late starts show that some are missing."""
    density, without_launch, without_kernel, idle_calls = _of_file(trace, view)
    sparse = density is not None and density < ID_DENSITY
    if not sparse and not (without_launch > UNLINKED and without_kernel > UNLINKED):
        return None
    device, rows = trace["device_events"], view.rows
    kernels = rows[device["kind"][rows] != Kind.MEMORY]
    if not len(kernels):
        return 0
    lost = max(idle_calls, len(kernels) * (1 / density - 1) if sparse and density else 0)
    return round(lost * float((device["end"][kernels] - device["start"][kernels]).mean()))


def _of_file(trace: Trace, view: LaneView) -> tuple[float | None, float, float, int]:
    """Of the file a lane is from: density of its operators' External ids (None where there are too few), shares of
    its kernels without a launching call and of its launching calls without a kernel, and how many these are."""
    ranks, table = trace["ranks"], trace["recording"]
    source = ranks["source"][np.flatnonzero(ranks["rank"] == view.lane.rank)]
    rows = np.flatnonzero(np.isin(table["source"], source))
    if not len(rows):
        return None, 0.0, 0.0, 0
    row = int(rows[0])
    ids, span, kernels, launches, alone, idle = (
        int(table[name][row])
        for name in (
            "operator_ids",
            "operator_id_span",
            "kernels",
            "launches",
            "kernels_without_launch",
            "launches_without_kernel",
        )
    )
    density = ids / span if ids != NA and ids >= IDS_AT_LEAST * (1 - 2 * TRIMMED) else None
    return density, alone / max(kernels, 1), idle / max(launches, 1), idle


def start_delay_when_ready(trace: Trace, view: LaneView) -> float | None:
    """Median ns from the end of a stream's last operation to the start of the next one, over those that had been
    queued long before; None where there are too few."""
    device, host = trace["device_events"], trace["host_events"]
    rows = view.rows[device.known("launch")[view.rows] & ~device.known("graph")[view.rows]]
    if not len(rows) or _waits_unknown(trace, view):
        return None
    order = np.lexsort((device["start"][rows], device.at("stream", rows)))
    rows = rows[order]
    same = device.at("stream", rows)[1:] == device.at("stream", rows)[:-1]
    ready = device["end"][rows][:-1]
    issued = host["end"][device.at("launch", rows)][1:]
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
    start, end = (np.sort(device[column][view.rows], kind="stable") for column in ("start", "end"))
    since, until = device["end"][rows][:-1], device["start"][rows][1:]
    return np.asarray(places(start, until) > places(end, since, "right"))
