"""Exposed communication over the ranks of a run: waiting or transferring, latency or bandwidth, and the ranks
whose lateness caused the waiting."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.analyzer import Attributed, LaneKey, Result, attribute, longest, only_present
from gpuscope.analyzers.base.evidence import most_of, shown_by
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.base.needs import Need, any_of
from gpuscope.analyzers.base.sections import (
    CLOCK_ERROR,
    COLLECTIVES,
    RANK_STEPS,
    STRAGGLERS,
    STRAGGLERS_TESTABLE,
    WAITS_WITHOUT_CORE,
)
from gpuscope.analyzers.collectives.root_cause import doing, trace_waits
from gpuscope.analyzers.collectives.stragglers import rank_steps, stragglers, waits_without_core
from gpuscope.analyzers.collectives.transfers import BUBBLE, CAUSES, Attribution, attribute_transfers
from gpuscope.analyzers.facts.matching import Matched, report_unmatched
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.facts.waits import Waits, rows_by_lane
from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION
from gpuscope.collective_costs.bus_bandwidth import algbw, busbw_factor
from gpuscope.problems import collectives
from gpuscope.schema.document import CollectiveEntry, Evidence
from gpuscope.trace.columns.distinct import distinct, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Table, Times, rows_of_rank
from gpuscope.trace.intervals import EMPTY, Spans, intersect, join, measure_within, subtract, union
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace
from gpuscope.words import units


def run(facts: RunFacts) -> Result:
    """Causes of exposed communication per lane, the table of operations, the ranks others waited for."""
    result = Result(ANALYZER.name)
    trace = facts.trace
    attribution = attribute_transfers(trace, facts.waits, facts.matched.exchanged)
    row_of_event = _row_of_event(trace)
    for lane, held in _held_up(facts, attribution):
        result.causes[lane.key] = _attribute(trace, lane, attribution, row_of_event, held)
    _report_assumed_links(result, attribution)
    report_unmatched(result, facts.matched)
    result.sections[COLLECTIVES] = _table(trace, facts.matched, facts.waits)
    result.sections[CLOCK_ERROR] = facts.clocks.error
    _report_stragglers(result, facts)
    return result


def _report_assumed_links(result: Result, attribution: Attribution) -> None:
    causes = {cause for found in result.causes.values() for cause in found}
    assumed = sorted({model.basis for model in attribution.models if model.assumed})
    if assumed:
        result.assumed = tuple(cause for cause in ("latency", "bandwidth") if cause in causes)
    if result.assumed:
        count = sum(model.assumed for model in attribution.models)
        result.problem(collectives.ASSUMED_LINK, count, links="; ".join(assumed))


def _report_stragglers(result: Result, facts: RunFacts) -> None:
    """Sections `stragglers` and `rank_steps`. Messages between stages are the pipeline's, not a straggler's."""
    trace, lanes = facts.trace, facts.lanes
    matched, measured, clock = facts.matched, facts.waits, facts.clocks
    found = matched.instances
    suffered = found.reduce(np.add, measured.wait[found.rows])
    claimed = ~found.staged & (suffered > 0)
    counted = claimed & measured.certain
    doubtful = int((claimed & ~measured.certain).sum())
    result.problem(collectives.LAST_RANK_UNKNOWN, doubtful, clock_error=units.duration(clock.error))
    traced = trace_waits(trace, matched, measured, clock, counted)
    late = stragglers(facts, traced, doing(trace, traced))
    result.sections[STRAGGLERS] = late.entries
    result.sections[STRAGGLERS_TESTABLE] = late.testable
    if facts.core_times:
        result.sections[WAITS_WITHOUT_CORE] = waits_without_core(facts)
    result.sections[RANK_STEPS] = rank_steps(trace, measured, traced, lanes) if len(found) else []


def _held_up(facts: RunFacts, attribution: Attribution) -> list[tuple[LaneSummary, Spans]]:
    """Per lane, the stretches in which one of its collectives waits for a rank that no communication holds up then:
    what others of them transfer meanwhile makes nothing later. Only of waits beside such a transfer, and on CPU:
    there a collective is in flight from its issue on, behind those before it; a device's kernel begins after them."""
    table, clock, waits = facts.trace["collectives"], facts.clocks, facts.waits
    found, exposed = facts.matched.instances, dict[int, Spans]()
    for lane in facts.lanes:
        exposed[lane.rank] = join(exposed.get(lane.rank, EMPTY), lane.exposed_communication)
    late = np.full(len(table), NA, np.int64)
    own = np.flatnonzero(~found.staged[found.owner] & (waits.wait[found.rows] > 0))
    late[found.rows[own]] = table["rank"][waits.last[found.owner[own]]]
    held = []
    for lane, rows in rows_by_lane(facts.trace, facts.lanes):
        transfers = intersect(lane.exposed_communication, union(attribution.turn[rows], attribution.over[rows]))
        waiting = rows[(late[rows] != NA) & (lane.device == NA)]
        waiting = waiting[measure_within(transfers, table["start"][waiting], attribution.turn[waiting]) > 0]
        spans = [EMPTY]
        for rank in distinct_values(late[waiting]).tolist():
            at = waiting[late[waiting] == rank]
            start, end = (
                clock.local(np.full(len(of), lane.rank), clock.common(np.full(len(of), rank), of))
                for of in (exposed[rank].start, exposed[rank].end)
            )
            spans.append(subtract(union(table["start"][at], attribution.turn[at]), union(start, end)))
        held.append((lane, join(*spans)))
    return held


