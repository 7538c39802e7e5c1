"""What of a recording is not judged, and what it holds: told where it is longer than what is judged, or much of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from gpuscope.analyzers.base.analyzer import Attributed
from gpuscope.analyzers.base.evidence import Role
from gpuscope.analyzers.base.lanes import CALL_TREE, LaneSummary, views
from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.facts.steady_state import SteadyState
from gpuscope.analyzers.profile import call_stacks
from gpuscope.analyzers.serving.served_steps import Batches
from gpuscope.analyzers.verdict import verdict
from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.suggestion import class_of
from gpuscope.errors import InputError
from gpuscope.report.view import call_tree
from gpuscope.schema.call_tree_section import PlaceEntry
from gpuscope.schema.document import BreakdownEntry, RankEntry, SetApart, SetApartPart, Stalls, StepEntry
from gpuscope.trace.intervals import Breakdown
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Table
from gpuscope.trace.trace import Trace
from gpuscope.version import __version__

# What a report says of each rank and of its steps.

Causes = Mapping[str, Attributed]


def judged_causes(steady: SteadyState, lane: LaneSummary, causes: Causes) -> dict[str, Attributed]:
    """A lane's causes over its judged steps alone; those that took none of it are left out."""
    found = {cause: replace(one, total=steady.measure(lane, one.total, one.per_step)) for cause, one in causes.items()}
    return {cause: one for cause, one in found.items() if one.total}


def _stalls(sums: Mapping[str, int]) -> Stalls:
    stalls: dict[str, dict[str, int]] = {"cpu": {}, "communication": {}, "memory": {}}
    for cause, spent in sums.items():
        class_name = class_of(cause)
        if class_name is not None:
            stalls[class_name][UNATTRIBUTED if cause == UNDIVIDED_COMMUNICATION else cause] = spent
    return {
        "cpu": stalls["cpu"],
        "communication": stalls["communication"],
        "memory": stalls["memory"],
        "unattributed": sums.get(UNATTRIBUTED, 0),
    }


def _parts(breakdown: Breakdown) -> BreakdownEntry:
    return BreakdownEntry(
        compute=breakdown.compute,
        exposed_communication=breakdown.exposed_communication,
        exposed_memory=breakdown.exposed_memory,
        idle=breakdown.idle,
    )


def rank_entry(facts: RunFacts, lane: LaneSummary, causes: Causes) -> RankEntry:
    """A lane over its judged steps."""
    breakdown = facts.steady.breakdown(lane)
    judged = [step.start for step in lane.steps if facts.steady.judged(step.step)]
    return {
        "rank": lane.rank,
        "device": None if lane.device == NA else lane.device,
        "device_name": _device_name(facts.trace, lane),
        "window_ns": breakdown.window,
        "start_ns": judged[0] if judged else lane.window[0],
        "steps": facts.steady.count(lane),
        "recorded_ns": lane.breakdown.window,
        "recorded_breakdown_ns": _parts(lane.breakdown),
        "breakdown_ns": _parts(breakdown),
        "communication_ns": breakdown.communication,
        "overlapped_communication_ns": breakdown.overlapped_communication,
        "overlap_frac": breakdown.overlapped_communication / breakdown.communication
        if breakdown.communication
        else None,
        "stall_ns": _stalls({cause: one.total for cause, one in judged_causes(facts.steady, lane, causes).items()}),
    }


def _device_name(trace: Trace, lane: LaneSummary) -> str | None:
    ranks = trace["ranks"]
    rows = np.flatnonzero((ranks["rank"] == lane.rank) & (ranks["device"] == lane.device))
    code = int(ranks["device_name"][rows[0]]) if len(rows) else NO_NAME
    return trace.names[code] if code != NO_NAME else None


