"""What each rank's device computed in its steady steps, by operation and input shape: the table `work`.

It is all that stays of a file's kernels to compare ranks by: the same work done more slowly is another reason for
being late than more work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView, computing
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.trace.columns.distinct import distinct, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Mask, Table, Times, blocks, quarters
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming.shaped_operators import computes
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.trace import Trace

KEPT = 300
"""Operations kept per rank, the costliest: more of them change no comparison."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table `work` of a file's lanes."""
    parts = [_of_lane(trace, view) for view in lanes]
    schema = SCHEMAS["work"]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns} if parts else {}
    table = Table(schema, columns) if parts else Table.empty(schema)
    return Result(ANALYZER.name, tables={"work": table})


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


ANALYZER = FileAnalyzer("work", run, (DEVICE_EVENTS,), large=True)
