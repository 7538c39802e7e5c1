"""What each rank's device computed in its steady steps, by operation and input shape: the table `work`.

It is all that stays of a file's kernels to compare ranks by: the same work done more slowly is another reason for
being late than more work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.base.analyzer import (
    DEVICE_EVENTS,
    Attributed,
    FileAnalyzer,
    Result,
    attribute,
    longest,
    only_present,
)
from gpuscope.analyzers.base.evidence import most_of, shown_by
from gpuscope.analyzers.base.lanes import LaneView, computing
from gpuscope.problems import reading
from gpuscope.schema.document import Evidence
from gpuscope.trace.intervals import Spans, clip, intersect, subtract, union
from gpuscope.trace.kernel_categories import OTHER, kernel_category
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import NO_NAME, computes
from gpuscope.trace.schema import NA, SCHEMAS, Kind
from gpuscope.trace.table import (
    Array,
    Mask,
    Table,
    Times,
    blocks,
    distinct,
    distinct_values,
    looked_up,
    picked,
    quarters,
)
from gpuscope.trace.trace import Trace

# Kernels that no rule knows and that behave like communication: counted as compute, named, and doubted.
#
# How many blocks a kernel has is in no table, so its place and its length tell: a stream of its own, beside compute,
# long
# where kernels are short, again in every step.

OWN_STREAM = 0.9
"""Share of a stream's time that kernels nobody knows must take."""
BESIDE = 0.5
"""Share of a kernel's time beside compute of other streams."""
LONGER = 3
"""Times the median kernel of the other streams."""
LONG_NS = 50_000
LEAST = 3
"""Fewer are no habit."""
IN_STEPS = 0.9


def unknown_communication_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A problem per kernel that looks like communication."""
    result = Result(UNKNOWN_COMMUNICATION_ANALYZER.name)
    for view in lanes:
        for name, count in _alike(trace, view).items():
            result.problem(reading.LOOKS_LIKE_COMMUNICATION, count, kernel=name)
    return result


def _alike(trace: Trace, view: LaneView) -> dict[str, int]:
    device = trace["device_events"]
    rows = view.rows[(device.at("kind", view.rows) == Kind.COMPUTE) & device.known("stream")[view.rows]]
    stream = picked(device.columns["stream"], rows)  # known in all
    streams = distinct_values(stream)
    if len(streams) < 2:
        return {}
    unknown = looked_up(trace.names.matching(lambda name: kernel_category(name) == OTHER), device.at("name", rows))
    if not unknown.any():
        return {}
    took = device.at("end", rows) - device.at("start", rows)
    spent = {int(own): int(took.sum(where=stream == own)) for own in streams}
    main = max(spent, key=lambda own: spent[own] - int(took.sum(where=(stream == own) & unknown)))
    found: dict[str, int] = {}
    for own in streams.tolist():
        there = stream == own
        if own == main or took.sum(where=there & unknown) < OWN_STREAM * spent[own]:
            continue
        strange = rows[there & unknown]
        names = device["name"][strange]
        for code in distinct_values(names).tolist():
            mine = strange[names == code]
            middle = float(np.median(device["end"][mine] - device["start"][mine]))
            if middle < LONG_NS or not _again(device["start"][mine], view):
                continue
            if middle < LONGER * float(np.median(took[~there], overwrite_input=True)):
                continue
            others, spans = rows[~there], union(device["start"][mine], device["end"][mine])
            compute = union(device["start"][others], device["end"][others])
            if intersect(spans, compute).total >= BESIDE * spans.total:
                found[trace.names[code]] = len(mine)
    return found


def _again(starts: Times, view: LaneView) -> bool:
    """Whether it runs in nearly every step."""
    steps = view.judged_steps
    if len(starts) < LEAST:
        return False
    hit: Mask = np.array([bool(((starts >= step.start) & (starts < step.end)).any()) for step in steps])
    return float(hit.mean()) >= IN_STEPS


UNKNOWN_COMMUNICATION_ANALYZER = FileAnalyzer(
    "unknown_communication", unknown_communication_run, (replace(DEVICE_EVENTS, optional=True),)
)


# Exposed memory time: unified-memory paging apart from copies and memsets.
#
# Allocator time is idle in the breakdown and memory by class; it is found with the other idle time.


def exposed_memory_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """Split each lane's exposed memory time into `copy` and `paging`."""
    result = Result(EXPOSED_MEMORY_ANALYZER.name)
    device = trace["device_events"]
    migrating = trace.names.matching(lambda kind: kind.startswith("migration"))
    for view in lanes:
        memory = view.rows[device["kind"][view.rows] == Kind.MEMORY]
        known = device.known("copy_kind")[memory]
        migration = known & migrating[np.where(known, device["copy_kind"][memory], 0)] if len(memory) else known
        copies = memory[~migration]
        exposed = view.parts.exposed_memory
        copying = intersect(exposed, union(device["start"][copies], device["end"][copies]))
        paging = subtract(exposed, copying)
        result.causes[view.key] = only_present(
            {
                "copy": _attributed(trace, view, copies, copying),
                "paging": _attributed(trace, view, memory[migration], paging),
            }
        )
    return result


