"""Operations of a data-parallel job from its own ranges, for jobs that no timer of operations recorded.

A step is `forward`, `backward` (once or more) and `optimizer`, as the ranges of those names say, and the
synchronisation of gradients. The time of each is what its rank spent between the end of the one before and its
own end. Exposed communication in the last backward is taken out of it, and put behind it as the synchronisation.

Only for jobs that communicate in the last backward alone. Under FSDP or tensor parallelism ranks wait for each other
in many places, which these ranges don't show: there are no operations then. Pipelines have their own
(`gpuscope.analyzers.step_graph.operations_from_ranges`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.step_graph import pipeline_messages
from gpuscope.analyzers.step_graph.dependencies import ALL_REDUCE, BACKWARD, CLIP, FORWARD, OPTIMIZER, WEIGHT
from gpuscope.analyzers.step_graph.pipeline_messages import by_messages
from gpuscope.trace.intervals import Spans, clip, intersect, measure_within, union
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.name_pool import NamePool
from gpuscope.trace.schema import NA, SCHEMAS, Category, Kind
from gpuscope.trace.steps import KERNEL_SEQUENCE
from gpuscope.trace.table import Array, Table, Times
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# The operations of a pipeline-parallel job from the ranges or messages around its computations, one file's ranks at
# a time.
#
# Known ranges: `forward#micro_batch=0,stage=1` (and `backward`, `backward_weight`) of gpuscope's runtime, and
# `PP:1F0` (F, B, I, W) of torch.distributed.pipelining's runtime schedules. A computation lasts from the first to the
# last work on the device that was launched in its range; waiting for a message before or after that is no part of it.

_OURS = when_used.pattern(r"(?:gpuscope::)?(forward|backward|backward_weight)#(?:.*,)?micro_batch=(\d+),stage=(\d+)")
_TORCH = when_used.pattern(r"PP:(\d+)([FBIW])(\d+)$")
"""torch.distributed.pipelining.schedules, `_get_profiler_function_name`: stage, action, micro-batch."""
_OPTIMIZER = when_used.pattern(r"(?:gpuscope::)?optimizer$|Optimizer\.step#")
_KINDS = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "backward_weight": WEIGHT,
    "F": FORWARD,
    "B": BACKWARD,
    "I": BACKWARD,
    "W": WEIGHT,
}
_INFERRED = {pipeline_messages.FORWARD: FORWARD, pipeline_messages.BACKWARD: BACKWARD}


@dataclass(frozen=True)
class _Row:
    """An operation of a rank; NA where it is of no micro-batch."""

    rank: int
    step: int
    op: str
    start: int
    end: int
    micro_batch: int = NA
    model_chunk: int = NA


def computation_of(name: str) -> tuple[str, int, int] | None:
    """(type, model chunk, micro-batch) of the computation that a range is around; None for any other range."""
    if match := _OURS.match(name):
        return _KINDS[match[1]], int(match[3]), int(match[2])
    if match := _TORCH.match(name):
        return _KINDS[match[2]], int(match[1]), int(match[3])
    return None


def pipeline_ranges_operations(trace: Trace, views: Sequence[LaneView]) -> Table:
    """The rows of `operations` of these ranks; none where neither ranges nor messages are around computations.

    `dp_rank` is the rank itself: only all ranks together show which pipelines there are. `stage` is the rank's
    lowest model chunk, absent where messages alone show the computations. Ranks keep their own clocks.
    """
    nothing = Table.empty(SCHEMAS["operations"])
    if len({view.lane.rank for view in views}) != len(views):
        return nothing
    stepped = [view for view in views if view.basis not in (None, KERNEL_SEQUENCE)]
    found = [row for view in stepped for row in _of_rank(trace, view)]
    ranges = bool(found)
    if not ranges:
        found = [row for view in stepped for row in _from_messages(trace, view)]
    if not found:
        return nothing
    found.sort(key=lambda row: (row.rank, row.start, row.end))
    chunks: dict[int, set[int]] = defaultdict(set)
    for row in found:
        if row.model_chunk != NA:
            chunks[row.rank].add(row.model_chunk)
    place = {(rank, chunk): at for rank, own in chunks.items() for at, chunk in enumerate(sorted(own))}
    numbers: Counter[tuple[int, int, str]] = Counter()
    seq = []
    for row in found:
        seq.append(numbers[row.rank, row.step, row.op])
        numbers[row.rank, row.step, row.op] += 1
    rank = [row.rank for row in found]
    values = {
        "rank": rank,
        "dp_rank": rank,
        "stage": [min(chunks[row.rank]) for row in found] if ranges else NA,
        "step": [row.step for row in found],
        "seq": seq,
        "start": [row.start for row in found],
        "end": [row.end for row in found],
        "op": trace.names.codes([row.op for row in found]),
        "micro_batch": [row.micro_batch for row in found],
        "chunk": [place.get((row.rank, row.model_chunk), NA) for row in found],
        "global_chunk": [row.model_chunk for row in found],
    }
    return Table.build(SCHEMAS["operations"], len(found), values)


def _of_rank(trace: Trace, view: LaneView) -> Iterator[_Row]:
    host = trace["host_events"]
    named = trace.names.matching(lambda name: computation_of(name) is not None)
    mine = (host["rank"] == view.lane.rank) & (host["category"] == Category.ANNOTATION)
    rows = np.flatnonzero(mine & named[host["name"]])
    ours = trace.names.matching(lambda name: _OURS.match(name) is not None)[host["name"][rows]]
    if ours.any():  # torch's own ranges lie around these
        rows = rows[ours]
    if not len(rows):
        return
    steps = _steps(trace, view, host["start"][rows])
    starts, ends = _device_spans(trace, view, rows)
    last: dict[int, int] = {}
    for row, step, start, end in zip(rows.tolist(), steps.tolist(), starts.tolist(), ends.tolist(), strict=True):
        if step == NA or start == NA:
            continue
        op, chunk, micro_batch = computation_of(trace.names[int(host["name"][row])]) or ("", NA, NA)
        last[step] = max(end, last.get(step, end))
        yield _Row(view.lane.rank, step, op, start, end, micro_batch, chunk)
    yield from _behind(trace, view, last)


def _from_messages(trace: Trace, view: LaneView) -> Iterator[_Row]:
    """The computations that messages are around; which stage's they are, only all ranks together show."""
    steps = trace["steps"]
    own = np.flatnonzero(steps["rank"] == view.lane.rank)
    windows = list(zip(steps["start"][own].tolist(), steps["end"][own].tolist(), strict=True))
    last: dict[int, int] = {}
    for step, computed in zip(steps["step"][own].tolist(), by_messages(trace, view, windows), strict=True):
        for kind, number, start, end in computed:
            last[step] = max(end, last.get(step, end))
            yield _Row(view.lane.rank, step, _INFERRED[kind], start, end, number)
    if last:
        yield from _behind(trace, view, last)


