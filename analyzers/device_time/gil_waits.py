"""What waiting for Python's GIL costs the launching thread while its device is idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import DEVICE_EVENTS, EVIDENCE, NO_SERVER, FileAnalyzer, Need, Result, longest
from gpuscope.analyzers.base.evidence import most_of, shown_by
from gpuscope.analyzers.base.lanes import POWER, LaneView, StepWindow, count_steps
from gpuscope.analyzers.device_time.launching_threads import most_launching
from gpuscope.analyzers.device_time.operator_work import device_models
from gpuscope.analyzers.facts.run_facts import (
    GPU_CLOCKS_KEY,
    HELD,
    GpuClocks,
    RunAnalyzer,
    RunFacts,
    core_waits,
    recorded_steps,
    threads_and_cores,
)
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.device import CLOCK_HOLDERS, ClocksHeld, SharedStream, WaitsForCore, WaitsForGil
from gpuscope.catalogue.findings.network import SlowCopies
from gpuscope.hardware.link_rates import gpu_pcie
from gpuscope.schema.call_tree_section import PowerEntry
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace import kinds
from gpuscope.trace.intervals import Spans, intersect, union
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Times, distinct_values, rows_of_rank
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Streams that carry both compute and communication: there the two can never overlap.


def shared_streams_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `shared_stream` per lane whose exposed communication runs on a stream that also computes."""
    result = Result(SHARED_STREAMS_ANALYZER.name)
    for view in lanes:
        rows = _sharing(trace, view.rows)
        device = trace["device_events"]
        exposed = intersect(view.parts.exposed_communication, union(device["start"][rows], device["end"][rows]))
        if exposed.total and exposed.total >= MIN_SHARE * view.breakdown.window:
            result.findings.append(_shared_streams_finding(trace, view, rows, exposed))
    return result


def _sharing(trace: Trace, rows: Times) -> Times:
    """Communication events of streams on which kernels compute as well."""
    device = trace["device_events"]
    if not (device["kind"] == Kind.COMMUNICATION).any():
        return rows[:0]
    rows = rows[(device.at("stream", rows) != NA) & (device["device"][rows] != NA)]
    kind, stream = device["kind"][rows], device.at("stream", rows)
    computing = distinct_values(stream[kind == Kind.COMPUTE])
    sharing: Times = rows[(kind == Kind.COMMUNICATION) & np.isin(stream, computing)]
    return sharing


def _shared_streams_finding(trace: Trace, view: LaneView, rows: Times, exposed: Spans) -> FindingEntry:
    device = trace["device_events"]
    share = exposed.total / view.breakdown.window
    return made(
        SharedStream(np.unique(device.at("stream", rows)).tolist(), share),
        ranks=[view.lane.rank],
        share=share,
        cost_ns=exposed.total,
        mean_ns=round(exposed.total / max(count_steps(view.steps), 1)),
        evidence=[_evidence(trace, rows, exposed, index) for index in longest(exposed).tolist()],
    )


def _evidence(trace: Trace, rows: Times, exposed: Spans, index: int) -> Evidence:
    device = trace["device_events"]
    start, end = int(exposed.start[index]), int(exposed.end[index])
    row = int(rows[np.searchsorted(device["start"][rows], start, "right") - 1])
    note = f"on stream {int(device['stream'][row])}, which also computes"
    return shown_by(trace, "device_events", row, note, (start, end))


SHARED_STREAMS_ANALYZER = FileAnalyzer("streams", shared_streams_run, (DEVICE_EVENTS, NO_SERVER))


# Copies between pinned host memory and a GPU that stay far below what its PCIe link can carry.
#
# No recorder says at what rate and width a link ran; large copies from pinned memory show it: the fastest of several is
# what the link gives when nothing else is on it.

LARGE = 4 << 20
"""Bytes from which a copy's fixed cost (some 10 µs) is a few percent of it on any link."""
SEVERAL = 5
"""Copies of which one can be expected to have had the link for itself."""
FAR_BELOW = 0.6
"""Share of the usable rate: half the lanes, or one generation less, leave half of it."""
WAYS = ("HtoD", "DtoH")
"""Kinds of copies, as sources name those that are not pageable."""