def _attributed(trace: Trace, view: LaneView, rows: Times, exposed: Spans) -> Attributed:
    device = trace["device_events"]
    found = attribute(exposed, view, _evidence(trace, rows, exposed))
    busy = clip(union(device["start"][rows], device["end"][rows]), *view.window)
    return replace(found, operations=len(rows), busy=busy.total)


def _evidence(trace: Trace, rows: Times, spans: Spans) -> list[Evidence]:
    device, names = trace["device_events"], trace.names
    found: list[Evidence] = []
    for index in longest(spans).tolist():
        start, end = int(spans.start[index]), int(spans.end[index])
        at = rows[(device["start"][rows] < end) & (device["end"][rows] > start)]
        row = int(at[most_of(device["start"][at], device["end"][at], (start, end))])
        kind, size = names[int(device["copy_kind"][row])], int(device["bytes"][row])
        note = f"{kind}, {size} bytes" if size >= 0 else kind
        found.append(shown_by(trace, "device_events", row, note, (start, end)))
    return found


EXPOSED_MEMORY_ANALYZER = FileAnalyzer("memory", exposed_memory_run, (DEVICE_EVENTS,), causes=("copy", "paging"))


KEPT = 300
"""Operations kept per rank, the costliest: more of them change no comparison."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table `work` of a file's lanes."""
    parts = [_of_lane(trace, view) for view in lanes]
    schema = SCHEMAS["work"]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns} if parts else {}
    table = Table(schema, columns) if parts else Table.empty(schema)
    return Result(WORK_PROFILE_ANALYZER.name, tables={"work": table})


def _of_lane(trace: Trace, view: LaneView) -> Table:
    rows, width = computing(trace, view), len(trace.names) + 1
    if view.lane.device == NA:  # a call that issues communication is an operator of its thread, and no work
        issues = trace.names.matching(lambda name: name.startswith("c10d::"))
        rows = rows[~issues[trace["device_events"]["name"][rows]]]
    keys, spent, count = (_by_shape if len(trace["shapes"]) else _by_name)(trace, rows, width)
    kept = np.argsort(-spent, kind="stable")[:KEPT]
    names = keys[kept] // width - 1, keys[kept] % width - 1
    return Table.build(
        SCHEMAS["work"],
        len(kept),
        {
            "rank": view.lane.rank,
            "operation": names[0],
            "dims": names[1],
            "elements": _elements(trace, names[1]),
            "count": count[kept],
            "dur": np.rint(spent[kept]).astype(np.int64),
            "steps": len(view.judged_steps),
        },
    )


def _by_name(trace: Trace, rows: Times, width: int) -> tuple[Times, Array, Times]:
    """As `_by_shape`, where no shapes were recorded: every kernel is a piece of work of its own."""
    device = trace["device_events"]
    spent, count = np.zeros(width), np.zeros(width, np.int64)
    for block in blocks(0, len(rows)):
        place = device["name"][rows[block]] - NO_NAME  # from 0 on, where a name is absent
        spent += np.bincount(place, device["end"][rows[block]] - device["start"][rows[block]], width)
        count += np.bincount(place, minlength=width)
    places = np.flatnonzero(count)
    return places * width + NO_NAME + 1, spent[places], count[places]