def _steps(trace: Trace, view: LaneView, at: Times) -> Times:
    """The step that the host was in at each instant; NA outside."""
    steps = trace["steps"]
    steps = steps.take(np.flatnonzero(steps["rank"] == view.lane.rank))
    place = np.searchsorted(steps["start"], at, "right") - 1
    inside = (place >= 0) & (at < steps["end"][np.maximum(place, 0)])
    return np.where(inside, steps["step"][np.maximum(place, 0)], NA)


def _device_spans(trace: Trace, view: LaneView, rows: Times) -> tuple[Times, Times]:
    """First start and last end of the computing that was launched within each range; NA where none was."""
    host, device = trace["host_events"], trace["device_events"]
    events = view.rows[(device.at("launch", view.rows) != NA) & (device["kind"][view.rows] == Kind.COMPUTE)]
    launched = host["start"][device.at("launch", events)]
    if view.lane.device == NA:  # pieces of one operator: each counts where it ran
        launched = device["start"][events]
    order = np.argsort(launched, kind="stable")
    events, launched = events[order], launched[order]
    low = np.searchsorted(launched, host["start"][rows], "left")
    high = np.searchsorted(launched, host["end"][rows], "right")
    start, end = np.full(len(rows), NA, np.int64), np.full(len(rows), NA, np.int64)
    for place, (first, behind) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if behind > first:
            start[place] = device["start"][events[first:behind]].min()
            end[place] = device["end"][events[first:behind]].max()
    return start, end


