"""A lane (one rank on one device) cut to the window asked for: its parts as spans, its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, TypeVar

import numpy as np

from gpuscope.analyzers.base.evidence import Role, StepFacts, roles, step_facts
from gpuscope.errors import AnalysisError, UsageError
from gpuscope.report.view import call_tree
from gpuscope.schema import call_tree_section, document, memory_section, nccl_sections
from gpuscope.schema.call_tree_section import (
    CompilationSection,
    HostCallsEntry,
    OperatorWorkEntry,
    PlaceEntry,
    ServingStep,
)
from gpuscope.schema.document import Diagnosis, KernelEntry
from gpuscope.schema.job_log_section import JobLogSection
from gpuscope.schema.memory_section import Hang
from gpuscope.schema.nccl_sections import KernelRankEntry, OperatorEntry
from gpuscope.schema.provenance import ExpertsSection, Pipeline, Replay, RolesSection
from gpuscope.trace.intervals import Breakdown, Parts, Spans, split, union
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.steps import device_steps
from gpuscope.trace.table import Times, blocks, places
from gpuscope.trace.trace import Lane, Trace
from gpuscope.when_used import dataclass

# The parts of the report that analyses give: each declared once, with its type and how several files' become one.

T = TypeVar("T")


def only(values: Sequence[T]) -> T:
    """For sections that one analysis gives once per run."""
    if len(values) != 1:
        raise AnalysisError(f"{len(values)} analyses gave a section of the report that only one may give")
    return values[0]


def every(values: Sequence[list[T]]) -> list[T]:
    """For lists of what each file says of its own ranks."""
    return [entry for entries in values for entry in entries]


def merge_kernels(values: Sequence[list[KernelEntry]]) -> list[KernelEntry]:
    """Kernels of all files added up by name and category, the costliest first. A rate is the mean by time."""
    same: dict[tuple[str, str], list[KernelEntry]] = defaultdict(list)
    for entry in (entry for entries in values for entry in entries):
        same[entry["name"], entry["category"]].append(entry)
    everything = sum(entry["dur_ns"] for own in same.values() for entry in own)
    return sorted((_kernel(own, everything) for own in same.values()), key=lambda kernel: -kernel["dur_ns"])


def _kernel(own: Sequence[KernelEntry], everything: int) -> KernelEntry:
    count, spent = sum(entry["count"] for entry in own), sum(entry["dur_ns"] for entry in own)
    rates = [(entry["flops_per_s"], entry["dur_ns"]) for entry in own if entry["flops_per_s"] is not None]
    rated = sum(weight for _, weight in rates)
    # A kernel multiplies at one precision, as a rule; where files differ there is no one peak.
    precisions = {entry["precision"] for entry in own if entry["flops_per_s"] is not None}
    shares = [
        None if entry["peak_frac"] is None else entry["peak_frac"] * entry["dur_ns"]
        for entry in own
        if entry["flops_per_s"] is not None
    ]
    known = [share for share in shares if share is not None]
    comparable = len(precisions) == 1 and len(known) == len(shares) and rated
    return {
        "name": own[0]["name"],
        "category": own[0]["category"],
        "operator": max(own, key=lambda entry: entry["dur_ns"])["operator"],
        "known_by": own[0].get("known_by"),
        "count": count,
        "dur_ns": spent,
        "mean_ns": spent // count,
        "min_ns": min(entry["min_ns"] for entry in own),
        "max_ns": max(entry["max_ns"] for entry in own),
        "share_frac": spent / everything if everything else 0.0,
        "flops_per_s": sum(rate * weight for rate, weight in rates) / rated if rated else None,
        "precision": next(iter(precisions)) if len(precisions) == 1 else None,
        "peak_frac": sum(known) / rated if comparable else None,
    }


KERNELS_BY_RANK = 30
"""Kernels, of those that take longest over all ranks, that have a row per rank."""


def merge_kernel_ranks(values: Sequence[list[KernelRankEntry]]) -> list[KernelRankEntry]:
    """The rows of all ranks of the kernels that take longest over all, kernel by kernel, the costliest first."""
    same: dict[tuple[str, str], list[KernelRankEntry]] = defaultdict(list)
    for entry in every(values):
        same[entry["name"], entry["category"]].append(entry)
    costliest = sorted(same.values(), key=lambda own: -sum(entry["dur_ns"] for entry in own))[:KERNELS_BY_RANK]
    return [entry for own in costliest for entry in own]


def merge_operators(values: Sequence[list[OperatorEntry]]) -> list[OperatorEntry]:
    """Operators of all files added up by name, the one with most time of its own first."""
    same: dict[str, list[OperatorEntry]] = defaultdict(list)
    for entry in every(values):
        same[entry["name"]].append(entry)
    rows: list[OperatorEntry] = [
        {
            "name": name,
            "count": sum(entry["count"] for entry in own),
            "host_ns": sum(entry["host_ns"] for entry in own),
            "host_self_ns": sum(entry["host_self_ns"] for entry in own),
            "device_ns": _added(entry["device_ns"] for entry in own),
            "device_self_ns": _added(entry["device_self_ns"] for entry in own),
            "kernels": _added(entry["kernels"] for entry in own),
        }
        for name, own in same.items()
    ]
    return sorted(rows, key=lambda row: (-(row["device_self_ns"] or 0), -row["host_self_ns"]))


WORK_KEPT = 400
"""Rows of operators by shapes in a report; the others become one."""


def merge_work(values: Sequence[list[OperatorWorkEntry]]) -> list[OperatorWorkEntry]:
    """Rows of all ranks added up by what they are of, the costliest first; the last is of all that are not kept."""
    same: dict[tuple[str | None, ...], list[OperatorWorkEntry]] = defaultdict(list)
    for entry in every(values):
        key = (entry["module"], entry["operator"], entry["shapes"], entry["within"], entry["within_shapes"])
        same[key].append(entry)
    rows = sorted((_work(own) for own in same.values()), key=lambda row: -row["dur_ns"])
    if len(rows) <= WORK_KEPT:
        return rows
    rest = _work(rows[WORK_KEPT - 1 :])
    return [
        *rows[: WORK_KEPT - 1],
        rest | {"module": None, "operator": None, "shapes": "", "within": None, "within_shapes": ""},
    ]


def _work(own: Sequence[OperatorWorkEntry]) -> OperatorWorkEntry:
    needed = [entry["peak_ns"] for entry in own]
    return max(own, key=lambda entry: entry["dur_ns"]) | {
        "calls": sum(entry["calls"] for entry in own),
        "kernels": sum(entry["kernels"] for entry in own),
        "dur_ns": sum(entry["dur_ns"] for entry in own),
        "flops": sum(entry["flops"] for entry in own),
        "bytes": sum(entry["bytes"] for entry in own),
        "peak_ns": None if None in needed else _added(needed),
        "known_ns": sum(entry.get("known_ns", 0) for entry in own),
    }


def _added(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class Section(Generic[T]):
    """A part of the report of type `T` under `key` (docs/report.md).

    `merge` makes one value of those of several results. `printed` is False for what the report is made from but
    does not hold under that key. Raises `ValueError` for a key that the report does not declare.
    """

    key: str
    merge: Callable[[Sequence[T]], T] = only
    printed: bool = True

    def __post_init__(self) -> None:
        if self.printed != (self.key in Diagnosis.__annotations__):
            raise ValueError(f"section {self.key!r}: declare its type in gpuscope/schema/document.py")


COLLECTIVES = Section[list[document.CollectiveEntry]]("collectives")
STRAGGLERS = Section[list[document.StragglerEntry]]("stragglers")
RANK_STEPS = Section[list[document.RankStepEntry]]("rank_steps")
CLOCK_ERROR = Section[int | None]("clock_error_ns", printed=False)
"""It is printed as `trace.clock_error_ns`."""
STRAGGLERS_TESTABLE = Section[bool]("stragglers_testable", printed=False)
WAITS_WITHOUT_CORE = Section[float]("waits_without_core", printed=False)
"""Share of the exposed waiting for late ranks that their threads' waiting for cores is long enough to explain."""
"""Whether there were enough collectives to test for a rank that always comes last."""
SLOWDOWN = Section[document.Slowdown]("slowdown")
REPLAY = Section[Replay]("replay")
PIPELINE = Section[Pipeline]("pipeline")
HANG = Section[Hang]("hang")
COMPILATION = Section[CompilationSection]("compilation")
EXPERTS = Section[ExpertsSection]("experts")
SERVING_STEPS = Section[list[ServingStep]]("serving_steps", every, printed=False)
"""What `serving` is made from once all causes are known."""
ROLES = Section[RolesSection]("roles")
JOB_LOG = Section[JobLogSection]("job_log")
STEP_TIME = Section[document.StepTime]("step_time")
"""«The step» of a job that is known by its log alone; of any other the run's facts have it."""
NCCL = Section[nccl_sections.Nccl]("nccl")
TOPOLOGY = Section[list[nccl_sections.TopologyEntry]]("topology")
BANDWIDTH = Section[list[nccl_sections.BandwidthEntry]]("bandwidth")
FITS = Section[list[nccl_sections.FitEntry]]("fits")
CROSSOVERS = Section[list[nccl_sections.CrossoverEntry]]("crossovers")
LINK_COUNTERS = Section[list[nccl_sections.LinkCounterEntry]]("link_counters", every)
DEVICE_COUNTERS = Section[list[call_tree_section.DeviceCounterEntry]]("device_counters", every)
TRAFFIC = Section[list[nccl_sections.TrafficEntry]]("traffic")
MEMORY = Section[list[memory_section.MemoryEntry]]("memory")
HOST_CALLS = Section[list[HostCallsEntry]]("host_calls", every)
KERNELS = Section[list[KernelEntry]]("kernels", merge_kernels)
COMPUTE = Section[list[call_tree_section.ComputeEntry]]("compute", every)
POWER = Section[list[call_tree_section.PowerEntry]]("power")
EFFICIENCY = Section[list[document.EfficiencyEntry]]("efficiency", every)
OPERATOR_WORK = Section[list[call_tree_section.OperatorWorkEntry]]("operator_work", merge_work)
KERNEL_RANKS = Section[list[KernelRankEntry]]("kernel_ranks", merge_kernel_ranks)
OPERATORS = Section[list[OperatorEntry]]("operators", merge_operators)
RANGES = Section[list[nccl_sections.RangeEntry]]("ranges", every)
PHASES = Section[list[nccl_sections.PhaseEntry]]("phases", every)
API_CALLS = Section[list[nccl_sections.ApiCallEntry]]("api_calls", every)
COPIES = Section[list[nccl_sections.CopyEntry]]("copies", every)
LAUNCHES = Section[list[nccl_sections.LaunchEntry]]("launches", every)
QUEUES = Section[list[nccl_sections.QueueEntry]]("queues", every)
STREAMS = Section[list[nccl_sections.StreamEntry]]("streams", every)
CALL_TREE = Section[list[PlaceEntry]]("call_tree", call_tree.merge)
GAPS = Section[list[nccl_sections.GapEntry]]("gaps", every)

