"""What the device and the launching threads do in each step of an inference server, file by file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, entries_of_devices
from gpuscope.analyzers.base.lanes import LaneView, bounds, step_at
from gpuscope.analyzers.base.needs import OF_A_SERVER
from gpuscope.analyzers.base.sections import SERVING_STEPS
from gpuscope.analyzers.device_time.kernels.kernel_facts import kernel_facts
from gpuscope.analyzers.device_time.kernels.launching_operators import codes
from gpuscope.schema.serving_section import ServingStep
from gpuscope.trace.columns.table import Array, Times, picked
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace

KINDS = ("attention", "gemm", "communication", "other")
"""Experts' products count as matrix products."""


def _of_lane(trace: Trace, view: LaneView) -> Iterator[ServingStep]:
    steps = [step for step in view.steps if step.step != NA]
    if not steps:
        return
    begins, ends = bounds(steps)
    device, rows = trace["device_events"], view.rows
    place = step_at(begins, ends, device.at("start", rows))
    rows, place = rows[place != NA], place[place != NA]
    count = len(steps)
    last = begins.copy()
    np.maximum.at(last, place, device["end"][rows])
    kernels = device["kind"][rows] != Kind.MEMORY
    work = _work(trace, rows, place, count)
    calls = _calls(trace, rows[kernels], place[kernels], count)
    communicates = device["kind"][rows] == Kind.COMMUNICATION
    collectives = np.bincount(place[communicates], minlength=count)
    for number, step in enumerate(steps):
        own = rows[communicates & (place == number)] if collectives[number] else rows[:0]
        spent = device["end"][own] - device["start"][own]
        longest = trace.names[int(device["name"][own[spent.argmax()]])] if len(own) else ""
        yield {
            "rank": view.lane.rank, "device": view.lane.device, "step": step.step,
            "gap_ns": int(max(ends[number] - last[number], 0)), **calls[number],
            "collectives": int(collectives[number]), "longest": longest, "work": work[number],
        }  # type: ignore[typeddict-item]  # fmt: skip


def _calls(trace: Trace, rows: Times, place: Times, count: int) -> list[dict[str, int | None]]:
    """What launched the kernels of each step."""
    device, host = trace["device_events"], trace["host_events"]
    launch = device.at("launch", rows)
    known = np.flatnonzero(launch != NA)
    graph = trace.names.matching(lambda name: "GraphLaunch" in name)
    graphed = np.zeros(len(rows), np.bool_)
    graphed[known] = graph[host["name"][launch[known]]]
    found: list[dict[str, int | None]] = []
    for number in range(count):
        own = place == number
        calls = np.unique(launch[own & (launch != NA)])
        begin, end = host["start"][calls], host["end"][calls]
        found.append({
            "host_ns": int(end.max() - begin.min()) if len(calls) else None, "launches": len(calls),
            "graphs": int(graph[host["name"][calls]].sum()), "kernels": int(own.sum()),
            "graphed": int(graphed[own].sum()), "call_ns": int((end - begin).sum()),
        })  # fmt: skip
    return found


def _work(trace: Trace, rows: Times, place: Times, count: int) -> list[dict[str, list[int]]]:
    """Device time of each step by kind: in all, of kernels whose work is known, and what these would take at peak."""
    device, facts = trace["device_events"], kernel_facts(trace)
    category, floor = facts.category[rows], picked(facts.floor, rows)
    kind = np.full(len(rows), KINDS.index("other"))
    for name, labels in (
        ("attention", ("attention",)),
        ("gemm", ("gemm", "moe")),
        ("communication", ("communication",)),
    ):
        kind[np.isin(category, codes(*labels))] = KINDS.index(name)
    spent = device.at("end", rows) - device.at("start", rows)
    key = place * len(KINDS) + kind

    def summed(values: Array) -> Array:
        return np.bincount(key, values, count * len(KINDS)).reshape(count, len(KINDS)).astype(np.int64)

    columns = np.stack([summed(spent), summed(spent * (floor > 0)), summed(floor)], axis=2)
    return [dict(zip(KINDS, own.tolist(), strict=True)) for own in columns]


ANALYZER = FileAnalyzer(
    "serving",
    entries_of_devices("serving", SERVING_STEPS, _of_lane),
    (OF_A_SERVER,),
    (SERVING_STEPS,),
)
