"""The places of a program that wait for its device: blocking calls by operator, copy and frequency."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import EVIDENCE
from gpuscope.analyzers.base.evidence import MIN_STEADY, Role, shown_by
from gpuscope.analyzers.base.lanes import RECORDING, HostWork, LaneView, step_at
from gpuscope.analyzers.device_time.gaps import host_activity
from gpuscope.analyzers.device_time.launching_threads import blocking_calls, most_launching
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import Finding, made
from gpuscope.schema.call_tree_section import BlockingCallEntry
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace import kinds
from gpuscope.trace.intervals import Spans, clip, intersect, union
from gpuscope.trace.kinds import is_step_range
from gpuscope.trace.launch_links import innermost, outermost
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import Mask, Table, Times, distinct_values, rows_of_rank, rows_where
from gpuscope.trace.trace import Trace
from gpuscope.welch import lower_median
from gpuscope.when_used import dataclass

# The parts of a lane that its figures per step are of, before the roles of the whole run are known.


@dataclass(frozen=True)
class Judged:
    """Start and end of each judged step, shape (n,), ns; one window where too few steps are steady."""

    start: Times
    end: Times
    steady: bool

    def __len__(self) -> int:
        return len(self.start)

    def place(self, at: Times) -> Times:
        """Which of them each instant lies in, shape as `at`; NA outside all."""
        return step_at(self.start, self.end, at)


def judged(view: LaneView) -> Judged:
    """The steady steps; else everything from the first step on; without steps the window."""
    steady = [step for step, role in zip(view.steps, view.roles, strict=True) if role == Role.STEADY]
    if len(steady) >= MIN_STEADY:
        bounds = np.array([(step.start, step.end) for step in steady], np.int64)
        return Judged(bounds[:, 0], bounds[:, 1], steady=True)
    proper = [step for step in view.steps if step.step != NA]
    first, last = (proper[0].start, proper[-1].end) if proper else view.window
    return Judged(np.array([first], np.int64), np.array([last], np.int64), steady=False)


# What the findings on options of DDP and FSDP have in common: ranges by name, and what an option costs.


def ranges(trace: Trace, rank: int, name: str) -> Times:
    """Rows of a rank's host events of that name, in order of start."""
    host = trace["host_events"]
    rows = np.flatnonzero((host["rank"] == rank) & (host["name"] == trace.names.find(name)))
    return np.asarray(rows[np.argsort(host["start"][rows], kind="stable")])


def covered(table: Table, rows: Times) -> Spans:
    """When any of these rows of a table lasted."""
    return union(table["start"][rows], table["end"][rows])


def finding_of(
    words: Callable[[float], Finding], view: LaneView, steps: Judged, lost: Spans | int, shown: list[Evidence]
) -> list[FindingEntry]:
    """The finding on an option that costs `lost`, of which what lies in the judged steps counts; none below the least
    share. `words` makes its record from the share."""
    judged = union(steps.start, steps.end)
    cost = lost if isinstance(lost, int) else intersect(lost, judged).total
    whole = int((steps.end - steps.start).sum())
    if cost < MIN_SHARE * whole:
        return []
    share = cost / whole
    return [
        made(
            words(share), ranks=[view.lane.rank], share=share, cost_ns=cost, mean_ns=cost // len(steps), evidence=shown
        )
    ]


def shown(trace: Trace, of: str, rows: Times, note: str) -> list[Evidence]:
    """The first of these rows of a table as evidence."""
    return [shown_by(trace, of, row, note) for row in rows[:EVIDENCE].tolist()]


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


# What the host did in the parts of a recording that are not steady: compiling, loading, first use, a checkpoint.
#
# Only while the device was idle, for that is what it costs. Compilation and loading show by name, first use by a
# runtime call of a millisecond or more that waits for no work of the device (lazy loading of a module, the context,
# the first allocation); elsewhere the innermost event that covers most of the idle time is named.

SLOW_CALL = 1_000_000
"""ns from which a runtime call that waits for nothing did something that is done once."""
LONG, MOST_LONG = 1.3, 20
"""Times the median step from which it is asked what a step holds, and how many of them, the longest first."""
NAMED = 3
"""Kinds of work named per part."""
_ONCE = (Role.SETUP, Role.WARMUP, Role.OUTLIER)