def _behind(trace: Trace, view: LaneView, last: dict[int, int]) -> Iterator[_Row]:
    """What follows a step's last computation: gradients synchronised, then the optimizer, with the time it waits for
    the others (the norm that gradients are clipped by) as an operation of its own."""
    host = trace["host_events"]
    named = trace.names.matching(lambda name: _OPTIMIZER.match(name) is not None)
    mine = (host["rank"] == view.lane.rank) & (host["category"] == Category.ANNOTATION)
    rows = np.flatnonzero(mine & named[host["name"]])
    if not len(rows):
        return
    steps = _steps(trace, view, host["start"][rows])
    starts, ends = _device_spans(trace, view, rows)
    spans: dict[int, tuple[int, int, int]] = {}  # per step: last computation's end, optimizer's start and end
    for step, computed in last.items():
        own = (steps == step) & (starts != NA) & (ends > computed)
        if own.any():
            spans[step] = computed, max(int(starts[own].min()), computed), int(ends[own].max())
    collectives = _collectives(trace, view.lane.rank)
    reduced = any(clip(collectives, computed, begin).total for computed, begin, _ in spans.values())
    clipped = any(clip(collectives, begin, end).total for _, begin, end in spans.values())
    exposed = intersect(view.parts.exposed_communication, collectives)
    for step, (computed, begin, end) in spans.items():  # the same operations in every step: that is the pattern
        if reduced:
            yield _Row(view.lane.rank, step, ALL_REDUCE, *_hull(clip(exposed, computed, begin), begin))
        if clipped:
            waited = _hull(clip(exposed, begin, end), begin)
            yield _Row(view.lane.rank, step, CLIP, *waited)
            begin = max(begin, waited[1])
        yield _Row(view.lane.rank, step, OPTIMIZER, begin, end)


def _hull(spans: Spans, otherwise: int) -> tuple[int, int]:
    """From the first start to the last end; an instant where there is nothing."""
    return (int(spans.start[0]), int(spans.end[-1])) if len(spans.start) else (otherwise, otherwise)


def _collectives(trace: Trace, rank: int) -> Spans:
    """When a rank was in collectives; messages between stages are none."""
    table = trace["collectives"]
    collective = trace.names.matching(lambda op: op not in POINT_TO_POINT)
    own = np.flatnonzero((table["rank"] == rank) & collective[table["op"]] & (table["start"] != NA))
    return union(table["start"][own], table["end"][own])