DECLARED: tuple[Section[Any], ...] = (
    COLLECTIVES,
    STRAGGLERS,
    RANK_STEPS,
    CLOCK_ERROR,
    STRAGGLERS_TESTABLE,
    WAITS_WITHOUT_CORE,
    SLOWDOWN,
    REPLAY,
    PIPELINE,
    COMPILATION,
    EXPERTS,
    SERVING_STEPS,
    ROLES,
    JOB_LOG,
    STEP_TIME,
    HANG,
    NCCL,
    TOPOLOGY,
    BANDWIDTH,
    FITS,
    LINK_COUNTERS,
    DEVICE_COUNTERS,
    CROSSOVERS,
    TRAFFIC,
    MEMORY,
    HOST_CALLS,
    KERNELS,
    EFFICIENCY,
    COMPUTE,
    OPERATOR_WORK,
    POWER,
    KERNEL_RANKS,
    OPERATORS,
    RANGES,
    PHASES,
    API_CALLS,
    COPIES,
    LAUNCHES,
    QUEUES,
    STREAMS,
    CALL_TREE,
    GAPS,
)
"""All of them; what an analysis gives must be one of these."""


class Sections:
    """Values by section: `sections[KERNELS] = entries`, of the type that the section declares."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __setitem__(self, section: Section[T], value: T) -> None:
        self._values[section.key] = value

    def __getitem__(self, section: Section[T]) -> T:
        value: T = self._values[section.key]
        return value

    def get(self, section: Section[T]) -> T | None:
        """The value, or None where no analysis gave one."""
        value: T | None = self._values.get(section.key)
        return value

    def printed(self) -> dict[str, Any]:
        """Those that the report holds, by their key there."""
        return {section.key: self._values[section.key] for section in DECLARED if section.printed and section in self}

    def __contains__(self, section: Section[Any]) -> bool:
        return section.key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)


def merged(parts: Iterable[Sections]) -> Sections:
    """One value per section from all results. Raises `AnalysisError` where several gave what only one may."""
    parts, found = list(parts), Sections()
    for section in DECLARED:
        values = [own[section] for own in parts if section in own]
        if values:
            found[section] = section.merge(values)
    return found


@dataclass(frozen=True)
class StepWindow:
    """A step on the device's clock; `step` is `NA` for what ran before the first one, or behind a single one."""

    step: int
    start: int
    end: int


