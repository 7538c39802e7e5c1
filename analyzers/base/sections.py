"""The parts of the report that analyses give: each declared once, with its type and how several files' become one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from gpuscope.errors import AnalysisError
from gpuscope.report.view import places
from gpuscope.schema import compute_section, document, memory_section, nccl_sections, profile_sections
from gpuscope.schema.call_tree_section import PlaceEntry
from gpuscope.schema.compilation_section import CompilationSection
from gpuscope.schema.compute_section import OperatorWorkEntry
from gpuscope.schema.document import Diagnosis, KernelEntry
from gpuscope.schema.experts_section import ExpertsSection
from gpuscope.schema.hang_section import Hang
from gpuscope.schema.host_calls_section import HostCallsEntry
from gpuscope.schema.pipeline_section import Pipeline
from gpuscope.schema.profile_sections import KernelRankEntry, OperatorEntry
from gpuscope.schema.replay_section import Replay
from gpuscope.schema.roles_section import RolesSection
from gpuscope.schema.serving_section import ServingStep
from gpuscope.when_used import dataclass

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
NCCL = Section[nccl_sections.Nccl]("nccl")
TOPOLOGY = Section[list[nccl_sections.TopologyEntry]]("topology")
BANDWIDTH = Section[list[nccl_sections.BandwidthEntry]]("bandwidth")
FITS = Section[list[nccl_sections.FitEntry]]("fits")
CROSSOVERS = Section[list[nccl_sections.CrossoverEntry]]("crossovers")
LINK_COUNTERS = Section[list[nccl_sections.LinkCounterEntry]]("link_counters", every)
DEVICE_COUNTERS = Section[list[compute_section.DeviceCounterEntry]]("device_counters", every)
TRAFFIC = Section[list[nccl_sections.TrafficEntry]]("traffic")
MEMORY = Section[list[memory_section.MemoryEntry]]("memory")
HOST_CALLS = Section[list[HostCallsEntry]]("host_calls", every)
KERNELS = Section[list[KernelEntry]]("kernels", merge_kernels)
COMPUTE = Section[list[compute_section.ComputeEntry]]("compute", every)
POWER = Section[list[compute_section.PowerEntry]]("power")
EFFICIENCY = Section[list[document.EfficiencyEntry]]("efficiency", every)
OPERATOR_WORK = Section[list[compute_section.OperatorWorkEntry]]("operator_work", merge_work)
KERNEL_RANKS = Section[list[KernelRankEntry]]("kernel_ranks", merge_kernel_ranks)
OPERATORS = Section[list[OperatorEntry]]("operators", merge_operators)
RANGES = Section[list[profile_sections.RangeEntry]]("ranges", every)
PHASES = Section[list[profile_sections.PhaseEntry]]("phases", every)
API_CALLS = Section[list[profile_sections.ApiCallEntry]]("api_calls", every)
COPIES = Section[list[profile_sections.CopyEntry]]("copies", every)
LAUNCHES = Section[list[profile_sections.LaunchEntry]]("launches", every)
QUEUES = Section[list[profile_sections.QueueEntry]]("queues", every)
STREAMS = Section[list[profile_sections.StreamEntry]]("streams", every)
CALL_TREE = Section[list[PlaceEntry]]("call_tree", places.merge)
GAPS = Section[list[profile_sections.GapEntry]]("gaps", every)

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