def _by_shape(trace: Trace, rows: Times, width: int) -> tuple[Times, Array, Times]:
    """Operations with their shapes as one key each, ascending; their device time, ns; how many pieces of work."""
    device = trace["device_events"]
    operation, dims, instance = _operations(trace, rows)
    keys, which = distinct((operation.astype(np.int64) + 1) * width + dims + 1)
    spent = np.bincount(which, weights=device["end"][rows] - device["start"][rows], minlength=len(keys))
    # The kernels of one operator are one piece of work.
    low = int(instance.min(initial=0))
    pieces = int(instance.max(initial=0)) - low + 1
    count = np.bincount(distinct_values(which * pieces + (instance - low)) // pieces, minlength=len(keys))
    return keys, spent, count


def _operations(trace: Trace, rows: Times) -> tuple[Array, Array, Times]:
    """Per device event the code of its operation, of its input dimensions (or NO_NAME), and what makes it one piece
    of work with others: its operator's row, or itself."""
    device, host, shapes = trace["device_events"], trace["host_events"], trace["shapes"]
    operation = device["name"][rows]
    dims, instance = np.full(len(rows), NO_NAME, np.int32), -1 - rows
    shaped = np.zeros(len(host), np.bool_)
    shaped[shapes["event"][trace.names.matching(computes)[host["name"][shapes["event"]]]]] = True
    dims_of = np.full(len(host), NO_NAME, np.int32)
    dims_of[shapes["event"]] = shapes["dims"]
    for part in quarters(len(rows)):
        launch = device.at("launch", rows[part])
        linked = np.flatnonzero(launch != NA)
        call = launch[linked]
        operator = innermost(host, shaped, host["thread"][call], host["start"][call])
        # Where the training thread is the device, an operator is its own work, and what it calls may have the shapes.
        own = np.flatnonzero((operator == NA) & (device.at("device", rows[part][linked]) == NA))
        operator[own] = _first_within(host, shaped, call[own])
        found = linked[operator != NA] + part.start
        operator = operator[operator != NA]
        operation[found], dims[found], instance[found] = host["name"][operator], dims_of[operator], operator
    return operation, dims, instance


def _first_within(host: Table, shaped: Mask, calls: Times) -> Times:
    """The first host event with shapes that begins within each call on its thread; NA where there is none."""
    found = np.full(len(calls), NA, np.int64)
    candidates = np.flatnonzero(shaped)
    for thread in distinct_values(host["thread"][calls]).tolist():
        own = np.flatnonzero(host["thread"][calls] == thread)
        inner = candidates[host["thread"][candidates] == thread]
        inner = inner[np.argsort(host["start"][inner], kind="stable")]
        if len(inner):
            place = np.searchsorted(host["start"][inner], host["start"][calls[own]], "left")
            row = inner[np.minimum(place, len(inner) - 1)]
            inside = (place < len(inner)) & (host["end"][row] <= host["end"][calls[own]])
            found[own] = np.where(inside, row, NA)
    return found


def _elements(trace: Trace, dims: Times) -> Times:
    """Elements of an operator's inputs by the codes of their dimensions; NA where these are not recorded."""
    return np.array([NA if code == NO_NAME else _count(trace.names[code]) for code in dims.tolist()], np.int64)


def _count(text: str) -> int:
    try:
        inputs = json.loads(text)
    except ValueError:
        return NA
    shapes = [shape for shape in inputs if isinstance(shape, list) and all(isinstance(n, int) for n in shape)]
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes if shape)


WORK_PROFILE_ANALYZER = FileAnalyzer("work", run, (DEVICE_EVENTS,), large=True)


ANALYZERS = (EXPOSED_MEMORY_ANALYZER, UNKNOWN_COMMUNICATION_ANALYZER, WORK_PROFILE_ANALYZER)