@dataclass(frozen=True)
class LaneView:
    """A lane, its window, the exact parts of that window, and the steps that tile it."""

    lane: Lane
    window: tuple[int, int]
    parts: Parts
    breakdown: Breakdown
    steps: tuple[StepWindow, ...]
    basis: str | None
    """What the steps were found from."""
    facts: tuple[StepFacts, ...]
    """Of each of `steps`, what decides its role."""
    roles: tuple[Role, ...]
    """Of each of `steps`, by this rank's own durations; the run's roles come from all ranks."""
    cut: bool = False
    """Whether the window is that of the steps asked for, rather than the whole recording."""

    @property
    def key(self) -> tuple[int, int]:
        """(rank, device)."""
        return self.lane.rank, self.lane.device

    @property
    def judged_steps(self) -> list[StepWindow]:
        """The steady steps by this rank's own durations, else all; its window as one where it has no steps."""
        steady = [step for step, role in zip(self.steps, self.roles, strict=True) if role == Role.STEADY]
        proper = [step for step in self.steps if step.step != NA]
        return steady or proper or [StepWindow(NA, *self.window)]

    @property
    def judged(self) -> tuple[int, int]:
        """From the first steady step's begin to the last one's end; the window where there is none."""
        steady = [step for step, role in zip(self.steps, self.roles, strict=True) if role == Role.STEADY]
        return (steady[0].start, steady[-1].end) if steady else self.window

    @property
    def judged_spans(self) -> Spans:
        """The same without the long steps between them."""
        return union(*bounds(self.judged_steps))

    @property
    def rows(self) -> Times:
        """Rows of its device events, also of those outside the window."""
        return self.lane.rows


