"""Exchanges through host memory: device to host, MPI or a socket, host to device, one behind the other."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import EVIDENCE, FileAnalyzer, Need, Result
from gpuscope.analyzers.base.evidence import shown_by
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.host_time.blocking_sites import judged
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.device import HostStagedExchange
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Times
from gpuscope.trace.trace import Trace
from gpuscope.words import units

_SENDS = when_used.pattern(
    r"^P?MPI_(I?(b|s|r)?send|I?recv|Sendrecv(_replace)?|I?all(reduce|toallv?|gatherv?)|I?reduce(_scatter)?|I?bcast"
    r"|I?gatherv?|I?scatterv?|Wait(all|any|some)?)(\(|$|_)|^(sendto?|sendmsg|recvfrom|recv|recvmsg)$",
    re.IGNORECASE,
)
LEAST = 2
"""Exchanges in what is judged from which they are part of a loop."""
TIGHT = 0.6
"""Share of the time between the first copy's begin and the last one's end that copies and messages must take: what a
host computes in between needs its data."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `host_staged_exchange` per lane whose devices exchange data by way of the host."""
    result = Result(ANALYZER.name)
    for view in lanes:
        if view.lane.device != NA:
            result.findings += _of_lane(trace, view)
    return result


def _of_lane(trace: Trace, view: LaneView) -> list[FindingEntry]:
    host, names = trace["host_events"], trace.names
    calls = np.flatnonzero(
        (host["rank"] == view.lane.rank) & names.matching(lambda name: _SENDS.match(name) is not None)[host["name"]]
    )
    if not len(calls):
        return []
    steps = judged(view)
    found = [one for one in _exchanges(trace, view.rows, calls) if steps.place(np.array([one[0]], np.int64))[0] != NA]
    whole = int((steps.end - steps.start).sum())
    spent = sum(end - start for start, end, _, _ in found)
    copied = sum(own for _, _, own, _ in found)
    if len(found) < LEAST or spent < MIN_SHARE * whole:
        return []
    called = names[int(host["name"][found[0][3]])]
    words = HostStagedExchange(called, round(len(found) / len(steps)), spent / whole, copied / spent)
    evidence = [
        shown_by(trace, "host_events", message, f"{units.duration(own)} of it copies", (start, end))
        for start, end, own, message in sorted(found, key=lambda one: one[0] - one[1])[:EVIDENCE]
    ]
    return [
        made(
            words,
            ranks=[view.lane.rank],
            share=copied / whole,
            cost_ns=copied,
            mean_ns=copied // len(steps),
            evidence=evidence,
        )
    ]


def _exchanges(trace: Trace, rows: Times, calls: Times) -> list[tuple[int, int, int, int]]:
    """(begin, end, ns of copies, message's host event) of each sequence of a copy from the device, a message and a copy
    to it that no kernel interrupts and nothing else fills."""
    device, host, names = trace["device_events"], trace["host_events"], trace.names
    copies = rows[device["kind"][rows] == Kind.MEMORY]
    says = {way: names.matching(lambda name, way=way: name.startswith(way)) for way in ("DtoH", "HtoD")}
    way = np.where(
        says["DtoH"][device["copy_kind"][copies]], 1, np.where(says["HtoD"][device["copy_kind"][copies]], 2, 0)
    )
    kernels = rows[device["kind"][rows] != Kind.MEMORY]
    entries = [
        (int(device["start"][row]), int(device["end"][row]), int(code), int(row))
        for row, code in zip(copies.tolist(), way.tolist(), strict=True)
        if code
    ]
    entries += [(int(host["start"][row]), int(host["end"][row]), 3, int(row)) for row in calls.tolist()]
    entries += [(int(start), int(start), 4, -1) for start in device["start"][kernels].tolist()]
    entries.sort()
    found: list[tuple[int, int, int, int]] = []
    group: list[tuple[int, int, int, int]] = []
    for entry in [*entries, (0, 0, 4, -1)]:
        if entry[2] != 4:
            group.append(entry)
            continue
        found += _exchange(group)
        group = []
    return found


def _exchange(group: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """The exchange between two kernels, if these are one."""
    out = next((place for place, one in enumerate(group) if one[2] == 1), None)
    if out is None:
        return []
    message = next((one for one in group[out:] if one[2] == 3 and one[0] >= group[out][0]), None)
    back = [one for one in group if one[2] == 2 and message is not None and one[0] >= message[0]]
    if message is None or not back:
        return []
    begin, end = group[out][0], max(one[1] for one in back)
    inside = [one for one in group if begin <= one[0] < end]
    copied = sum(one[1] - one[0] for one in inside if one[2] != 3)
    spent = copied + sum(min(one[1], end) - one[0] for one in inside if one[2] == 3)
    return [(begin, end, copied, message[3])] if spent >= TIGHT * (end - begin) else []


ANALYZER = FileAnalyzer(
    "host_staging", run, (Need("device_events", "record the device's activity (nsys -t cuda,mpi,osrt)", optional=True),)
)