def _attribute(
    trace: Trace, lane: LaneSummary, attribution: Attribution, row_of_event: Times, held: Spans
) -> dict[str, Attributed]:
    """Split a lane's exposed communication by cause: `held` is waiting whatever else is transferred meanwhile."""
    exposed = lane.exposed_communication
    if not len(exposed.start):
        return {}
    device = trace["device_events"]
    low, high = rows_of_rank(device, lane.rank)
    mine = (device["device"][low:high] == lane.device) & (device["kind"][low:high] == Kind.COMMUNICATION)
    events = low + np.flatnonzero(mine)
    row = row_of_event[events]
    start, end = device["start"][events], device["end"][events]
    known = row != NA
    at = np.maximum(row, 0)
    # On the CPU an event can be a piece of its collective.
    turn, over = (
        np.where(known, np.clip(instant[at], start, end), end) if len(instant) else end
        for instant in (attribution.turn, attribution.over)
    )
    unknown = CAUSES.index(UNDIVIDED_COMMUNICATION)
    before, after = (
        np.where(known, cause[at], unknown) if len(cause) else np.full(len(events), unknown)
        for cause in (attribution.before, attribution.after)
    )
    waiting = intersect(exposed, held)
    left = subtract(exposed, waiting)
    shares: dict[str, Spans] = {}
    for place, cause in enumerate(CAUSES):
        first, second = before == place, after == place
        begin, until = np.concatenate((start[first], turn[second])), np.concatenate((turn[first], over[second]))
        shares[cause] = intersect(left, union(begin, until)) if len(begin) else EMPTY
        left = subtract(left, shares[cause])
    # What is left: messages that have arrived and are not waited for yet, those of an exchange apart.
    apart = known & attribution.exchanged[at] if len(attribution.exchanged) else ~known
    of_exchange = intersect(left, union(start[apart], end[apart])) if apart.any() else EMPTY
    shares[UNDIVIDED_COMMUNICATION] = join(shares[UNDIVIDED_COMMUNICATION], of_exchange)
    shares[BUBBLE] = join(shares[BUBBLE], subtract(left, of_exchange))
    shares["straggler"] = join(shares["straggler"], waiting)
    return only_present(
        {
            cause: attribute(covered, lane, _evidence(trace, lane.key, events, row, covered, cause))
            for cause, covered in shares.items()
        }
    )


def _row_of_event(trace: Trace) -> Times:
    """For each device event, its row in `collectives`, through the event itself or its host call; or NA."""
    table, device = trace["collectives"], trace["device_events"]
    by_host = np.full(len(trace["host_events"]) + 1, NA, np.int64)  # the last entry belongs to no event
    rows = np.flatnonzero(table["host_event"] != NA)
    by_host[table["host_event"][rows]] = rows
    found = by_host[np.where(device["launch"] == NA, -1, device["launch"])]
    rows = np.flatnonzero(table["event"] != NA)
    found[table["event"][rows]] = rows
    return found


_NOTES = {
    "straggler": "waits until the last rank arrives",
    "pipeline_bubble": "waits for a neighbouring stage",
    "latency": "too small for its fixed cost",
    "bandwidth": "limited by bytes over the link",
    UNDIVIDED_COMMUNICATION: "this rank's record alone doesn't separate waiting from transferring",
}