def slow_copies_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `slow_copies` per lane."""
    result = Result(SLOW_COPIES_ANALYZER.name)
    pinned = trace.names.matching(lambda kind: kind in WAYS)
    for view in lanes:
        link = gpu_pcie(device_models(trace).get(view.key, ""))
        if link is not None and (found := _of_lane(trace, view, pinned, link.usable)) is not None:
            result.findings.append(found)
    return result


def _of_lane(trace: Trace, view: LaneView, pinned: np.ndarray, usable: float) -> FindingEntry | None:
    device = trace["device_events"]
    rows = view.rows[(device["kind"][view.rows] == Kind.MEMORY) & device.known("copy_kind")[view.rows]]
    rows = rows[pinned[device["copy_kind"][rows]]]
    large = rows[(device["bytes"][rows] >= LARGE) & (device["end"][rows] > device["start"][rows])]
    if len(large) < SEVERAL:
        return None
    best = float(np.max(device["bytes"][large] / (device["end"][large] - device["start"][large])))
    if best >= FAR_BELOW * usable:
        return None
    copying = union(device["start"][rows], device["end"][rows])
    held = intersect(intersect(copying, view.parts.exposed_memory), view.judged_spans).total
    cost, steps = round(held * (1 - best / usable)), len(view.judged_steps)
    return made(
        SlowCopies(round(best * 1e9), round(usable * 1e9), len(large)),
        ranks=[view.lane.rank],
        share=cost / max(view.judged_spans.total, 1),
        cost_ns=cost,
        mean_ns=cost // steps if steps else None,
    )


SLOW_COPIES_ANALYZER = FileAnalyzer("slow_copies", slow_copies_run, (DEVICE_EVENTS,))


# Training threads that wait for a core: more threads want to run than their processes have cores.


@dataclass(frozen=True)
class Waited:
    """A step of a rank and the ns of it in which its training thread had no core."""

    rank: int
    step: StepWindow
    ns: int


def cores_run(facts: RunFacts) -> Result:
    """A finding `waits_for_core` where training threads had no core for 1 % of their counted steps or more."""
    result = Result(CORES_ANALYZER.name)
    counted: list[Waited] = []
    for lane in facts.lanes:
        own = facts.core_times.get(lane.rank, {})
        counted += [Waited(lane.rank, step, own[step.step].waited) for step in lane.steps if step.step in own]
    if counted and _share(counted) >= MIN_SHARE:
        most = max((threads_and_cores(facts.trace, one.rank) for one in counted), default=(0, 0))
        result.findings.append(_cores_finding(counted, *most))
    return result


def _share(counted: Sequence[Waited]) -> float:
    return sum(one.ns for one in counted) / sum(one.step.end - one.step.start for one in counted)


def _cores_finding(counted: Sequence[Waited], threads: int, cores: int) -> FindingEntry:
    ranks = sorted({one.rank for one in counted})
    share = _share(counted)
    return made(
        WaitsForCore(share, threads, cores),
        ranks=[rank for rank in ranks if _share([one for one in counted if one.rank == rank]) >= MIN_SHARE],
        share=share,
        cost_ns=sum(one.ns for one in counted),
        mean_ns=round(sum(one.ns for one in counted) / len(counted)),
        evidence=[_cores_evidence(one) for one in sorted(counted, key=lambda one: -one.ns)[:EVIDENCE]],
    )


def _cores_evidence(one: Waited) -> Evidence:
    return {
        "rank": one.rank,
        "start_ns": one.step.start,
        "dur_ns": one.step.end - one.step.start,
        "name": f"step {one.step.step}",
        "note": f"{units.duration(one.ns)} without a core",
    }


def _counted(trace: Trace) -> bool:
    return any(core_waits(trace, rank) for rank in trace.ranks)


CORES_ANALYZER = RunAnalyzer(
    "cores",
    cores_run,
    (Need("counts of waiting for a core", "gpuscope record counts it on Linux", _counted, optional=True),),
)


# Clocks of GPUs that something holds down, and what each GPU draws: from NVML's samples.


def held_clocks_run(facts: RunFacts) -> Result:
    """The section `power`, and a finding `clocks_held` per reason that holds clocks down in a tenth of the samples.

    Clocks that somebody has set are a choice, and no finding: a rank that is slow by them is told so where it is late.
    """
    result = Result(HELD_CLOCKS_ANALYZER.name)
    clocks = facts.gpu_clocks
    if not clocks:
        return result
    step = facts.steady.step_ns
    result.sections[POWER] = [_entry(rank, own, step) for rank, own in sorted(clocks.items())]
    for holder in CLOCK_HOLDERS:
        held = {rank: own for rank, own in clocks.items() if own.held.get(holder, 0.0) >= HELD}
        if held and holder != "set_clocks":
            result.findings.append(_held_clocks_finding(holder, held))
    return result


def _entry(rank: int, own: GpuClocks, step: int | None) -> PowerEntry:
    joules = own.watts * step / 1e9 if own.watts is not None and step else None
    return {
        "rank": rank,
        "samples": own.samples,
        "sm_mhz": own.mhz,
        "power_w": own.watts,
        "joules_per_step": joules,
        "held_frac": dict(own.held),
    }


def _held_clocks_finding(holder: str, held: Mapping[int, GpuClocks]) -> FindingEntry:
    worst = max(held, key=lambda rank: held[rank].held[holder])
    own = held[worst]
    words = ClocksHeld(worst, sorted(held), holder, own.held[holder], own.mhz, own.watts)
    return made(words, ranks=held, cost_ns=None, mean_ns=None)


def _sampled(trace: Trace) -> bool:
    return any(recorded_steps(trace, rank, GPU_CLOCKS_KEY) for rank in trace.ranks)


HELD_CLOCKS_ANALYZER = RunAnalyzer(
    "held_clocks",
    held_clocks_run,
    (Need("samples of clocks and power", "record with --nvml-interval 100", _sampled, optional=True),),
    (POWER,),
)


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `waits_for_gil` per lane whose device is idle for 1 % of the time or more meanwhile."""
    result = Result(GIL_WAITS_ANALYZER.name)
    waits = trace.names.find(kinds.WAITS_FOR_GIL)
    for view in lanes:
        main = most_launching(trace, view)
        rows = _waits(trace, view, waits, main)
        waited = union(trace["host_events"]["start"][rows], trace["host_events"]["end"][rows])
        spent = intersect(intersect(view.parts.idle, waited), view.judged_spans)
        if spent.total >= max(MIN_SHARE * view.breakdown.window, 1):
            result.findings.append(_finding(trace, view, rows, spent, _others(trace, view, waits, main)))
    return result


