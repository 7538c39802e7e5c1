"""What FSDP does that its options would spare: gradients scattered in every micro-batch; of FSDP1 a limit on gathers
that the device waits for, and gathers that only begin once the backward pass needs them.

They show in ranges of torch/distributed/fsdp/_runtime_utils.py and _fully_shard/_fsdp_state.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import DEVICE_EVENTS, FileAnalyzer, Need, Result, entries_of_devices
from gpuscope.analyzers.base.lanes import HOST_CALLS, LaneSummary, LaneView
from gpuscope.analyzers.device_time.kernel_facts import kernel_facts
from gpuscope.analyzers.device_time.operator_work import is_multiplying
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.host_time.blocking_sites import (
    Judged,
    blocking_sites,
    covered,
    finding_of,
    judged,
    ranges,
    shown,
)
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.data_parallel import (
    GradientCopies,
    LateGathers,
    LimitedGathers,
    SeparateReductions,
    SingleProcess,
    SyncedAccumulation,
    UnusedParameterSearch,
)
from gpuscope.schema.call_tree_section import HostCallsEntry
from gpuscope.schema.document import FindingEntry
from gpuscope.trace import kinds
from gpuscope.trace.frameworks import WRAPPERS, frameworks
from gpuscope.trace.intervals import intersect, join, measure_within, subtract, union
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Mask, Times, blocks, counted, distinct_values, rows_of_rank, rows_where
from gpuscope.trace.trace import Trace

# All-reduces that follow one another where one would do: a loop over parameters that averages each gradient by itself.
#
# Wrappers (DDP, FSDP, DeepSpeed…) gather gradients in buckets; where one left its marks, nothing is judged here.

MANY = 10
"""Messages in a row from which it is a loop."""
GRADIENTS = 1 << 20
"""Bytes per step: fewer are a model's metrics, not its gradients."""
BUCKET = 25 << 20
"""DDP's: as few messages as it would send are no loop over parameters."""


