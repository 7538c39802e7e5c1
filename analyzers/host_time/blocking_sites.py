"""The places of a program that wait for its device: blocking calls by operator, copy and frequency."""

from __future__ import annotations

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.idleness.launching_threads import blocking_calls
from gpuscope.analyzers.host_time.judged_windows import Judged
from gpuscope.schema.host_calls_section import BlockingCallEntry
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Times, rows_of_rank
from gpuscope.trace.launch_links import innermost, outermost
from gpuscope.trace.naming.kinds import is_step_range
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace

KEPT = 8
"""Places kept per rank, those that block longest."""
NOTHING_TO_WAIT_FOR = 5_000
"""ns that a call which finds nothing to wait for costs at most."""
_VERSION = when_used.pattern(r"(_v\d+)+$")
"""nsys appends the version of the interface: `cudaMemcpy_v3020`."""

_Site = tuple[bool, int, int, int, int]
"""Whether it copies; codes of the kind of copy (else of the call), of the operator, of the outermost range and of the
collective operation that it waits for."""


def blocking_sites(trace: Trace, view: LaneView, judged: Judged) -> list[BlockingCallEntry]:
    """The blocking calls of a lane's launching threads in its judged part."""
    host = trace["host_events"]
    calls = blocking_calls(trace, view)
    if not len(calls):
        return []
    launch = trace["device_events"].at("launch", view.rows)
    threads = distinct_values(host["thread"][launch[launch != NA]])
    calls = calls[np.isin(host["thread"][calls], threads) & (judged.place(host["start"][calls]) != NA)]
    if not len(calls):
        return []
    rows = np.arange(*rows_of_rank(host, view.lane.rank))
    inner, outer = _around(trace, rows, calls)
    copy = _copies(trace, view, calls, inner)
    behind = _collectives(trace, view, calls)
    waited = (copy != NA) | (host["end"][calls] - host["start"][calls] > NOTHING_TO_WAIT_FOR)
    device = trace["device_events"]
    sites: dict[_Site, list[int]] = {}
    for place in np.flatnonzero(waited).tolist():
        around = (_name(trace, inner[place]), _name(trace, outer[place]))
        # The call that copies and the one that waits for it are one place.
        copies = copy[place] != NA
        own = int(device["copy_kind"][copy[place]] if copies else host["name"][calls[place]])
        sites.setdefault((bool(copies), own, *around, NO_NAME if copies else int(behind[place])), []).append(place)
    found = [_entry(trace, site, calls[places], copy[places], len(judged)) for site, places in sites.items()]
    return sorted(found, key=lambda entry: -entry["dur_ns"])[:KEPT]


def sites(trace: Trace, view: LaneView, rows: Times, calls: Times) -> list[str]:
    """The place of each of some blocking calls, as `site` names those of a report."""
    if not len(calls):
        return []
    inner, outer = _around(trace, rows, calls)
    copy = _copies(trace, view, calls, inner)
    behind = _collectives(trace, view, calls)
    host, device, names = trace["host_events"], trace["device_events"], trace.names
    found: list[str] = []
    for place, call in enumerate(calls.tolist()):
        operator, within = (_name(trace, int(row[place])) for row in (inner, outer))
        copies = copy[place] != NA
        own = int(device["copy_kind"][copy[place]] if copies else host["name"][call])
        found.append(
            site(
                plain(names[own]),
                names[operator] if operator != NO_NAME else None,
                names[within] if within not in (NO_NAME, operator) else None,
                names[int(behind[place])] if not copies and behind[place] != NO_NAME else None,
            )
        )
    return found


def site(what: str, operator: str | None, within: str | None, behind: str | None = None) -> str:
    """A place of the program in one string: the copy it makes (else the call), the ranges around it, and the collective
    it waits for."""
    return " | ".join((what, operator or "", within or "", *filter(None, (behind,))))


def _collectives(trace: Trace, view: LaneView, calls: Times) -> Times:
    """The operation of the collective that the thread of each blocking call launched last before it; NO_NAME where it
    launched something else, or has waited already."""
    host, device, table = trace["host_events"], trace["device_events"], trace["collectives"]
    found = np.full(len(calls), NO_NAME, np.int64)
    op_of = np.full(len(device), NO_NAME, np.int32)
    rows = np.flatnonzero(table["event"] != NA)
    op_of[table["event"][rows]] = table["op"][rows]
    events = view.rows[device.at("launch", view.rows) != NA]
    launch = device.at("launch", events)
    for which in distinct_values(host["thread"][calls]).tolist():
        own = np.flatnonzero(host["thread"][calls] == which)
        mine = host["thread"][launch] == which
        begins, ops = host["start"][launch[mine]], op_of[events[mine]]
        if not len(begins):
            continue
        order = np.argsort(begins, kind="stable")
        at = host["start"][calls[own]]
        last = np.searchsorted(begins[order], at, "left") - 1
        waits = np.sort(at)
        before = np.searchsorted(waits, at, "left") - 1
        waited = (before >= 0) & (waits[np.maximum(before, 0)] > begins[order][np.maximum(last, 0)])
        found[own] = np.where((last >= 0) & ~waited, ops[order][np.maximum(last, 0)], NO_NAME)
    return found