def _waits(trace: Trace, view: LaneView, name: int, thread: int) -> Times:
    """A thread's waits for the GIL: rows of host_events."""
    host, own = trace["host_events"], slice(*rows_of_rank(trace["host_events"], view.lane.rank))
    return np.asarray(own.start + np.flatnonzero((host["name"][own] == name) & (host["thread"][own] == thread)))


def _others(trace: Trace, view: LaneView, name: int, thread: int) -> list[str]:
    """Names of the other threads of the rank that waited for it, the one that waited most often first."""
    host, own = trace["host_events"], slice(*rows_of_rank(trace["host_events"], view.lane.rank))
    threads = host["thread"][own][host["name"][own] == name]
    found, counts = np.unique(threads[threads != thread], return_counts=True)
    ordered = found[np.argsort(-counts, kind="stable")].tolist()
    codes = [int(trace["threads"]["name"][one]) for one in ordered]
    return list(dict.fromkeys(trace.names[code] for code in codes if code != NO_NAME))


def _finding(trace: Trace, view: LaneView, rows: Times, spent: Spans, others: list[str]) -> FindingEntry:
    host = trace["host_events"]
    spans = [(int(spent.start[i]), int(spent.end[i])) for i in longest(spent).tolist()]
    share = spent.total / view.breakdown.window
    return made(
        WaitsForGil(share, others),
        ranks=[view.lane.rank],
        share=share,
        cost_ns=spent.total,
        mean_ns=round(spent.total / max(count_steps(view.steps), 1)),
        evidence=[
            shown_by(trace, "host_events", int(rows[most_of(host["start"][rows], host["end"][rows], span)]), span=span)
            for span in spans
        ],
    )


def _recorded(trace: Trace) -> bool:
    return trace.names.find(kinds.WAITS_FOR_GIL) != NO_NAME


GIL_WAITS_ANALYZER = FileAnalyzer(
    "gil",
    run,
    (DEVICE_EVENTS, Need("waits for the GIL", "nsys -t osrt,python-gil records them", _recorded, optional=True)),
)


ANALYZERS = (CORES_ANALYZER, GIL_WAITS_ANALYZER, HELD_CLOCKS_ANALYZER, SHARED_STREAMS_ANALYZER, SLOW_COPIES_ANALYZER)