def separate_reductions_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `separate_reductions` per rank that reduces in such a loop."""
    result = Result(SEPARATE_REDUCTIONS_ANALYZER.name)
    if trace.names.find("all_reduce") < 0 or frameworks(trace.names.names, among=WRAPPERS):
        return result
    for view in lanes:
        result.findings += _of_lane(trace, view, judged(view))
    return result


def _of_lane(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    table = trace["collectives"]
    runs = _runs(trace, view, steps)
    if len(runs) < len(steps):
        return []
    count = int(np.median([len(run) for run in runs]))
    rows = np.concatenate(runs)
    known = bool((table["bytes"][rows] != NA).all())
    total = int(np.median([table["bytes"][run].sum() for run in runs])) if known else None
    if count < MANY or (total is not None and (total < GRADIENTS or count < 2 * (1 + -(-total // BUCKET)))):
        return []
    exposed = intersect(view.parts.exposed_communication, covered(table, rows))
    evidence = shown(trace, "collectives", rows, "one of many in a row")
    return finding_of(lambda share: SeparateReductions(count, total, share), view, steps, exposed, evidence)


def _runs(trace: Trace, view: LaneView, steps: Judged) -> list[Times]:
    """The longest run of each judged step that has one: all-reduces between which no matrix product starts, rows."""
    table, device = trace["collectives"], trace["device_events"]
    own = (table["rank"] == view.lane.rank) & (table["op"] == trace.names.find("all_reduce")) & (table["event"] != NA)
    rows = np.flatnonzero(own)
    rows = rows[np.argsort(table["start"][rows], kind="stable")]
    place = steps.place(table["start"][rows])
    rows, place = rows[place != NA], place[place != NA]
    if len(rows) < MANY:
        return []
    products = np.sort(device["start"][view.rows[is_multiplying(kernel_facts(trace).category[view.rows])]])
    before = np.searchsorted(products, table["start"][rows])
    parted = np.flatnonzero((np.diff(before) > 0) | (np.diff(place) > 0)) + 1
    longest: dict[int, Times] = {}
    for piece in np.split(np.arange(len(rows)), parted):
        step = int(place[piece[0]])
        if len(piece) > len(longest.get(step, ())):
            longest[step] = rows[piece]
    return list(longest.values())


SEPARATE_REDUCTIONS_ANALYZER = FileAnalyzer(
    "separate_reductions",
    separate_reductions_run,
    (DEVICE_EVENTS, Need("collectives", "record collectives: a job on one device has none", optional=True)),
)


# What each rank's launching threads call in a judged step: blocking calls, allocations, and whether steps repeat.

DDP_FORWARD = "DistributedDataParallel.forward"
_MAPS = when_used.pattern(r"(cu|hip)Mem(Map|Create|AddressReserve)")
_FREES = when_used.pattern(r"(cuda|hip)Free(Async)?(_|$)|cuMemFree|(AscendCL@)?aclrtFree")
_ALLOCATES = when_used.pattern(
    r"(cuda|hip)Malloc(Async|FromPoolAsync|Managed)?(_|$)|cuMemAlloc(_|$|Async)|(AscendCL@)?aclrtMalloc"
)


def _calls_per_step_of_lane(trace: Trace, view: LaneView) -> Iterator[HostCallsEntry]:
    host, names = trace["host_events"], trace.names
    steps = judged(view)
    rows = rows_of_rank(host, view.lane.rank)
    called = np.zeros(len(names) + 1, np.int64)  # the first place is that of absent names
    for piece in blocks(*rows):
        places = host["name"][piece][host["category"][piece] == Category.RUNTIME] - NO_NAME
        called += np.bincount(places, minlength=len(called))
    called = called[1:]
    allocations, frees = (_per_step(trace, rows, pattern, steps) for pattern in (_ALLOCATES, _FREES))
    kernels, repeated = _kernels(trace, view, steps)
    yield {
        "rank": view.lane.rank,
        "device": view.lane.device,
        "runtime": _runtime(trace, called),
        "steps": len(steps),
        "steady": steps.steady,
        "kernels_per_step": kernels,
        "repeated_frac": repeated,
        "blocking_calls": blocking_sites(trace, view, steps),
        "allocations_per_step": float(allocations.mean()),
        "frees_per_step": float(frees.mean()),
        "least_allocations": int(allocations.min()),
        "least_frees": int(frees.min()),
        "maps_segments": _number(called, names.matching(lambda name: _MAPS.match(name) is not None)) > 0,
        "caches": _caches(trace, view),
        "frees_outside_per_step": _outside(trace, rows, steps),
        "passes_per_step": _passes(trace, view.lane.rank),
    }


def _runtime(trace: Trace, called: Times) -> Literal["cuda", "hip", "acl"] | None:
    """Whose runtime most calls are; `called` counts them by the code of their name."""
    counts: dict[Literal["cuda", "hip", "acl"], int] = {
        "cuda": _number(called, trace.names.matching(lambda text: text.startswith("cu"))),
        "hip": _number(called, trace.names.matching(lambda text: text.startswith("hip"))),
        "acl": _number(called, trace.names.matching(lambda text: "acl" in text)),
    }
    best = max(counts, key=lambda runtime: counts[runtime])
    return best if counts[best] else None


def _number(called: Times, wanted: Mask) -> int:
    return int(called[wanted[: len(called)]].sum())


def _calls(trace: Trace, rows: tuple[int, int], wanted: Mask) -> Times:
    """Runtime calls of wanted names among the host events between two rows."""
    host = trace["host_events"]
    if not wanted.any():
        return np.empty(0, np.int64)
    return rows_where(*rows, lambda block: wanted[host["name"][block]] & (host["category"][block] == Category.RUNTIME))


def _per_step(trace: Trace, rows: tuple[int, int], pattern: re.Pattern[str], steps: Judged) -> Times:
    """Calls of such a name in each judged step, shape (n,)."""
    wanted: Mask = trace.names.matching(lambda name: kinds.is_allocator_call(name) and bool(pattern.match(name)))
    place = steps.place(trace["host_events"]["start"][_calls(trace, rows, wanted)])
    return np.bincount(place[place != NA], minlength=len(steps)).astype(np.int64)


def _outside(trace: Trace, of_rank: tuple[int, int], steps: Judged) -> float | None:
    """Frees per judged step that no operator made; None where no operators were recorded, or some step has none."""
    host = trace["host_events"]
    rows = _calls(trace, of_rank, trace.names.matching(lambda name: _FREES.match(name) is not None))
    operators = host["category"] == Category.OP
    if not len(rows) or not operators.any():
        return None
    around = innermost(host, operators, host["thread"][rows], host["start"][rows])
    place = steps.place(host["start"][rows[around == NA]])
    counts = np.bincount(place[place != NA], minlength=len(steps))
    return float(counts.mean()) if counts.min() > 0 else None


def _passes(trace: Trace, rank: int) -> int | None:
    """Forward passes in a step of the host, which runs ahead of the device's."""
    host, steps = trace["host_events"], trace["steps"]
    code = trace.names.find(DDP_FORWARD)
    if code == NO_NAME:
        return None
    forward = host["start"][rows_where(*rows_of_rank(host, rank), lambda block: host["name"][block] == code)]
    begins = np.sort(steps["start"][steps["rank"] == rank])
    step = np.searchsorted(begins, forward, "right") - 1
    if not len(begins) or not (step >= 0).any():
        return None
    counts = np.bincount(step[step >= 0])
    return int(np.median(counts[counts > 0]))


