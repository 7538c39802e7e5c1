"""Exposed communication over the ranks of a run: waiting apart from transferring, latency from bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from analyzers import clocks
from analyzers.alpha_beta import CostModel, assume, fit
from analyzers.base import Attributed, LaneKey, Result, RunAnalyzer, attribute, longest, only_present
from analyzers.causes import UNTOLD_COMMUNICATION
from analyzers.matching import Instance, Matched, match
from analyzers.summary import LaneSummary
from gpuscope.bandwidth import algbw, busbw_factor
from gpuscope.report.schema import CollectiveEntry, Evidence, StragglerEntry
from gpuscope.trace.intervals import EMPTY, Spans, intersect, subtract, union
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.names import NO_NAME
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Times
from gpuscope.trace.trace import Trace

MAX_CHANCE = 0.05
"""Probability by chance below which a rank that comes last so often does so recurrently."""
PRIORITY = ("bandwidth", "latency", "pipeline_bubble", "straggler", UNTOLD_COMMUNICATION)
"""Where several operations cover an exposed instant: data that moves counts before waiting, what is known
before what is not."""


@dataclass(frozen=True)
class Told:
    """Per row of `collectives`: the instant at which waiting turns into transferring, on the row's own
    clock, and the cause of the time before and after it."""

    turn: Times
    before: list[str]
    after: list[str]


def run(trace: Trace, lanes: Sequence[LaneSummary]) -> Result:
    """Causes of exposed communication per lane, the table of operations, the ranks others waited for."""
    result = Result(ANALYZER.name)
    matched = match(trace)
    clock = clocks.estimate(trace, matched.instances)
    arrived = _arrivals(trace, matched, clock)
    models = _models(trace, arrived)
    told = _tell(trace, matched, arrived, models)
    for lane in lanes:
        result.causes[lane.key] = _attribute(trace, lane, told)
    causes = {cause for found in result.causes.values() for cause in found}
    assumed = sorted({model.basis for model in models.values() if model.assumed})
    if assumed:
        result.assumed = tuple(cause for cause in ("latency", "bandwidth") if cause in causes)
    if result.assumed:
        result.problem(
            "info",
            "assumed_link",
            sum(model.assumed for model in models.values()),
            "operations whose fixed cost and bandwidth are not fitted, for want of different message sizes, "
            f"but {'; '.join(assumed)}",
        )
    result.sections["collectives"] = _table(trace, matched, arrived)
    result.sections["stragglers"] = _stragglers(trace, matched, clock, lanes)
    result.sections["clock_error_ns"] = clock.error
    return result


def _arrivals(trace: Trace, matched: Matched, clock: clocks.Clocks) -> Times:
    """For each row, when the last rank of its instance arrived, on the row's own clock; NA if unmatched."""
    table = trace["collectives"]
    arrived = np.full(len(table), NA, np.int64)
    for instance in matched.instances:
        rows = instance.rows
        offsets = np.array([clock.offset.get(rank, 0) for rank in table["rank"][rows].tolist()], np.int64)
        arrived[rows] = (table["start"][rows] - offsets).max() + offsets
    return arrived


def _transfers(trace: Trace, matched: Matched) -> Times:
    """For each row, its instance's shortest duration over the ranks, in ns; NA if unmatched."""
    table = trace["collectives"]
    transfer = np.full(len(table), NA, np.int64)
    for instance in matched.instances:
        transfer[instance.rows] = (table["end"][instance.rows] - table["start"][instance.rows]).min()
    return transfer


def _bus_bytes(trace: Trace, row: int) -> float | None:
    """Bytes on the bus: size × nccl-tests' factor; None where size or group is not recorded."""
    table = trace["collectives"]
    size, members = int(table["bytes"][row]), int(table["group_size"][row])
    if size == NA:
        return None
    op = trace.names[int(table["op"][row])]
    factor = busbw_factor(op, members if members != NA else 2)
    return None if factor is None else size * factor


def _models(trace: Trace, arrived: Times) -> Mapping[tuple[int, int], CostModel]:
    """A cost model per (operation, group): fitted where sizes vary, else assumed."""
    table = trace["collectives"]
    rows_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in range(len(table)):
        rows_of[int(table["op"][row]), int(table["group"][row])].append(row)
    models: dict[tuple[int, int], CostModel] = {}
    ranks = trace["ranks"]
    for key, rows in rows_of.items():
        own = np.array(rows)
        sizes = np.array([_bus_bytes(trace, row) or 0.0 for row in rows])
        start = np.maximum(table["start"][own], np.where(arrived[own] == NA, table["start"][own], arrived[own]))
        first = int(np.flatnonzero(ranks["rank"] == table["rank"][rows[0]])[0])
        members = int(table["group_size"][rows[0]])
        models[key] = fit(sizes, table["end"][own] - start) or assume(
            trace.names[int(ranks["backend"][first])],
            trace.names[int(ranks["device_name"][first])] if int(ranks["device"][first]) != NA else "",
            members if members != NA else 2,
        )
    return models


