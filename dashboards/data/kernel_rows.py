"""Kernels by name for the table: the report's, or those of some ranks and steps counted from the trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.state import View
from gpuscope.report.schema.document import KernelEntry
from gpuscope.trace.trace import Trace

_SIGNATURE = re.compile(r"[A-Za-z_][\w:<>]*[^()]*[(<]")
_TEMPLATE = re.compile(r"<[^<>]*>|\([^()]*\)")


def short(name: str) -> str:
    """A C++ kernel's name without return type, namespaces, template and call arguments; others as they are.

    `void at::native::(anonymous namespace)::softmax<8, float>(float*)` is `softmax`.
    """
    if name.startswith(("Memcpy", "Memset")) or not _SIGNATURE.match(name):
        return name
    bare = name.replace("(anonymous namespace)::", "")
    while (cut := _TEMPLATE.sub("", bare)) != bare:
        bare = cut
    parts = (bare.split() or [name])[-1].split("::")
    if parts[-1].lower().startswith("kernel"):  # cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4>, gemvx::kernel<int>
        inner = re.search(r"<\s*([A-Za-z_]\w{7,})", name)
        return inner[1] if inner else "::".join(parts[-2:])
    return parts[-1] or name


def kernel_rows(run: OpenRun, view: View) -> list[dict[str, Any]]:
    """Rows with `count`, `dur_ns`, `mean_ns`, `min_ns`, `median_ns`, `max_ns`, `share_frac`; the costliest first.

    Without a filter these are the report's, and the median is None unless the trace has as many of the name.
    Filtered, they are of the chosen ranks, and of the events that start in the chosen steps.
    """
    known = run.report["kernels"]
    if run.trace is None:
        return [{**one, "median_ns": None} for one in known]
    everything = _all(known, run.trace) if view.ranks is None and view.steps is None else None
    return everything or _counted(known, run, view)


def _all(known: Sequence[KernelEntry], trace: Trace) -> list[dict[str, Any]]:
    device = trace["device_events"]
    medians = _medians(device["name"], device["end"] - device["start"])
    rows = []
    for one in known:
        count, median = medians.get(trace.names.find(one["name"]), (0, None))
        rows.append({**one, "median_ns": median if count == one["count"] else None})
    return rows


def _medians(names: np.ndarray, length: np.ndarray) -> dict[int, tuple[int, int]]:
    """Count and median length by name."""
    order = np.lexsort((length, names))
    codes, first, counts = np.unique(names[order], return_index=True, return_counts=True)
    middle = length[order][first + counts // 2]
    return {
        code: (count, median)
        for code, count, median in zip(codes.tolist(), counts.tolist(), middle.tolist(), strict=True)
    }


def _counted(known: Sequence[KernelEntry], run: OpenRun, view: View) -> list[dict[str, Any]]:
    assert run.trace is not None
    device = run.trace["device_events"]
    keep = np.ones(len(device), bool) if view.ranks is None else np.isin(device["rank"], list(view.ranks))
    if view.steps is not None:
        inside = np.zeros(len(device), bool)
        for step in run.report["steps"]:
            if view.has_step(step["step"]):
                end = step["start_ns"] + step["dur_ns"]
                inside |= (
                    (device["rank"] == step["rank"]) & (device["start"] >= step["start_ns"]) & (device["start"] < end)
                )
        keep &= inside
    rows = np.flatnonzero(keep)
    if not len(rows):
        return []
    names, length = device["name"][rows], device["end"][rows] - device["start"][rows]
    everything = int(length.sum()) or 1
    category = {one["name"]: one for one in reversed(known)}
    found = []
    medians = _medians(names, length)
    order = np.argsort(names, kind="stable")
    codes, first = np.unique(names[order], return_index=True)
    for code, of_name in zip(codes.tolist(), np.split(length[order], first[1:]), strict=True):
        name, total = run.trace.names[code], int(of_name.sum())
        entry = category.get(name)
        found.append({
            "name": name, "category": entry["category"] if entry else "",
            "operator": entry["operator"] if entry else None,
            "count": len(of_name), "dur_ns": total, "mean_ns": total // len(of_name), "min_ns": int(of_name.min()),
            "median_ns": medians[code][1], "max_ns": int(of_name.max()), "share_frac": total / everything,
            "flops_per_s": None,
        })  # fmt: skip
    return sorted(found, key=lambda one: -int(one["dur_ns"]))
