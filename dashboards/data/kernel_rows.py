"""Kernels by name for the table: the report's, or those of some ranks, steps or a window, counted from the trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.dashboards.data.kernel_durations import KernelTimes, kernel_times
from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.state import View
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.trace import Trace
from gpuscope.words.short_kernels import short_kernels

WITHIN = "within"
"""Parameter of the address: `window` for the kernels that start in the window of the timeline only."""
WIDTH = 64
"""Cells of a short name."""


def window_of(view: View) -> tuple[int, int] | None:
    """The window that the kernels are of, ns on the run's clock; None for the whole recording."""
    return view.window if view.extra.get(WITHIN) == "window" else None


def filtered(view: View) -> bool:
    """Whether the rows are of a part of the run."""
    return view.ranks is not None or view.steps is not None or window_of(view) is not None


def kernel_rows(run: OpenRun, view: View) -> list[dict[str, Any]]:
    """The costliest first, with `short`, `count`, `dur_ns`, `mean_ns`, `min_ns`, `median_ns`, `max_ns`, `share_frac`,
    and `by_rank` (ns by rank).

    Without a filter these are the report's; median and ranks are None and empty unless the trace has as many of the
    name. Filtered, they are of the chosen ranks, and of the events that start in the chosen steps or window.
    """
    rows = _report_rows(run) if run.trace is None or not filtered(view) else _counted(run, run.trace, view)
    for row, short in zip(rows, short_kernels([row["name"] for row in rows], WIDTH), strict=True):
        row["short"] = short
    return rows


def _report_rows(run: OpenRun) -> list[dict[str, Any]]:
    """The report's entries, with what only the trace knows."""
    times = run.kernel_times
    place = {} if times is None else {code: i for i, code in enumerate(times.codes.tolist())}
    rows: list[dict[str, Any]] = []
    for entry in run.report["kernels"]:
        row: dict[str, Any] = {**entry, "median_ns": None, "by_rank": {}}
        i = place.get(run.trace.names.find(entry["name"])) if run.trace is not None else None
        if times is not None and i is not None and times.count[i] == entry["count"]:
            row |= {"median_ns": int(times.median[i]), "by_rank": _by_rank(times, i)}
        rows.append(row)
    return rows


def _by_rank(times: KernelTimes, i: int) -> dict[int, int]:
    return {rank: int(total[i]) for rank, total in times.by_rank.items()}


def _counted(run: OpenRun, trace: Trace, view: View) -> list[dict[str, Any]]:
    device = trace["device_events"]
    rows = np.flatnonzero(_chosen(run, trace, view))
    times = kernel_times(device["name"][rows], device["end"][rows] - device["start"][rows], device["rank"][rows])
    everything = int(times.total.sum()) or 1
    known = {one["name"]: one for one in reversed(run.report["kernels"])}
    found = []
    for i, code in enumerate(times.codes.tolist()):
        name, total, count = trace.names[code], int(times.total[i]), int(times.count[i])
        entry = known.get(name)
        found.append(
            {
                "name": name,
                "category": entry["category"] if entry else "",
                "operator": entry["operator"] if entry else None,
                "count": count,
                "dur_ns": total,
                "mean_ns": total // count,
                "min_ns": int(times.least[i]),
                "median_ns": int(times.median[i]),
                "max_ns": int(times.most[i]),
                "share_frac": total / everything,
                "flops_per_s": None,
                "by_rank": _by_rank(times, i),
            }
        )
    return sorted(found, key=lambda one: -int(one["dur_ns"]))


def _chosen(run: OpenRun, trace: Trace, view: View) -> Mask:
    """Which rows of device_events: steps are on their rank's own clock, the window is on the run's."""
    device = trace["device_events"]
    rank, start = device["rank"], device["start"]
    keep = np.ones(len(device), np.bool_) if view.ranks is None else np.isin(rank, list(view.ranks))
    if view.steps is not None:
        inside = np.zeros(len(device), np.bool_)
        for step in run.report["steps"]:
            if view.has_step(step["step"]):
                end = step["start_ns"] + step["dur_ns"]
                inside |= (rank == step["rank"]) & (start >= step["start_ns"]) & (start < end)
        keep &= inside
    window = window_of(view)
    if window is not None and run.events is not None:
        for one in np.unique(rank).tolist():
            own = np.flatnonzero(rank == one)
            shown = run.events.clock.common(one, start[own])
            keep[own] &= (shown >= window[0]) & (shown < window[1])
    return keep