def _name(trace: Trace, row: int) -> int:
    return int(trace["host_events"]["name"][row]) if row != NA else NO_NAME


def _around(trace: Trace, rows: Times, calls: Times) -> tuple[Times, Times]:
    """The innermost and the outermost operator or range around each call, those of whole steps left out; NA: none."""
    host = trace["host_events"]
    named = np.zeros(len(host), np.bool_)
    named[rows] = np.isin(host["category"][rows], (Category.OP, Category.ANNOTATION))
    named &= ~trace.names.matching(is_step_range)[host["name"]]
    thread, at = host["thread"][calls], host["start"][calls]
    inner = innermost(host, named, thread, at)
    outer = np.full(len(calls), NA, np.int64)
    for which in np.unique(thread).tolist():
        own = np.flatnonzero(thread == which)
        top = outermost(host, np.flatnonzero(named & (host["thread"] == which)))
        place = np.searchsorted(host["start"][top], at[own], "right") - 1
        row = top[np.maximum(place, 0)] if len(top) else np.full(len(own), NA, np.int64)
        covered = (place >= 0) & (row != NA) & (host["end"][np.maximum(row, 0)] >= at[own])
        outer[own] = np.where(covered, row, NA)
    return inner, outer


def _copies(trace: Trace, view: LaneView, calls: Times, inner: Times) -> Times:
    """The copy that each blocking call makes, or that its thread launched last before it in the same operator."""
    host, device = trace["host_events"], trace["device_events"]
    events = view.rows[device.at("launch", view.rows) != NA]
    launch = device.at("launch", events)
    order = np.lexsort((host["start"][launch], host["thread"][launch]))
    events, launch = events[order], launch[order]
    found = np.full(len(calls), NA, np.int64)
    for which in distinct_values(host["thread"][calls]).tolist():
        own = np.flatnonzero(host["thread"][calls] == which)
        mine = np.flatnonzero(host["thread"][launch] == which)
        if not len(mine):
            continue
        place = np.searchsorted(host["start"][launch[mine]], host["start"][calls[own]], "right") - 1
        last = mine[np.maximum(place, 0)]
        itself = launch[last] == calls[own]
        # A wait for the copy before it is part of the same operator; without operators, nothing else is known.
        around = inner[own]
        together = (around == NA) | (host["start"][launch[last]] >= host["start"][np.maximum(around, 0)])
        is_copy: Mask = device["copy_kind"][events[last]] != NO_NAME
        keep = (place >= 0) & is_copy & (itself | together) & _crossing(trace, events[last])
        found[own] = np.where(keep, events[last], NA)
    return found


def _crossing(trace: Trace, events: Times) -> Mask:
    """Which copies cross between host and device."""
    crossing = trace.names.matching(lambda name: name.startswith(("HtoD", "DtoH")))
    return np.asarray(crossing[trace["device_events"]["copy_kind"][events]], np.bool_)


def _entry(trace: Trace, site: _Site, calls: Times, copies: Times, steps: int) -> BlockingCallEntry:
    host, device, names = trace["host_events"], trace["device_events"], trace.names
    copying, own, operator, within, behind = site
    duration = host["end"][calls] - host["start"][calls]
    found = np.unique(copies) if copying else calls
    sizes = device["bytes"][found] if copying else found[:0]
    sizes = sizes[sizes != NA]
    entry: BlockingCallEntry = {
        "call": plain(names[int(host["name"][calls[np.argmax(duration)]])]),
        "operator": names[operator] if operator != NO_NAME else None,
        "within": names[within] if within not in (NO_NAME, operator) else None,
        "copy": names[own] if copying else None,
        "bytes": int(np.median(sizes)) if len(sizes) else None,
        "count": len(found),
        "per_step": len(found) / max(steps, 1),
        "dur_ns": int(duration.sum()),
    }
    if behind != NO_NAME:
        entry["behind"] = names[behind]
    return entry


def plain(call: str) -> str:
    """A runtime call's name without the version that nsys appends."""
    return _VERSION.sub("", call)