def _kernels(trace: Trace, view: LaneView, steps: Judged) -> tuple[float, float | None]:
    """Compute kernels per judged step, and how many of a steady step's the one before it ran too."""
    device, count = trace["device_events"], 0

    def pieces() -> Iterator[tuple[Times, Times]]:
        for piece in blocks(0, len(view.rows)):
            rows = view.rows[piece]
            rows = rows[device["kind"][rows] == Kind.COMPUTE]
            place = steps.place(device["start"][rows])
            yield device["name"][rows[place != NA]] - NO_NAME, place[place != NA]

    used = np.zeros(len(trace.names) + 1, np.bool_)
    for name, _ in pieces():
        used[name] = True
        count += len(name)
    per_step = count / max(len(steps), 1)
    if not steps.steady or not count:
        return per_step, None
    width, column = int(np.count_nonzero(used)), np.cumsum(used) - 1
    table = np.zeros(len(steps) * width, np.int64)
    for name, place in pieces():
        # Of the few steps of a piece only: the table may be much larger.
        found, times = counted(place * width + column[name])
        table[found] += times
    tables = pairwise(table.reshape(len(steps), -1))
    alike = [float(np.minimum(one, other).sum() / max(one.sum(), other.sum(), 1)) for one, other in tables]
    return per_step, float(np.median(alike))


def _caches(trace: Trace, view: LaneView) -> bool | None:
    """Whether the allocator of the lane's rank reported reserved memory; None where nothing of it is recorded."""
    samples = trace["memory_samples"]
    own = np.flatnonzero((samples["rank"] == view.lane.rank) & (samples["device"] == view.lane.device))
    return bool((samples["reserved"][own] > 0).any()) if len(own) else None


CALLS_PER_STEP_ANALYZER = FileAnalyzer(
    "host_calls", entries_of_devices("host_calls", HOST_CALLS, _calls_per_step_of_lane), (DEVICE_EVENTS,), (HOST_CALLS,)
)


# What DistributedDataParallel does that its options would spare: gradients reduced in every micro-batch, a search for
# unused parameters in every step, and copies between gradients and buckets.

SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
"""The range around the search (torch/csrc/distributed/c10d/reducer.cpp)."""