def work_done_once(trace: Trace, view: LaneView) -> Mapping[int, tuple[HostWork, ...]]:
    """By place among the lane's steps (`RECORDING` where too few are steady), the work that took longest."""
    parts = {
        place: (step.start, step.end)
        for place, (step, role) in enumerate(zip(view.steps, view.roles, strict=True))
        if role in _ONCE
    }
    lasts = np.array([step.end - step.start for step in view.steps], np.int64)
    # A step may be long for the run and not for its own file's other steps, and the other way round.
    long = np.flatnonzero(lasts > LONG * lower_median(lasts.tolist())) if len(lasts) else lasts
    for place in long[np.argsort(-lasts[long], kind="stable")][:MOST_LONG].tolist():
        parts.setdefault(place, (view.steps[place].start, view.steps[place].end))
    whole = judged(view)
    if not whole.steady:
        parts[RECORDING] = int(whole.start[0]), int(whole.end[-1])
    low, high = rows_of_rank(trace["host_events"], view.lane.rank)
    if not parts or low == high:
        return {}
    first_use = _first_use(trace, view)
    thread = most_launching(trace, view)
    found: dict[int, tuple[HostWork, ...]] = {}
    for place, (start, end) in parts.items():
        idle = clip(view.parts.idle, start, end)
        found[place] = _largest(trace, first_use, idle) or _covering(trace, view, thread, idle)
    return found


def _first_use(trace: Trace, view: LaneView) -> Times:
    """Rows of host events that compile, load, or use something for the first time."""
    host = trace["host_events"]
    compiles = trace.names.matching(kinds.is_compilation)

    def may_be(part: slice) -> Mask:
        slow = (host["category"][part] == Category.RUNTIME) & (host["end"][part] - host["start"][part] >= SLOW_CALL)
        return np.asarray(slow | compiles[host["name"][part]])

    rows = rows_where(*rows_of_rank(host, view.lane.rank), may_be)
    return rows[~np.isin(rows, blocking_calls(trace, view)) | compiles[host["name"][rows]]]


def _largest(trace: Trace, rows: Times, idle: Spans) -> tuple[HostWork, ...]:
    """The names under which most idle time lies, each instant under the innermost of the rows on its thread."""
    host = trace["host_events"]
    wanted = np.zeros(len(host), np.bool_)
    wanted[rows] = True
    spent: dict[str, int] = {}
    for thread in distinct_values(host["thread"][rows]).tolist():
        own = rows[host["thread"][rows] == thread]
        bounds = distinct_values(np.concatenate((host["start"][own], host["end"][own])))
        pieces = intersect(Spans(bounds[:-1], bounds[1:]), idle)
        if not len(pieces.start):
            continue
        middle = (pieces.start + pieces.end) // 2
        inner = innermost(host, wanted, np.full(len(middle), thread, np.int64), middle)
        for row, length in zip(inner.tolist(), (pieces.end - pieces.start).tolist(), strict=True):
            if row != NA:
                name = plain(trace.names[int(host["name"][row])])
                spent[name] = spent.get(name, 0) + length
    longest = sorted(spent.items(), key=lambda item: -item[1])[:NAMED]
    return tuple(HostWork(name, length, first_use=True) for name, length in longest)


def _covering(trace: Trace, view: LaneView, thread: int, idle: Spans) -> tuple[HostWork, ...]:
    """The innermost event that covers most of the longest idle stretch, where nothing is done for the first time: on
    the thread that launches what ends the stretch, else on `thread`."""
    if not len(idle.start):
        return ()
    place = int(np.argmax(idle.end - idle.start))
    start, end = int(idle.start[place]), int(idle.end[place])
    device = trace["device_events"]
    behind = view.rows[int(np.searchsorted(device["start"][view.rows], end)) :][:1]
    launch = device.at("launch", behind)
    ending = int(trace["host_events"]["thread"][launch[0]]) if len(launch) and launch[0] != NA else thread
    found = host_activity(trace, view, ending, start, end)
    return (HostWork(plain(found.name), found.covered or end - start, first_use=False),) if found.name else ()