def step_entries(steady: SteadyState, lane: LaneSummary, causes: Causes, batches: Batches) -> list[StepEntry]:
    """Each recorded step of a lane, judged or not; a server's with phase and batch."""
    entries: list[StepEntry] = []
    for index, (step, breakdown) in enumerate(zip(lane.steps, lane.step_breakdowns, strict=True)):
        own = {cause: int(attributed.per_step[index]) for cause, attributed in causes.items()}
        top, cause, _ = verdict.bound(own, breakdown.window)
        phase, batch = batches.get((lane.rank, step.step), (None, None))
        entries.append(
            {
                "step": None if step.step == NA else step.step,
                "rank": lane.rank,
                "device": None if lane.device == NA else lane.device,
                "role": steady.role(step.step).value,
                "start_ns": step.start,
                "dur_ns": breakdown.window,
                "breakdown_ns": _parts(breakdown),
                "bound_by": top,
                "cause": cause,
                "phase": phase,
                "batch": batch,
            }
        )
    return entries


# All ranks of a run as one Chrome trace, on one clock, for ui.perfetto.dev.
#
# Format: «Trace Event Format» (Google, 2016), JSON object form; times are decimal µs with three places, so
# that no nanosecond is lost. One process per rank and device; its streams and host threads are threads.

_BATCH = 20_000
_STREAMS = 1 << 12
_FIRST_THREAD = 1 << 20
"""Thread ids of streams are below it, those of host threads from it on: viewers sort by them."""


def write(trace: Trace, path: Path) -> None:
    """Write the trace to `path`, gzipped where its name ends in .gz."""
    with gzip.open(path, "wb", compresslevel=3) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        batch: list[bytes] = []
        separator = b""
        for event in _events(trace):
            batch.append(event)
            if len(batch) == _BATCH:
                file.write(separator + b",\n".join(batch))
                separator, batch = b",\n", []
        if batch:
            file.write(separator + b",\n".join(batch))
        file.write(b"\n]}\n")


def _events(trace: Trace) -> Iterator[bytes]:
    clock = RunFacts(trace, ()).clocks
    names = [msgspec.json.encode(name) for name in trace.names.names]
    device, host = trace["device_events"], trace["host_events"]
    starts = [int(table["start"].min()) for table in (device, host) if len(table)]
    base = min(starts, default=0)
    yield from _metadata(trace)
    yield from _spans(device, names, clock, base, [label.name.lower() for label in Kind])
    yield from _spans(host, names, clock, base, [label.name.lower() for label in Category])
    yield from _flows(trace, clock, base)


def _spans(table: Table, names: list[bytes], clock: Clocks, base: int, labels: list[str]) -> Iterator[bytes]:
    is_device = "stream" in table.columns
    kind = table["kind" if is_device else "category"]
    starts = clock.common(table["rank"], table["start"]) - base
    for row in range(len(table)):
        rank = int(table["rank"][row])
        start = int(starts[row])
        duration = int(table["end"][row] - table["start"][row])
        tid = _stream_tid(table, row) if is_device else _FIRST_THREAD + int(table["thread"][row])
        yield b'{"ph":"X","cat":"%s","name":%s,"pid":%d,"tid":%d,"ts":%s,"dur":%s,"args":{"row":%d}}' % (
            labels[int(kind[row])].encode(),
            names[int(table["name"][row])],
            rank,
            tid,
            _us(start),
            _us(duration),
            row,
        )


def _stream_tid(device: Table, row: int) -> int:
    ordinal, stream = int(device["device"][row]), int(device["stream"][row])
    return 1 + max(ordinal, 0) * _STREAMS + max(stream, 0) % _STREAMS


def _us(ns: int) -> bytes:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}".encode()


def _flows(trace: Trace, clock: Clocks, base: int) -> Iterator[bytes]:
    """An arrow from each launch to what it launched."""
    device, host = trace["device_events"], trace["host_events"]
    at, begun = (clock.common(table["rank"], table["start"]) - base for table in (device, host))
    for row in np.flatnonzero((device["launch"] != NA) & (device["device"] != NA)).tolist():
        rank, launch = int(device["rank"][row]), int(device["launch"][row])
        head = b'"cat":"launch","name":"launch","id":%d,"pid":%d' % (row, rank)
        yield b'{"ph":"s",%s,"tid":%d,"ts":%s}' % (
            head,
            _FIRST_THREAD + int(host["thread"][launch]),
            _us(int(begun[launch])),
        )
        yield b'{"ph":"f","bp":"e",%s,"tid":%d,"ts":%s}' % (head, _stream_tid(device, row), _us(int(at[row])))


