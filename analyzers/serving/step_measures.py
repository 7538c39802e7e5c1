"""What the device and the launching threads do in each step of an inference server, file by file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.base.analyzer import OF_A_SERVER, FileAnalyzer, entries_of_devices
from gpuscope.analyzers.base.lanes import SERVING_STEPS, LaneView, bounds, step_at
from gpuscope.analyzers.device_time.kernel_facts import kernel_facts
from gpuscope.analyzers.device_time.operator_work import codes
from gpuscope.schema.call_tree_section import ServingStep, Work
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Array, Times, picked
from gpuscope.trace.trace import Trace

KINDS: tuple[Work, ...] = ("attention", "gemm", "communication", "other")
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
    sent = rows[communicates]
    edges = np.append(0, np.cumsum(collectives))
    for number, step in enumerate(steps):
        own = sent[edges[number] : edges[number + 1]]
        spent = device["end"][own] - device["start"][own]
        longest = trace.names[int(device["name"][own[spent.argmax()]])] if len(own) else ""
        host, launches, graphs, launched, graphed, call = calls[number]
        yield {
            "rank": view.lane.rank,
            "device": view.lane.device,
            "step": step.step,
            "gap_ns": int(max(ends[number] - last[number], 0)),
            "host_ns": host,
            "launches": launches,
            "graphs": graphs,
            "kernels": launched,
            "graphed": graphed,
            "call_ns": call,
            "collectives": int(collectives[number]),
            "longest": longest,
            "work": work[number],
        }


def _calls(trace: Trace, rows: Times, place: Times, count: int) -> list[tuple[int | None, int, int, int, int, int]]:
    """Of each step: from the first launch to the end of the last one, ns; launches; graphs among them; kernels; those
    that graphs launched; ns in the calls."""
    device, host = trace["device_events"], trace["host_events"]
    launch = device.at("launch", rows)
    known = np.flatnonzero(launch != NA)
    graph = trace.names.matching(lambda name: "GraphLaunch" in name)
    graphed = np.zeros(len(rows), np.bool_)
    graphed[known] = graph[host["name"][launch[known]]]
    found: list[tuple[int | None, int, int, int, int, int]] = []
    edges = np.searchsorted(place, np.arange(count + 1))  # events are in order of their start, as steps are
    for low, high in pairwise(edges.tolist()):
        own = launch[low:high]
        calls = np.unique(own[own != NA])
        begin, end = host["start"][calls], host["end"][calls]
        found.append(
            (
                int(end.max() - begin.min()) if len(calls) else None,
                len(calls),
                int(graph[host["name"][calls]].sum()),
                high - low,
                int(graphed[low:high].sum()),
                int((end - begin).sum()),
            )
        )
    return found


def _work(trace: Trace, rows: Times, place: Times, count: int) -> list[dict[str, list[int]]]:
    """Device time of each step by kind: in all, of kernels whose work is known, and what these would take at peak."""
    device, facts = trace["device_events"], kernel_facts(trace)
    category, floor = facts.category[rows], picked(facts.roofs.floor, rows)
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
