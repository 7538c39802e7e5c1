"""Exposed communication over the ranks of a run: waiting or transferring, latency or bandwidth, and the ranks
whose lateness caused the waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import (
    EVIDENCE,
    Attributed,
    LaneKey,
    Need,
    Result,
    any_of,
    attribute,
    longest,
    only_present,
)
from gpuscope.analyzers.base.evidence import most_of, shown_by
from gpuscope.analyzers.base.lanes import (
    CLOCK_ERROR,
    COLLECTIVES,
    RANK_STEPS,
    STRAGGLERS,
    STRAGGLERS_TESTABLE,
    TRAFFIC,
    WAITS_WITHOUT_CORE,
    LaneSummary,
    bounds,
    step_at,
)
from gpuscope.analyzers.collectives.recurrence import doing, trace_waits
from gpuscope.analyzers.collectives.stragglers import rank_steps, stragglers, waits_without_core
from gpuscope.analyzers.facts.clocks import Waits, rows_by_lane
from gpuscope.analyzers.facts.matching import Instances, Matched, report_unmatched
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.data_parallel import DebugChecks
from gpuscope.collective_costs.bus_bandwidth import algbw, busbw_factor
from gpuscope.collective_costs.message_cost import CostModel, assume, fit
from gpuscope.problems import job
from gpuscope.schema.document import CollectiveEntry, Evidence
from gpuscope.schema.nccl_sections import TrafficEntry
from gpuscope.trace.intervals import EMPTY, Spans, intersect, join, measure_within, subtract, union
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.optimizer_ranges import is_debug_check
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Array, Mask, Table, Times, distinct, distinct_values, rows_of_rank
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

# When each collective stops waiting and starts transferring, and whether latency or bandwidth limits the transfer.

BUBBLE = "pipeline_bubble"
CAUSES = ("bandwidth", "latency", BUBBLE, "straggler", UNDIVIDED_COMMUNICATION)
"""Causes of exposed communication. Where several operations cover an instant the first counts: moving data
before waiting (but for waits that no transfer brings), known before unknown."""
_BANDWIDTH, _LATENCY, _BUBBLE, _STRAGGLER, _UNKNOWN = range(len(CAUSES))


SURELY_BANDWIDTH, SURELY_LATENCY = 4, 2
"""Fixed costs from which, and up to which, bytes, and the fixed cost, limit a transfer of unknown size."""


@dataclass(frozen=True)
class Attribution:
    """Per row of `collectives`: the instants at which waiting turns into transferring and that is over, on the row's
    own clock, and the cause (place in `CAUSES`) of the time before and after the first. What is left of a row then
    is a message that has arrived and is not waited for yet."""

    turn: Times
    over: Times
    before: Array
    after: Array
    exchanged: Mask
    """Whether the row is a message of an exchange among equals: waiting there is for a late rank, as in collectives."""
    models: Sequence[CostModel]
    """The cost models of operations and groups."""


def attribute_transfers(trace: Trace, measured: Waits, exchanged: Mask) -> Attribution:
    """Attribute the time of each collective to waiting and transferring.

    Matched ones are divided at the last arrival; unmatched ones can't be divided, for that takes all ranks.
    """
    table = trace["collectives"]
    start, end, matched = table["start"], table["end"], measured.arrived != NA
    after = np.full(len(table), _UNKNOWN, np.int8)
    turn, bus = end.copy(), bus_bytes(trace)
    width = int(table["group"].max(initial=0)) + 2
    _, key = distinct(table["op"].astype(np.int64) * width + table["group"] + 1)
    order = np.argsort(key, kind="stable")
    bounds = np.searchsorted(key[order], np.arange(int(key.max(initial=-1)) + 2))
    models: list[CostModel] = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        own = order[low:high]
        models.append(_model(trace, own, bus[own], measured.arrived))
        sized = own[np.isfinite(bus[own])]
        small = models[-1].latency_bound(bus[sized], _shortest(bus[sized], measured.transfer[sized], matched[sized]))
        after[sized] = np.where(small, _LATENCY, _BANDWIDTH)
        sizeless = own[matched[own] & ~np.isfinite(bus[own])]
        after[sizeless] = _by_time(measured.transfer[sizeless], models[-1].alpha)
    after[~matched] = _UNKNOWN
    after[(table["op"] == trace.names.find("barrier")) & ~np.isfinite(bus)] = _LATENCY  # moves nothing: all fixed cost
    turn[matched] = np.clip(measured.arrived[matched], start[matched], end[matched])
    staged = trace.names.matching(POINT_TO_POINT.__contains__)[table["op"]] & ~exchanged
    before = np.where(matched, np.where(staged, _BUBBLE, _STRAGGLER), _UNKNOWN).astype(np.int8)
    return Attribution(turn, np.maximum(turn, measured.over), before, after, exchanged, models)


def _shortest(size: Array, transfer: Times, matched: Mask) -> Times:
    """Per row, the shortest matched transfer of its size, which is what the link can do; 0 where there is none."""
    most = np.iinfo(np.int64).max
    _, same = np.unique(size, return_inverse=True)
    found = np.full(int(same.max(initial=-1)) + 1, most)
    np.minimum.at(found, same[matched], transfer[matched])
    return np.asarray(np.where(matched & (found[same] < most), found[same], 0))


def _by_time(transfer: Times, alpha: float) -> Array:
    """The cause of transfers whose sizes are not recorded, by how they compare with the fixed cost `alpha`, ns."""
    small = np.where(transfer < SURELY_LATENCY * alpha, _LATENCY, _UNKNOWN)
    return np.where(transfer >= SURELY_BANDWIDTH * alpha, _BANDWIDTH, small).astype(np.int8)


def bus_bytes(trace: Trace) -> Array:
    """Per row of `collectives`, bytes on the bus: size × nccl-tests' factor; NaN where size or factor is unknown."""
    table = trace["collectives"]
    members = np.where(table["group_size"] == NA, 2, table["group_size"])
    width = int(members.max(initial=0)) + 1
    pairs, pair = distinct(table["op"].astype(np.int64) * width + members)
    factors = [busbw_factor(trace.names[key // width], key % width) for key in pairs.tolist()]
    factor = np.array([np.nan if value is None else value for value in factors])[pair]
    return np.where(table["bytes"] == NA, np.nan, table["bytes"] * factor)


def _model(trace: Trace, rows: Times, bus: Array, arrived: Times) -> CostModel:
    """The cost model of the rows of one operation and group: fitted where sizes vary, else assumed."""
    table, ranks = trace["collectives"], trace["ranks"]
    begin = np.maximum(table["start"][rows], arrived[rows])  # NA, the lowest integer, leaves the start
    fitted = fit(np.where(np.isfinite(bus), bus, 0.0), table["end"][rows] - begin)
    if fitted is not None:
        return fitted
    first = int(np.searchsorted(ranks["rank"], table["rank"][rows[0]]))
    members = int(table["group_size"][rows[0]])
    return assume(
        trace.names[int(ranks["backend"][first])],
        trace.names[int(ranks["device_name"][first])] if int(ranks["device"][first]) != NA else "",
        members if members != NA else 2,
    )


# What `TORCH_DISTRIBUTED_DEBUG=DETAIL` costs: before every collective it holds all ranks at a barrier and compares
# what they are about to call.


def debug_checks_run(facts: RunFacts) -> Result:
    """The finding `debug_checks`: time in the checks of the judged steps once all ranks have come to them, in which a
    rank computes nothing."""
    result = Result(DEBUG_CHECKS_ANALYZER.name)
    checks = check_rows(facts)
    if not checks.any():
        return result
    table, waits, steady = facts.trace["collectives"], facts.waits, facts.steady
    cost = window = steps = count = 0
    evidence: list[Evidence] = []
    ranks: set[int] = set()
    for lane, own in rows_by_lane(facts.trace, facts.lanes):
        judged = [step for step in lane.steps if steady.judged(step.step)]
        begins, ends = bounds(judged) if judged else (np.array([lane.window[0]]), np.array([lane.window[1]]))
        window += steady.breakdown(lane).window
        rows = own[checks[own]]
        if not len(rows):
            continue
        ranks.add(lane.rank)
        rows = rows[step_at(begins, ends, table["start"][rows]) != NA]
        begun = np.where(waits.arrived[rows] == NA, table["start"][rows], waits.arrived[rows])
        begun = np.clip(begun, table["start"][rows], table["end"][rows])
        spans = union(begun, table["end"][rows])
        # A device's own timeline does not show what its host waits for: no more than it idles.
        exposed = int(measure_within(lane.exposed_communication, spans.start, spans.end).sum())
        cost += exposed if lane.device == NA else min(spans.total, steady.breakdown(lane).idle)
        count += len(rows)
        steps += max(len(judged), 1)
        longest = rows[np.argsort(begun - table["end"][rows], kind="stable")][:EVIDENCE]
        evidence += [_shown(facts, int(row)) for row in longest.tolist()]
    share = cost / window if window else 0.0
    if ranks and cost:
        words = DebugChecks(round(count / max(steps, 1)), share)
        result.findings.append(
            made(
                words,
                ranks=ranks,
                share=share,
                cost_ns=cost,
                mean_ns=round(cost / max(steps, 1)),
                evidence=evidence[:EVIDENCE],
            )
        )
    return result


def check_rows(facts: RunFacts) -> Mask:
    """Which rows of `collectives` are such checks."""
    table, host, names = facts.trace["collectives"], facts.trace["host_events"], facts.trace.names
    checked = names.matching(is_debug_check)
    found = np.zeros(len(table), np.bool_)
    called = np.flatnonzero((table["host_event"] != NA) & (table["op"] == names.find("barrier")))
    found[called] = checked[host["name"][table["host_event"][called]]]
    return found


def _shown(facts: RunFacts, row: int) -> Evidence:
    table = facts.trace["collectives"]
    event = int(table["host_event"][row])
    note = "checks what all ranks are about to call"
    return shown_by(facts.trace, "host_events", event, note, (int(table["start"][row]), int(table["end"][row])))


DEBUG_CHECKS_ANALYZER = RunAnalyzer(
    "debug_checks",
    debug_checks_run,
    (Need("collectives", "record collectives: a job on one device has none", optional=True),),
)


# Messages between ranks: a sparse matrix of bytes and time from each sender to each receiver.


def traffic_run(facts: RunFacts) -> Result:
    """The section `traffic`, where sends or receives record their other end.

    A matched message counts once, with its transfer; one of which only one end is recorded with that end's time,
    waiting included. An exchange (one kernel that sends and receives) is not split: its directions are not recorded.
    """
    result = Result(TRAFFIC_ANALYZER.name)
    trace, matched = facts.trace, facts.matched
    table = trace["collectives"]
    send, receive = (table["op"] == trace.names.find(name) for name in ("send", "recv"))
    rows = np.flatnonzero((send | receive) & (table["end"] != NA) & (table["start"] != NA))
    if not len(rows):
        return result
    rank = table["rank"][rows]
    other = matched.groups.other_of_two(rows, rank)
    peer = np.where(table["peer"][rows] == NA, other, table["peer"][rows])
    source = np.where(send[rows], rank, peer)
    target = np.where(send[rows], peer, rank)
    spent = _transfers(table, matched.instances)[rows]
    # Of a matched message the sender's row counts; its receiver's is the same message.
    counts = (peer != NA) & (send[rows] | (matched.of_row[rows] == NA))
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    columns = (column[counts].tolist() for column in (source, target, table["bytes"][rows], spent))
    for one, two, nbytes, dur in zip(*columns, strict=True):
        pairs[one, two].append((nbytes, dur))
    if pairs:
        result.sections[TRAFFIC] = [_traffic_entry(pair, pairs[pair]) for pair in sorted(pairs)]
    return result


def _transfers(table: Table, instances: Instances) -> Times:
    """Per row of `collectives`: the shortest duration over the ends of a matched operation, else its own."""
    spent = table["end"] - table["start"]
    spent[instances.rows] = instances.reduce(np.minimum, spent[instances.rows])[instances.owner]
    return spent


def _traffic_entry(pair: tuple[int, int], messages: Sequence[tuple[int, int]]) -> TrafficEntry:
    sizes = [nbytes for nbytes, _ in messages]
    return {
        "rank": pair[0],
        "peer": pair[1],
        "count": len(messages),
        "bytes": None if NA in sizes else sum(sizes),
        "dur_ns": sum(dur for _, dur in messages),
    }


TRAFFIC_ANALYZER = RunAnalyzer(
    "traffic",
    traffic_run,
    (Need("collectives", "sends and receives are recorded with NCCL's or gloo's calls", optional=True),),
    (TRAFFIC,),
)


def run(facts: RunFacts) -> Result:
    """Causes of exposed communication per lane, the table of operations, the ranks others waited for."""
    result = Result(EXPOSED_COMMUNICATION_ANALYZER.name)
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
        result.problem(job.ASSUMED_LINK, count, links="; ".join(assumed))


def _report_stragglers(result: Result, facts: RunFacts) -> None:
    """Sections `stragglers` and `rank_steps`. Messages between stages are the pipeline's, not a straggler's."""
    trace, lanes = facts.trace, facts.lanes
    matched, measured, clock = facts.matched, facts.waits, facts.clocks
    found = matched.instances
    suffered = found.reduce(np.add, measured.wait[found.rows])
    claimed = ~found.staged & (suffered > 0)
    counted = claimed & measured.certain
    doubtful = int((claimed & ~measured.certain).sum())
    result.problem(job.LAST_RANK_UNKNOWN, doubtful, clock_error=units.duration(clock.error))
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


EXPOSED_COMMUNICATION_ANALYZER = RunAnalyzer(
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


ANALYZERS = (DEBUG_CHECKS_ANALYZER, EXPOSED_COMMUNICATION_ANALYZER, TRAFFIC_ANALYZER)