def _metadata(trace: Trace) -> Iterator[bytes]:
    def named(what: str, pid: int, tid: int, label: str) -> bytes:
        return msgspec.json.encode({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": label}})

    for rank in trace.ranks:
        yield named("process_name", rank, 0, f"rank {rank}")
    device, threads = trace["device_events"], trace["threads"]
    lanes = {(int(device["rank"][row]), _stream_tid(device, row)): row for row in range(len(device))}
    for (rank, tid), row in lanes.items():
        ordinal, stream = int(device["device"][row]), int(device["stream"][row])
        label = "training thread" if ordinal == NA else f"device {ordinal} stream {stream if stream != NA else '?'}"
        yield named("thread_name", rank, tid, label)
    for row in range(len(threads)):
        code = int(threads["name"][row])
        label = trace.names[code] if code != NO_NAME else f"thread {int(threads['tid'][row])}"
        yield named("thread_name", int(threads["rank"][row]), _FIRST_THREAD + row, label)


# The tree of places for viewers of flame graphs: speedscope's own format, or collapsed stacks.

IDLE = "(idle)"
"""Frame of idle time in collapsed stacks, which hold one number each."""
_PROFILES = (
    ("device_ns", "device time"),
    ("exposed_communication_ns", "exposed communication"),
    ("idle_ns", "idle time"),
)


def entries(trace: Trace) -> list[PlaceEntry]:
    """The places of a trace, summed over its ranks. Raises `InputError` where it has none."""
    found = call_stacks.run(trace, views(trace)).sections.get(CALL_TREE)
    if not found:
        raise InputError(
            "no place of the program is known: no host events were recorded that launches could be tied to",
            hint="record with the CPU activity of torch.profiler and with_stack=True, or `nsys profile -t cuda,nvtx`",
        )
    return found


def write_speedscope(found: Sequence[PlaceEntry], path: Path) -> None:
    """Write a file for https://www.speedscope.app (its file-format-schema.json): a profile each of device time, exposed
    communication and idle time, weights in ns."""
    frames: dict[str, int] = {}
    profiles: list[dict[str, Any]] = []
    for key, name in _PROFILES:
        weighed = [(stack, entry[key]) for stack, entry in call_tree.stacks(found) if entry[key]]  # type: ignore[literal-required]
        profiles.append(
            {
                "type": "sampled",
                "name": name,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weight for _, weight in weighed),
                "samples": [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in weighed],
                "weights": [weight for _, weight in weighed],
            }
        )
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"gpuscope {__version__}",
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": profiles,
    }
    path.write_text(json.dumps(document), encoding="utf-8")


def write_collapsed(found: Sequence[PlaceEntry], path: Path) -> None:
    """Write a line per stack, its frames parted by semicolons, and ns of device time; idle time as a frame below."""
    lines = []
    for stack, entry in call_tree.stacks(found):
        text = ";".join(frame.replace(";", ",").replace("\n", " ") for frame in stack)
        lines += [f"{text} {entry['device_ns']}"] if entry["device_ns"] else []
        lines += [f"{text};{IDLE} {entry['idle_ns']}"] if entry["idle_ns"] else []
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="replace")


COVERED = 0.8
"""Share of the recording after set-up that steady and partial steps hold where nothing need be said of the rest."""
MOST = 0.5
"""Share of the communication from which one operation and rank are named."""
_Wait = tuple[str, int, int]
_APART: tuple[Role, ...] = (Role.SETUP, Role.WARMUP, Role.BEFORE_SHIFT, Role.OUTLIER)


