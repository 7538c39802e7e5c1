"""Launch overhead: graphs where the same kernels run step for step and nothing else holds the host up."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import by_framework, config, on_cpu
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.rules.host.blocking_rules import SHOWN, Place, batches, freed, places
from gpuscope.analyzers.advice.settings import megatron_settings, torch_settings
from gpuscope.analyzers.changes import CapturedGraphs, Change, PinnedCopies, Refused
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.naming import kinds
from gpuscope.when_used import dataclass
from gpuscope.words import units

MIN_STEPS = 2
"""Steady steps from which it can be said that steps repeat."""
ALIKE = 0.95
"""Share of a step's kernels that the step before it must have run: a graph replays the same ones."""
OFTEN = 0.5
"""Blocking calls per step from which they are part of a step."""
BLOCKED = 0.01
"""Share of the time that calls which copy nothing must block: others found nothing to wait for."""
NO_STEPS = "no steps were found, so what a graph would hold can't be told: record two or more, with a range around each"
IDLE = ("input", "sync", "gc", "host_other", "allocator", "unattributed")
"""Other causes of idle time."""


@dataclass(frozen=True)
class Graphs(Suggestion):
    """A step's kernels launched at once."""

    code = "cuda_graphs"
    answers = ("launch",)
    sets = '`torch.compile(mode="reduce-overhead")`, Megatron `--cuda-graph-impl`; in C++ `cudaStreamBeginCapture`'
    action = "Launch the step's kernels as CUDA graphs"
    why = "{cost}; a graph launches hundreds of kernels for the price of one"
    grounds = "{assumed}"
    risk = (
        "every step must have the same shapes; the first steps take longer, because they compile; each graph keeps its "
        "memory; code that reads values on the host breaks a graph"
    )
    verify = "record again: far fewer cudaLaunchKernel calls, cudaGraphLaunch instead; the cause `launch` falls"

    steps: int
    """Steady ones that were recorded."""

    @property
    def assumed(self) -> str:
        if self.steps >= MIN_STEPS:
            return ""
        return (
            "inferred: a single steady step was recorded, which can't show that the next ones run the same kernels in "
            "the same shapes; the figure holds if they do (record two or more)"
        )


@dataclass(frozen=True)
class GraphsOnceFree(Graphs):
    """The same where calls block within a step: the gain is of both."""

    action = "Do without the calls that block within a step, then launch its kernels as CUDA graphs"
    why = "{cost}; a graph launches hundreds of kernels for the price of one, but can't hold calls that block: {shown}"

    places: list[Place]
    """The calls, the longest first."""

    @property
    def shown(self) -> str:
        return "; ".join(one.text() for one in self.places[:SHOWN])


@dataclass(frozen=True)
class BoundToNode(Suggestion):
    """Launching threads on the cores beside their GPU."""

    code = "numa_binding"
    answers = ("launch",)
    sets = "`torchrun --numa-binding=node`"
    action = "Bind each rank to the CPU cores beside its GPU"
    why = "{cost}; a launch from the other socket's cores takes longer"
    why_not = (
        "on which cores a thread ran is not recorded: compare `nvidia-smi topo -m` with the job's CPU affinity, or "
        "record with nsys --cpuctxsw=process-tree"
    )
    bounded = False
    risk = "loader workers share the bound cores; needs torch 2.9 or later (else numactl --cpunodebind)"
    verify = "record again: mean duration of cudaLaunchKernel falls"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Graphs, if the run can be one and launching costs much, be it less than something else; the cores beside each
    GPU."""
    largest = finding["share_frac"] >= max(_others(case), default=0.0)
    much = finding["severity"] == "high" or case.report["verdict"]["cause"] == finding["code"]
    kernels = sum(one["launches"] for one in case.report["launches"])
    if on_cpu(case) or not kernels or not (largest or much):
        return
    setting = None if _in_graphs(case) or not _has_graphs(case) else _setting(case)
    blocking, shapes = _blocking(case), _unlike_shapes(case)
    if setting is not None:
        steps = case.steady_steps
        record = GraphsOnceFree(steps, blocking) if blocking else Graphs(steps)
        changes = (*_freeing(blocking), CapturedGraphs())
        refused = Refused(shapes or NO_STEPS) if shapes or not steps else None
        yield Proposal(finding, record, setting, changes, refused)
    if not dominates(case, finding):
        return
    if (case.program == "pytorch" or case.program is None) and (case.report["trace"]["world_size"] or 1) > 1:
        yield Proposal(finding, BoundToNode(), torch_settings.NUMA_BINDING.to("node"))


def _has_graphs(case: Case) -> bool:
    """Whether the runtime that launches is one that has graphs: not MTIA's or another accelerator's."""
    called = [row["name"] for row in case.report["api_calls"]]
    return not called or any(name.startswith(("cu", "hip", "acl", "AscendCL")) for name in called)


def dominates(case: Case, finding: FindingEntry) -> bool:
    """Whether launching is most of the idle time."""
    return finding["share_frac"] >= sum(_others(case))


def _others(case: Case) -> list[float]:
    return [other["share_frac"] for other in case.report["findings"] if other["code"] in IDLE]


def _setting(case: Case) -> Setting | None:
    if case.native:
        return config("cudaStreamBeginCapture", "around the kernels of a step, then cudaGraphLaunch")
    if case.program == "jax":
        return None  # XLA forms command buffers itself
    if any(entry["runtime"] == "acl" for entry in case.host_calls):
        return None  # torch.compile's mode is CUDA's; Ascend's graphs come with torch_npu's own backend
    by_hand = torch_settings.COMPILE_MODE.to('"reduce-overhead"')
    return by_framework(case, by_hand, megatron=megatron_settings.CUDA_GRAPH_IMPL.to("local"))


def _in_graphs(case: Case) -> bool:
    """Whether graphs launch most of the kernels already."""
    counts = {True: 0, False: 0}
    for call in case.report["api_calls"]:
        if kinds.is_kernel_launch(call["name"]):
            counts["GraphLaunch" in call["name"]] += call["count"]
    kernels = sum(one["launches"] for one in case.report["launches"])
    return counts[True] > 0 and kernels - counts[False] >= kernels / 2


def _blocking(case: Case) -> list[Place]:
    """Calls that block within a step: no graph can hold them."""
    window = sum(rank["window_ns"] for rank in case.report["ranks"])
    return [
        place
        for place in places(case)
        if place.per_rank >= OFTEN and (place.copy is not None or place.blocked >= BLOCKED * window)
    ]


def _freeing(blocking: list[Place]) -> tuple[Change, ...]:
    """What makes a step free of them: data from pinned memory, the others gone."""
    copies = batches(blocking)
    others = [place for place in blocking if place not in copies]
    pinned: tuple[Change, ...] = (PinnedCopies(),) if copies else ()
    return (*pinned, freed(others)) if others else pinned


def _unlike_shapes(case: Case) -> str:
    """Why steps are not alike enough for a graph; empty where they are."""
    alike = [entry["repeated_frac"] for entry in case.host_calls if entry["repeated_frac"] is not None]
    if not alike or min(alike) >= ALIKE:
        return ""
    return (
        f"a graph replays the same kernels in every step, but only {units.share(min(alike))} of a step's kernels "
        "repeat in the next: first give all steps the same shapes (pad or pack to a few lengths)"
    )


RULE = Rule(
    "launching", (Graphs, GraphsOnceFree, BoundToNode), propose, programs=("pytorch", "jax", "native"), place=130
)