def views(trace: Trace, steps: tuple[int, int] | None = None) -> list[LaneView]:
    """Every lane of the trace over its whole window, or over the steps first..last asked for.

    Raises `UsageError` where steps are asked for that no lane has.
    """
    found = [_view(trace, lane, steps) for lane in trace.lanes()]
    if steps is not None and found and all(view is None for view in found):
        raise no_such_steps(steps)
    return [view for view in found if view is not None]


def computing(trace: Trace, view: LaneView) -> Times:
    """Rows of a lane's compute kernels that begin in its judged steps, in order."""
    device, steps = trace["device_events"], view.judged_steps
    begins, ends = bounds(steps)
    found: list[Times] = [view.rows[:0]]
    for block in blocks(0, len(view.rows)):
        rows = view.rows[block]
        inside = step_at(begins, ends, device["start"][rows]) != NA
        found.append(rows[inside & (device["kind"][rows] == Kind.COMPUTE)])
    return np.concatenate(found)


def step_at(begins: Times, ends: Times, at: Times) -> Times:
    """Which of several steps, ascending and apart, each instant lies in, shape as `at`; NA outside all."""
    if not len(begins):
        return np.full(np.shape(at), NA)
    place = places(begins, at, "right") - 1
    inside = (place >= 0) & (at < ends[np.maximum(place, 0)])
    return np.where(inside, place, NA)


def bounds(steps: Sequence[StepWindow]) -> tuple[Times, Times]:
    """Starts and ends of steps, ns; shape (steps,) each."""
    return np.array([step.start for step in steps], np.int64), np.array([step.end for step in steps], np.int64)


def no_such_steps(steps: tuple[int, int]) -> UsageError:
    """The error where steps are asked for that nothing has."""
    return UsageError(f"no rank has a step between {steps[0]} and {steps[1]}", hint="gpuscope info lists the steps")