def set_apart(facts: RunFacts) -> SetApart | None:
    """What is not judged; None where that is little, or where the user named the steps."""
    steady = facts.steady
    lanes = [lane for lane in facts.lanes if lane.steps]
    if steady.asked or not lanes:
        return None
    spent = [_by_role(facts, lane) for lane in lanes]
    after = sum(sum(own.values()) - own.get(Role.SETUP, 0) for own in spent)
    covered = sum(own.get(Role.STEADY, 0) + own.get(Role.PARTIAL, 0) for own in spent)
    judged = max(steady.breakdown(lane).window for lane in lanes)
    startup = max(own.get(Role.SETUP, 0) + own.get(Role.WARMUP, 0) for own in spent) > judged
    if not after or (covered >= COVERED * after and not startup):
        return None
    parts = [_part(facts, lanes, role) for role in _APART if any(own.get(role) for own in spent)]
    if not parts:
        return None
    return {"judged_ns": judged, "covered_frac": covered / after, "startup": startup, "parts": parts}


def _by_role(facts: RunFacts, lane: LaneSummary) -> dict[Role, int]:
    """How long a lane's steps are by role, ns; what is judged for want of steady steps counts as these."""
    found: dict[Role, int] = {}
    for place, step in enumerate(lane.steps):
        role = _role(facts, lane, place)
        found[role] = found.get(role, 0) + step.end - step.start
    return found


def _role(facts: RunFacts, lane: LaneSummary, place: int) -> Role:
    number = lane.steps[place].step
    if number == NA:  # what runs behind a single step was cut off, too
        return Role.SETUP if place == 0 else Role.PARTIAL
    return Role.STEADY if facts.steady.judged(number) else facts.steady.role(number)


def _part(facts: RunFacts, lanes: list[LaneSummary], role: Role) -> SetApartPart:
    places = {lane.key: [k for k in range(len(lane.steps)) if _role(facts, lane, k) == role] for lane in lanes}

    def lasts(lane: LaneSummary) -> int:
        return sum(lane.steps[k].end - lane.steps[k].start for k in places[lane.key])

    lane = max(lanes, key=lasts)
    own = places[lane.key]
    sums = {part: sum(lane.step_breakdowns[k].parts[part] for k in own) for part in lane.breakdown.parts}
    holds = max(sums, key=lambda part: sums[part])
    host, waited = None, None
    if holds == "idle":
        work = [one for k in own for one in lane.once.get(k, ())]
        host = max(work, key=lambda one: one.spent).name if work else None
    elif holds == "exposed_communication":
        waited = _waited_for(facts, lane, own, sums[holds])
    op, late, wait = waited or (None, None, None)
    return cast(
        SetApartPart,
        {
            "role": role.value,
            "steps": 0 if role is Role.SETUP else len(own),
            "dur_ns": lasts(lane),
            "holds": holds,
            "holds_ns": sums[holds],
            "host": host,
            "op": op,
            "late_rank": late,
            "wait_ns": wait,
        },
    )


def _waited_for(facts: RunFacts, lane: LaneSummary, places: list[int], spent_in_all: int) -> _Wait | None:
    """The collective by which a lane waited longest in some of its steps, for which rank, and for how long, ns; None
    where that is not most of what these spent in communication."""
    table, matched = facts.trace["collectives"], facts.matched
    rows = np.flatnonzero((table["rank"] == lane.rank) & (matched.of_row != NA) & (facts.waits.exposed > 0))
    inside = np.zeros(len(rows), np.bool_)
    for place in places:
        step = lane.steps[place]
        inside |= (table["start"][rows] >= step.start) & (table["start"][rows] < step.end)
    spent: dict[tuple[int, int], int] = {}
    for row in rows[inside].tolist():
        last = int(facts.waits.last[matched.of_row[row]])
        key = int(table["op"][row]), int(table["rank"][last])
        spent[key] = spent.get(key, 0) + int(facts.waits.exposed[row])
    op, late = max(spent, key=lambda key: spent[key], default=(0, 0))
    if not spent or spent[op, late] < MOST * spent_in_all:
        return None
    return facts.trace.names[op], late, spent[op, late]