def _evidence(trace: Trace, key: LaneKey, events: Times, row: Times, spans: Spans, cause: str) -> list[Evidence]:
    """`row` is each event's row in `collectives`."""
    device = trace["device_events"]
    found: list[Evidence] = []
    for index in longest(spans).tolist():
        start, end = int(spans.start[index]), int(spans.end[index])
        at = np.flatnonzero((device["start"][events] < end) & (device["end"][events] > start))
        if not len(at):
            found.append({"rank": key[0], "start_ns": start, "dur_ns": end - start, "name": "", "note": _NOTES[cause]})
            continue
        own = at[most_of(device["start"][events[at]], device["end"][events[at]], (start, end))]
        note = _NOTES[cause] + _first_use(trace, int(row[own]))
        found.append(shown_by(trace, "device_events", int(events[own]), note, (start, end)))
    return found


def _first_use(trace: Trace, row: int) -> str:
    """When the result of a collective is used, where an execution trace tells: until then it could be hidden."""
    table = trace["collectives"]
    if row == NA or (code := int(table["first_use"][row])) == NO_NAME:
        return ""
    after = units.duration(int(table["first_use_after"][row]))
    return f"; its result is first used by {trace.names[code]}, {after} after it was called"


def _table(trace: Trace, matched: Matched, measured: Waits) -> list[CollectiveEntry]:
    """One row per operation and group, the costliest first."""
    table = trace["collectives"]
    label = np.where(table["group_description"] != NO_NAME, table["group_description"], table["group"])
    width = len(trace.names) + 1
    keys, key = distinct(table["op"].astype(np.int64) * width + label + 1)
    order = np.argsort(key, kind="stable")
    bounds = np.searchsorted(key[order], np.arange(len(keys) + 1))
    entries: list[CollectiveEntry] = []
    for value, low, high in zip(keys.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        op, code = trace.names[value // width], value % width - 1
        group = trace.names[code] if code != NO_NAME else None
        rows = order[low:high]
        basis = next(
            (trace.names[code] for code in distinct_values(table["size_basis"][rows]).tolist() if code >= 0), None
        )
        entries.append({**_entry(table, matched, measured, op, group, rows), "size_basis": basis})
    return sorted(entries, key=lambda entry: -entry["dur_ns"])


def _entry(table: Table, matched: Matched, measured: Waits, op: str, group: str | None, rows: Times) -> CollectiveEntry:
    duration = table["end"][rows] - table["start"][rows]
    in_instance = matched.of_row[rows] != NA
    own = distinct_values(matched.of_row[rows][in_instance])
    lone = rows[~in_instance]
    # Unmatched rows are instances of their own; the ranks of a matched instance are one.
    representative = np.concatenate((matched.instances.rows[matched.instances.bounds[own]], lone))
    size = table["bytes"][representative]
    wait = transfer = None
    if len(own) and not len(lone):
        wait = int(np.clip(measured.arrived[rows] - table["start"][rows], 0, duration).sum())
        transfer = int(measured.transfer[representative].sum())
    time = transfer if transfer is not None else int(duration.sum()) / max(len(rows) / max(len(representative), 1), 1)
    known = bool(len(size)) and bool((size != NA).all()) and time > 0
    total = int(size.sum()) if known else None
    members = int(table["group_size"][representative[0]])
    factor = busbw_factor(op, members) if members != NA else None
    rate = algbw(total, time) if total is not None else None
    return {
        "op": op,
        "group": group,
        "count": len(representative),
        "bytes": total,
        "size_basis": None,
        "dur_ns": int(duration.sum()),
        "wait_ns": wait,
        "transfer_ns": transfer,
        "algbw_gbps": rate,
        "busbw_gbps": rate * factor if rate is not None and factor is not None else None,
        "lower_bound": rate is not None and transfer is None,
    }


ANALYZER = RunAnalyzer(
    "communication",
    run,
    (
        Need(
            "communication",
            "a job on one device has none; else record NCCL's kernels (ProfilerActivity.CUDA, nsys -t cuda,nvtx)",
            any_of("collectives", "device_events"),
            optional=True,
        ),
    ),
    (COLLECTIVES, CLOCK_ERROR, STRAGGLERS, STRAGGLERS_TESTABLE, WAITS_WITHOUT_CORE, RANK_STEPS),
    CAUSES,
)