def _view(trace: Trace, lane: Lane, asked: tuple[int, int] | None) -> LaneView | None:
    window = trace.window(lane.rows)
    steps, basis = _steps(trace, lane, window)
    if steps:  # a single annotated step may begin before its first device event
        window = (steps[0].start, steps[-1].end)
    if asked is not None:
        steps = [step for step in steps if step.step != NA and asked[0] <= step.step <= asked[1]]
        if not steps:
            return None
        window = (steps[0].start, steps[-1].end)
    compute, communication, memory = (trace.spans(lane.rows, kind) for kind in Kind)
    parts = split(compute, communication, memory, window)
    facts = step_facts(trace, lane, [step.step for step in steps], *bounds(steps))
    roles = tuple(_own_roles(steps, facts))
    breakdown = trace.breakdown(lane.rows, window)
    return LaneView(lane, window, parts, breakdown, tuple(steps), basis, facts, roles, cut=asked is not None)


def _own_roles(steps: Sequence[StepWindow], facts: Sequence[StepFacts]) -> list[Role]:
    """The role of each step of one rank, what ran before the first included."""
    found = iter(roles([own for step, own in zip(steps, facts, strict=True) if step.step != NA]))
    return [Role.SETUP if step.step == NA else next(found) for step in steps]


def _steps(trace: Trace, lane: Lane, window: tuple[int, int]) -> tuple[list[StepWindow], str | None]:
    table = trace["steps"]
    own = table.take(np.flatnonzero(table["rank"] == lane.rank))
    if not len(own):
        return [], None
    basis = trace.names[int(own["basis"][0])]
    tiles = device_steps(
        own,
        trace["device_events"],
        trace["host_events"],
        lane.rows,
        window,
        basis,
    )
    return [StepWindow(*tile) for tile in tiles], basis


def count_steps(steps: Sequence[StepWindow]) -> int:
    """Steps proper: what ran before the first one is none."""
    return sum(step.step != NA for step in steps)


@dataclass(frozen=True)
class HostWork:
    """Something that the launching threads did while the device was idle, by name, and for how long in all, ns."""

    name: str
    spent: int
    first_use: bool
    """Whether it is compiling, loading, or the first use of something."""


RECORDING = -1
"""Stands for all that is judged of a lane where `LaneSummary.once` has places of steps."""


@dataclass(frozen=True)
class LaneSummary:
    """A lane's window, exact parts (whole and per step), and where its communication was exposed."""

    rank: int
    device: int
    window: tuple[int, int]
    breakdown: Breakdown
    steps: tuple[StepWindow, ...]
    step_breakdowns: tuple[Breakdown, ...]
    basis: str | None
    facts: tuple[StepFacts, ...]
    """Of each of `steps`, what decides its role."""
    thinned: str
    """What shows that events were dropped from the recording; empty where nothing does."""
    exposed_communication: Spans
    events: int
    """Device events of the lane."""
    once: Mapping[int, tuple[HostWork, ...]] = field(default_factory=dict)
    """What the host did longest where no steady step is, by place in `steps`; `RECORDING` for all that is judged
    where too few steps are steady."""
    lost_work: int | None = None
    """Of a thinned lane: how long the kernels that the recording lacks may have run, ns; None where that is not
    known."""

    def check(self) -> None:
        """Raise `ValueError` where what is said of each step is not said of so many steps."""
        if not len(self.steps) == len(self.step_breakdowns) == len(self.facts):
            raise ValueError(f"{len(self.steps)} steps with {len(self.step_breakdowns)} breakdowns")
        if len(self.exposed_communication.start) != len(self.exposed_communication.end):
            raise ValueError("spans that begin and do not end")

    @property
    def key(self) -> tuple[int, int]:
        """(rank, device)."""
        return self.rank, self.device


def summarise(
    trace: Trace,
    view: LaneView,
    thinned: str = "",
    once: Mapping[int, tuple[HostWork, ...]] | None = None,
    lost_work: int | None = None,
) -> LaneSummary:
    """The summary of a lane; `thinned` says what shows that events were dropped, `lost_work` how long these may have
    run, `once` what is not done every step."""
    return LaneSummary(
        rank=view.lane.rank,
        device=view.lane.device,
        window=view.window,
        breakdown=view.breakdown,
        steps=view.steps,
        step_breakdowns=step_breakdowns(trace, view),
        basis=view.basis,
        facts=view.facts,
        thinned=thinned,
        lost_work=lost_work,
        exposed_communication=view.parts.exposed_communication,
        events=len(view.rows),
        once=once or {},
    )


def step_breakdowns(trace: Trace, view: LaneView) -> tuple[Breakdown, ...]:
    """The exact breakdown of each step, all steps at once."""
    return trace.breakdowns(view.rows, [(step.start, step.end) for step in view.steps])