def _tell(trace: Trace, matched: Matched, arrived: Times, models: Mapping[tuple[int, int], CostModel]) -> Told:
    """Matched: the last arrival divides waiting from transferring. Unmatched: the transfer is what the cost
    model expects for the size, at the end; what goes beyond it no single rank can tell."""
    table = trace["collectives"]
    turn = table["end"].copy()
    transfer = _transfers(trace, matched)
    before, after = ([UNTOLD_COMMUNICATION] * len(table) for _ in range(2))
    for row in range(len(table)):
        op, start, end = trace.names[int(table["op"][row])], int(table["start"][row]), int(table["end"][row])
        size = _bus_bytes(trace, row)
        model = models[int(table["op"][row]), int(table["group"][row])]
        if size is not None:
            seen = int(transfer[row]) if arrived[row] != NA else None
            after[row] = "latency" if model.latency_bound(size, seen) else "bandwidth"
        elif op == "barrier":  # it moves nothing: all of it is fixed cost
            after[row] = "latency"
        if arrived[row] != NA:
            turn[row] = min(max(int(arrived[row]), start), end)
            before[row] = "pipeline_bubble" if op in POINT_TO_POINT else "straggler"
        elif size is not None:
            turn[row] = max(start, end - model.expected(size))
    return Told(turn, before, after)


def _attribute(trace: Trace, lane: LaneSummary, told: Told) -> dict[str, Attributed]:
    """Cut a lane's exposed communication by cause."""
    exposed = lane.exposed_communication
    if not len(exposed.start):
        return {}
    device = trace["device_events"]
    mine = (device["rank"] == lane.rank) & (device["device"] == lane.device) & (device["kind"] == Kind.COMMUNICATION)
    events = np.flatnonzero(mine)
    row_of = _collective_of(trace, events)
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event, row in zip(events.tolist(), row_of.tolist(), strict=True):
        start, end = int(device["start"][event]), int(device["end"][event])
        if row == NA:
            spans[UNTOLD_COMMUNICATION].append((start, end))
            continue
        # On the CPU an event can be a piece of its collective.
        turn = min(max(int(told.turn[row]), start), end)
        spans[told.before[row]].append((start, turn))
        spans[told.after[row]].append((turn, end))
    left = exposed
    found: dict[str, Attributed] = {}
    for cause in PRIORITY:
        pairs = np.array(spans[cause], np.int64).reshape(-1, 2)
        covered = intersect(left, union(pairs[:, 0], pairs[:, 1])) if len(pairs) else EMPTY
        left = subtract(left, covered)
        found[cause] = attribute(covered, lane, _evidence(trace, lane.key, events, covered, cause))
    return only_present(found)


def _collective_of(trace: Trace, events: Times) -> Times:
    """For each device event, its row in `collectives`, through the event itself or its host call; or NA."""
    device, table = trace["device_events"], trace["collectives"]
    by_event = {event: row for row, event in enumerate(table["event"].tolist()) if event != NA}
    by_host = {event: row for row, event in enumerate(table["host_event"].tolist()) if event != NA}
    launches = device["launch"][events].tolist()
    found = (
        by_event.get(event, by_host.get(launch, NA)) for event, launch in zip(events.tolist(), launches, strict=True)
    )
    return np.fromiter(found, np.int64, len(events))


_NOTES = {
    "straggler": "waits until the last rank arrives",
    "pipeline_bubble": "waits for a neighbouring stage",
    "latency": "too small for its fixed cost",
    "bandwidth": "limited by bytes over the link",
    UNTOLD_COMMUNICATION: "neither waiting nor transferring can be told from this rank's record",
}


def _evidence(trace: Trace, key: LaneKey, events: Times, spans: Spans, cause: str) -> list[Evidence]:
    device = trace["device_events"]
    found: list[Evidence] = []
    for index in longest(spans).tolist():
        start, end = int(spans.start[index]), int(spans.end[index])
        at = events[(device["start"][events] < end) & (device["end"][events] > start)]
        name = trace.names[int(device["name"][at[0]])] if len(at) else ""
        found.append({"rank": key[0], "start_ns": start, "dur_ns": end - start, "name": name, "note": _NOTES[cause]})
    return found


