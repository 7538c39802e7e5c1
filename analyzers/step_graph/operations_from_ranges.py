"""Operations of a data-parallel job from its own ranges, for jobs that no timer of operations recorded.

A step is `forward`, `backward` (once or more) and `optimizer`, as the ranges of those names say, and the
synchronisation of gradients. The time of each is what its rank spent between the end of the one before and its
own end. Exposed communication in the last backward is taken out of it, and put behind it as the synchronisation.

Only for jobs that communicate in the last backward alone. Under FSDP or tensor parallelism ranks wait for each other
in many places, which these ranges don't show: there are no operations then. Pipelines have their own
(`gpuscope.analyzers.step_graph.pipeline_ranges`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.step_graph import pipeline_ranges
from gpuscope.analyzers.step_graph.dependencies import ALL_REDUCE, BACKWARD, FORWARD, OPTIMIZER
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Array, Table, Times
from gpuscope.trace.intervals import measure_within
from gpuscope.trace.schema import NA, SCHEMAS, Category
from gpuscope.trace.steps import KERNEL_SEQUENCE
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

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
    `gpuscope.analyzers.step_graph.pipeline_ranges`.
    """
    if len(pipeline := pipeline_ranges.operations(trace, views)):
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