def ddp_options_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The findings `synced_accumulation`, `unused_parameter_search` and `gradient_copies`."""
    result = Result(DDP_OPTIONS_ANALYZER.name)
    if trace.names.find(DDP_FORWARD) < 0:
        return result
    for view in lanes:
        steps = judged(view)
        if steps.steady:
            result.findings += synced_accumulation(trace, view, steps, DDP_FORWARD, "all_reduce")
            result.findings += [*_search(trace, view, steps), *_copies(trace, view, steps)]
    return result


def synced_accumulation(trace: Trace, view: LaneView, steps: Judged, of_model: str, op: str) -> list[FindingEntry]:
    """Several forward passes (ranges `of_model`) per step, each followed by reductions of its own."""
    host, table = trace["host_events"], trace["collectives"]
    forward = ranges(trace, view.lane.rank, of_model)
    recorded = trace["steps"]
    begin = np.sort(recorded["start"][recorded["rank"] == view.lane.rank])
    if not len(forward) or not len(begin):
        return []
    reduced = np.flatnonzero((table["rank"] == view.lane.rank) & (table["op"] == trace.names.find(op)))
    issued = _issued(trace, reduced)
    order = np.argsort(issued, kind="stable")
    reduced, issued = reduced[order], issued[order]
    starts = host["start"][forward]
    behind = np.searchsorted(starts, issued, "right") - 1  # the forward pass each comes after
    step_of = np.searchsorted(begin, starts, "right") - 1
    needless = np.zeros(len(reduced), np.bool_)
    passes: list[int] = []
    for which in distinct_values(step_of[step_of >= 0]).tolist():
        mine = np.flatnonzero(step_of == which)
        counts = np.array([int((behind == place).sum()) for place in mine.tolist()])
        passes.append(len(mine))
        if len(mine) > 1 and counts.min() > 0 and counts.max() == counts.min():
            needless |= np.isin(behind, mine[:-1])
    count = int(np.median(passes)) if passes else 1
    if count < 2 or not needless.any():
        return []
    rows = reduced[needless]
    # What they do not expose themselves they push behind: the last micro-batch's wait for the link.
    judged_time = union(steps.start, steps.end)
    exposed = intersect(intersect(view.parts.exposed_communication, covered(table, reduced)), judged_time).total
    exposed = min(exposed, intersect(covered(table, rows), judged_time).total)
    evidence = shown(trace, "collectives", rows, "before the step's last micro-batch")
    return finding_of(lambda share: SyncedAccumulation(count, share), view, steps, exposed, evidence)


def _issued(trace: Trace, rows: Times) -> Times:
    """When each collective was launched, else when it began."""
    device, host, table = trace["device_events"], trace["host_events"], trace["collectives"]
    event = table["event"][rows]
    launch = np.where(event != NA, device.at("launch", np.maximum(event, 0)) if len(device) else NA, NA)
    return np.asarray(np.where(launch != NA, host["start"][np.maximum(launch, 0)], table["start"][rows]), np.int64)


def _copies(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    """Copies between gradients and buckets, as far as nothing else runs beside them."""
    device = trace["device_events"]
    copied = kernel_facts(trace).gradient_copy
    rows = view.rows[copied[view.rows]]
    rows = rows[steps.place(device["start"][rows]) != NA]
    alone = subtract(covered(device, rows), covered(device, view.rows[~copied[view.rows]]))
    evidence = shown(trace, "device_events", rows, "between a gradient and its bucket")
    return finding_of(GradientCopies, view, steps, alone, evidence)


def _search(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    """The search, as far as the device idles beneath it."""
    host = trace["host_events"]
    rows = ranges(trace, view.lane.rank, SEARCH)
    rows = rows[steps.place(host["start"][rows]) != NA]
    if len(rows) < len(steps):
        return []
    idle = intersect(view.parts.idle, covered(host, rows))
    return finding_of(UnusedParameterSearch, view, steps, idle, shown(trace, "host_events", rows, ""))


DDP_OPTIONS_ANALYZER = FileAnalyzer(
    "ddp_options",
    ddp_options_run,
    (Need("collectives", "record collectives: a job on one device has none", optional=True),),
)


# `nn.DataParallel`: one process that drives all devices, scatters each batch, and copies the model in every step.

FORWARD = "DataParallel.forward"
"""The range that torch.nn.DataParallel writes around its forward pass."""


def data_parallel_run(facts: RunFacts) -> Result:
    """A finding `single_process` where a rank drives several devices through `nn.DataParallel`."""
    result = Result(DATA_PARALLEL_ANALYZER.name)
    devices: dict[int, list[LaneSummary]] = defaultdict(list)
    for lane in facts.lanes:
        if lane.device != NA:
            devices[lane.rank].append(lane)
    if facts.trace.names.find(FORWARD) < 0:
        return result
    for rank, lanes in devices.items():
        if len(lanes) > 1:
            _add(result, facts, rank, lanes)
    return result


def _add(result: Result, facts: RunFacts, rank: int, lanes: list[LaneSummary]) -> None:
    judged = [facts.steady.breakdown(lane) for lane in lanes]
    window = max(breakdown.window for breakdown in judged)
    busiest = max(breakdown.compute for breakdown in judged)
    lost = max(window - busiest, 0)
    if not window:
        return
    share, steps = lost / window, max(facts.steady.count(lanes[0]), 1)
    words = SingleProcess(len(lanes), share)
    result.findings.append(made(words, ranks=[rank], share=share, cost_ns=lost, mean_ns=lost // steps))


DATA_PARALLEL_ANALYZER = RunAnalyzer("data_parallel", data_parallel_run, (Need("ranks", "record the ranks' activity"),))


LIMITER = "FullyShardedDataParallel.rate_limiter"
BEFORE = "FullyShardedDataParallel._pre_backward_hook"
AHEAD = "FullyShardedDataParallel._pre_backward_prefetch"
"""Within the hook: gathers issued in it are of the module behind, those outside it of this one."""
ROOTS = ("FSDP::root_pre_forward", "FullyShardedDataParallel._to_kwargs")
"""Once per forward pass of the whole model, in FSDP2 and in FSDP1."""
AT_ONCE = 0.5
"""Share of the gathers of a backward pass that begin where they are needed, from which none is fetched ahead."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The findings `limited_gathers`, `late_gathers` and `synced_accumulation`."""
    result = Result(FSDP_OPTIONS_ANALYZER.name)
    if all(trace.names.find(name) < 0 for name in (LIMITER, BEFORE, *ROOTS)):
        return result
    for view in lanes:
        steps = judged(view)
        if steps.steady:
            result.findings += [*_limited(trace, view, steps), *_late(trace, view, steps)]
            for root in ROOTS:
                result.findings += synced_accumulation(trace, view, steps, root, "reduce_scatter")
    return result