def _table(trace: Trace, matched: Matched, arrived: Times) -> list[CollectiveEntry]:
    """One row per operation and group, the costliest first."""
    table = trace["collectives"]
    instance_of = np.full(len(table), NA, np.int64)
    for index, instance in enumerate(matched.instances):
        instance_of[instance.rows] = index
    groups: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for row in range(len(table)):
        group = int(table["group"][row])
        label = int(table["group_description"][row]) if table["group_description"][row] != NO_NAME else group
        groups[trace.names[int(table["op"][row])], trace.names[label] if label != NO_NAME else None].append(row)
    entries = [
        _entry(trace, matched.instances, op, group, np.array(rows), instance_of, arrived)
        for (op, group), rows in groups.items()
    ]
    return sorted(entries, key=lambda entry: -entry["dur_ns"])


def _entry(
    trace: Trace,
    instances: Sequence[Instance],
    op: str,
    group: str | None,
    rows: Times,
    instance_of: Times,
    arrived: Times,
) -> CollectiveEntry:
    table = trace["collectives"]
    duration = table["end"][rows] - table["start"][rows]
    told = instance_of[rows] != NA
    own = [instances[index] for index in np.unique(instance_of[rows][told]).tolist()]
    lone = rows[~told]
    # Unmatched rows are instances of their own; the ranks of a matched instance are one.
    representative = np.concatenate((np.array([instance.rows[0] for instance in own], np.int64), lone))
    size = table["bytes"][representative]
    wait = transfer = None
    if len(own) and not len(lone):
        wait = int(np.clip(arrived[rows] - table["start"][rows], 0, duration).sum())
        transfer = sum(int((table["end"][i.rows] - table["start"][i.rows]).min()) for i in own)
    time = transfer if transfer is not None else int(duration.sum()) / max(len(rows) / max(len(representative), 1), 1)
    known = bool(len(size)) and bool((size != NA).all()) and time > 0
    total = int(size.sum()) if known else None
    members = int(table["group_size"][representative[0]])
    factor = busbw_factor(op, members) if members != NA else None
    rate = algbw(total, time) if total is not None else None
    return {
        "op": op, "group": group, "count": len(representative), "bytes": total, "dur_ns": int(duration.sum()),
        "wait_ns": wait, "transfer_ns": transfer, "algbw_gbps": rate,
        "busbw_gbps": rate * factor if rate is not None and factor is not None else None,
    }  # fmt: skip


def _stragglers(
    trace: Trace, matched: Matched, clock: clocks.Clocks, lanes: Sequence[LaneSummary]
) -> list[StragglerEntry]:
    """The ranks that came last, with the wait they caused; those that do so beyond chance are recurrent."""
    table = trace["collectives"]
    caused: dict[int, int] = defaultdict(int)
    last_of: dict[int, list[int]] = defaultdict(list)
    sizes: list[int] = []
    for instance in matched.instances:
        if instance.op == "send_recv":  # its wait is the pipeline's
            continue
        ranks = table["rank"][instance.rows]
        offsets = np.array([clock.offset.get(rank, 0) for rank in ranks.tolist()], np.int64)
        starts = table["start"][instance.rows] - offsets
        last = int(np.argmax(starts))
        wait = int((starts[last] - starts).sum())
        if wait > (clock.error or 0):
            caused[int(ranks[last])] += wait
            last_of[int(ranks[last])].append(int(starts[last]))
            sizes.append(len(ranks))
    if not sizes:
        return []
    chance = 1 / max(sizes)
    entries: list[StragglerEntry] = []
    for rank, wait in caused.items():
        often = _probability(len(last_of[rank]), len(sizes), chance) < MAX_CHANCE
        entries.append({"rank": rank, "caused_wait_ns": wait, "phase": None,
                        "recurrent": often and _steps_touched(last_of[rank], lanes, rank) >= 2})  # fmt: skip
    return sorted(entries, key=lambda entry: -entry["caused_wait_ns"])


def _probability(hits: int, trials: int, chance: float) -> float:
    """Probability of at least so many hits by chance (binomial)."""
    return float(sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits, trials + 1)))


def _steps_touched(times: Sequence[int], lanes: Sequence[LaneSummary], rank: int) -> int:
    steps = next((lane.steps for lane in lanes if lane.rank == rank), ())
    return len({step.step for step in steps for time in times if step.start <= time < step.end})


ANALYZER = RunAnalyzer("communication", run)