_RANGE = when_used.pattern(r"(?:gpuscope::)?(forward|backward|optimizer)$")
_TYPES = {"forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}


@dataclass(frozen=True)
class _Phase:
    """One range: its type, step, and from the end of the one before to its own, on the device's clock."""

    op: str
    step: int
    start: int
    end: int
    exposed: int
    """ns of exposed communication in it."""
    collectives: int
    """Collectives that began in it."""


def operations(trace: Trace, views: Sequence[LaneView]) -> Table:
    """The rows of `operations` of these ranks; none where one rank's are unknown.

    `dp_rank` is the rank itself, `stage` is 0. Ranks keep their own clocks. Of a pipeline's ranks, see
    `gpuscope.analyzers.step_graph.operations_from_ranges`.
    """
    if len(pipeline := pipeline_ranges_operations(trace, views)):
        return pipeline
    nothing = Table.empty(SCHEMAS["operations"])
    if not views or len({view.lane.rank for view in views}) != len(views):
        return nothing
    rows: list[tuple[int, int, str, int, int, int]] = []
    for view in views:
        phases = _phases(trace, view)
        last = {phase.step: place for place, phase in enumerate(phases) if phase.op == BACKWARD}
        behind = sum(phases[place].collectives for place in last.values())
        if not behind or behind < sum(phase.collectives for phase in phases):
            return nothing
        rows += [(view.lane.rank, *row) for row in _rows(phases, last)]
    rank, step, op, seq, start, end = (list(column) for column in zip(*sorted(rows, key=_order), strict=True))
    values = {
        "rank": rank,
        "dp_rank": rank,
        "stage": 0,
        "step": step,
        "seq": seq,
        "start": start,
        "end": end,
        "op": trace.names.codes(op),
    }
    return Table.build(SCHEMAS["operations"], len(rows), values)


def _order(row: tuple[int, int, str, int, int, int]) -> tuple[int, int]:
    return row[0], row[4]


def _rows(phases: Sequence[_Phase], last: dict[int, int]) -> Iterator[tuple[int, str, int, int, int]]:
    """(step, type, number, start, end) of each phase, and of the synchronisation behind the last backward."""
    numbers: Counter[tuple[int, str]] = Counter()
    for place, phase in enumerate(phases):
        own = phase.end - (phase.exposed if last.get(phase.step) == place else 0)
        yield phase.step, phase.op, numbers[phase.step, phase.op], phase.start, own
        numbers[phase.step, phase.op] += 1
        if last.get(phase.step) == place:
            yield phase.step, ALL_REDUCE, 0, own, phase.end


def _phases(trace: Trace, view: LaneView) -> list[_Phase]:
    """The ranges of one rank in order; empty where they overlap or no device work shows when they end."""
    host, steps = trace["host_events"], trace["steps"]
    steps = steps.take(steps["rank"] == view.lane.rank)
    rows, ops = _ranges(trace, view.lane.rank)
    if (
        view.basis in (None, KERNEL_SEQUENCE)
        or len(rows) < 2
        or bool((host["start"][rows][1:] < host["end"][rows][:-1]).any())
    ):
        return []
    at = np.searchsorted(steps["start"], host["start"][rows], "right") - 1
    inside = (at >= 0) & (host["start"][rows] < steps["end"][np.maximum(at, 0)])
    rows, ops, at = rows[inside], ops[inside], at[inside]
    ends = host["end"][rows] if view.lane.device == NA else _device_ends(trace, view, rows)
    if not len(ends):
        return []
    first = int(steps["start"][at[0]]) if view.lane.device == NA else view.window[0]
    starts = np.concatenate((np.array([min(max(first, view.window[0]), int(ends[0]))], np.int64), ends[:-1]))
    exposed = measure_within(view.parts.exposed_communication, starts, ends)
    begun = np.sort(trace["collectives"]["start"][trace["collectives"]["rank"] == view.lane.rank])
    collectives = np.searchsorted(begun, ends) - np.searchsorted(begun, starts)
    columns = (ops, steps["step"][at], starts, ends, exposed, collectives)
    return [_Phase(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def _ranges(trace: Trace, rank: int) -> tuple[Times, Array]:
    """Rows of the ranges of a rank, in order, and the type of operation that each is."""
    host = trace["host_events"]
    phases = {code: match[1] for code, name in enumerate(trace.names.names) if (match := _RANGE.match(name))}
    named = (host["rank"] == rank) & (host["category"] == Category.ANNOTATION)
    rows = np.flatnonzero(named & np.isin(host["name"], list(phases)))
    return rows, np.array([_TYPES[phases[code]] for code in host["name"][rows].tolist()], dtype=object)


def _device_ends(trace: Trace, view: LaneView, rows: Times) -> Times:
    """When all that was launched until the end of each range had run; empty where nothing was launched."""
    host, device = trace["host_events"], trace["device_events"]
    events = view.rows[device.at("launch", view.rows) != NA]
    launched = host["start"][device.at("launch", events)]
    order = np.argsort(launched, kind="stable")
    done = np.maximum.accumulate(device["end"][events[order]]) if len(events) else events
    upto = np.searchsorted(launched[order], host["end"][rows], "right")
    return done[upto - 1] if len(rows) and len(events) and int(upto[0]) > 0 else np.empty(0, np.int64)


def tied(table: Table, names: NamePool) -> Table:
    """`operations` of all ranks on one clock per step: synchronised gradients are there for all at once.

    Ends of one collective agree over ranks, whatever their clocks say, so nothing here rests on clocks.
    """
    synchronised = np.flatnonzero(table["op"] == names.find(ALL_REDUCE))
    ends: dict[tuple[int, int], int] = {}
    for row in synchronised.tolist():
        ends[int(table["rank"][row]), int(table["step"][row])] = int(table["end"][row])
    lead = int(table["rank"].min())
    shift = np.array(
        [
            ends.get((lead, step), 0) - ends.get((rank, step), ends.get((lead, step), 0))
            for rank, step in zip(table["rank"].tolist(), table["step"].tolist(), strict=True)
        ],
        np.int64,
    )
    return Table(table.schema, {**table.columns, "start": table["start"] + shift, "end": table["end"] + shift})