def _gathers(trace: Trace, rank: int, steps: Judged) -> tuple[Times, Times]:
    """All-gathers issued in judged steps, in order of issue: rows of `collectives`, and when each was issued."""
    table, device, host = trace["collectives"], trace["device_events"], trace["host_events"]
    rows = np.flatnonzero((table["rank"] == rank) & (table["op"] == trace.names.find("all_gather")))
    rows = rows[table["event"][rows] != NA]
    launch = device.at("launch", table["event"][rows])
    rows, issued = rows[launch != NA], host["start"][launch[launch != NA]]
    kept = steps.place(issued) != NA
    order = np.argsort(issued[kept], kind="stable")
    return rows[kept][order], issued[kept][order]


def _limited(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    """From each wait of the limiter to the end of the gather behind it: what of this is not compute."""
    host, table = trace["host_events"], trace["collectives"]
    rows = ranges(trace, view.lane.rank, LIMITER)
    rows = rows[steps.place(host["start"][rows]) != NA]
    gathers, issued = _gathers(trace, view.lane.rank, steps)
    if not len(rows) or not len(gathers):
        return []
    behind = np.minimum(np.searchsorted(issued, host["end"][rows]), len(gathers) - 1)
    held = union(host["start"][rows], np.maximum(table["end"][gathers[behind]], host["end"][rows]))
    stalled = join(view.parts.idle, view.parts.exposed_communication)
    evidence = shown(trace, "host_events", rows, "the limiter's wait")
    return finding_of(LimitedGathers, view, steps, intersect(stalled, held), evidence)


def _late(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    """Gathers of the backward pass that are issued in the hook of the module that needs them, and exposed."""
    table, device, host, rank = trace["collectives"], trace["device_events"], trace["host_events"], view.lane.rank
    rows, issued = _gathers(trace, rank, steps)
    hooks, ahead = covered(host, ranges(trace, rank, BEFORE)), covered(host, ranges(trace, rank, AHEAD))
    within = measure_within(hooks, issued, issued + 1) > 0
    needed = within & (measure_within(ahead, issued, issued + 1) == 0)
    if needed.sum() <= AT_ONCE * within.sum():
        return []
    late = rows[needed]
    exposed = intersect(view.parts.exposed_communication, covered(table, late))
    launches = device.at("launch", table["event"][late])
    evidence = shown(trace, "host_events", launches, "issued where it is needed")
    counts = int(needed.sum()), int(within.sum())
    return finding_of(lambda share: LateGathers(*counts, share), view, steps, exposed, evidence)


FSDP_OPTIONS_ANALYZER = FileAnalyzer(
    "fsdp_options", run, (Need("host_events", "record CPU activities too", optional=True),)
)


ANALYZERS = (
    CALLS_PER_STEP_ANALYZER,
    DATA_PARALLEL_ANALYZER,
    DDP_OPTIONS_ANALYZER,
    FSDP_OPTIONS_ANALYZER,
    SEPARATE_REDUCTIONS_ANALYZER,
)
