"""Launch overhead: graphs where the same kernels run step for step and nothing else holds the host up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.analyzers.advice.framework_settings import BUSY, by_framework, config, device_floor, on_cpu, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.rules.host.blocking_rules import places
from gpuscope.analyzers.changes import CapturedGraphs, Refused
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.words import units

MIN_STEPS = 2
"""Steady steps from which it can be said that steps repeat."""
ALIKE = 0.95
"""Share of a step's kernels that the step before it must have run: a graph replays the same ones."""
OFTEN = 0.5
"""Blocking calls per step from which they are part of a step."""
BLOCKED = 0.01
"""Share of the time that calls which copy nothing must block: others found nothing to wait for."""
REMOVE = ("remove_syncs", "pinned_copies")
"""Suggestions after which nothing blocks."""
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
    risk = (
        "every step must have the same shapes; the first steps take longer, because they compile; each graph keeps its "
        "memory; code that reads values on the host breaks a graph"
    )
    verify = "record again: far fewer cudaLaunchKernel calls, cudaGraphLaunch instead; the cause `launch` falls"


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
    risk = "loader workers share the bound cores; needs torch 2.9 or later (else numactl --cpunodebind)"
    verify = "record again: mean duration of cudaLaunchKernel falls"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Graphs, if the run can be one; the cores beside each GPU."""
    if on_cpu(case) or not dominates(case, finding) or case.steady_steps < MIN_STEPS:
        return
    setting, hindrance = _setting(case), _hindrance(case)
    if setting is not None:
        outcome, after = (None, ()) if hindrance is None else (Refused(hindrance[0]), hindrance[1])
        yield Proposal(
            finding, Graphs(), setting, (CapturedGraphs(),), outcome, device_floor(case, *BUSY), possible_after=after
        )
    if (case.program == "pytorch" or case.program is None) and (case.report["trace"]["world_size"] or 1) > 1:
        yield Proposal(finding, BoundToNode(), config("torchrun --numa-binding", "node"))


def dominates(case: Case, finding: FindingEntry) -> bool:
    """Whether launching is what most of the idle time goes to, of all its causes."""
    others = [other["share_frac"] for other in case.report["findings"] if other["code"] in IDLE]
    return finding["share_frac"] >= sum(others)


def _setting(case: Case) -> Setting | None:
    if case.native:
        return config("cudaStreamBeginCapture", "around the kernels of a step, then cudaGraphLaunch")
    if case.program == "jax":
        return None  # XLA forms command buffers itself
    by_hand = python("torch.compile.mode", '"reduce-overhead"')
    return by_framework(case, by_hand, megatron=config("--cuda-graph-impl", "local"))


def _hindrance(case: Case) -> tuple[str, tuple[str, ...]] | None:
    """Why no graph could be made as the run is now, and codes of the suggestions after which it could."""
    window = sum(rank["window_ns"] for rank in case.report["ranks"])
    where = [
        place for place in places(case)
        if place.per_rank >= OFTEN and (place.copy is not None or place.blocked >= BLOCKED * window)
    ]  # fmt: skip
    if where:
        named = "; ".join(place.text() for place in where[:3])
        return f"a graph can't hold calls that block within a step; first remove these: {named}", REMOVE
    alike = [entry["repeated_frac"] for entry in case.host_calls if entry["repeated_frac"] is not None]
    if alike and min(alike) < ALIKE:
        return (
            f"a graph replays the same kernels in every step, but only {units.share(min(alike))} of a step's kernels "
            "repeat in the next: first give all steps the same shapes (pad or pack to a few lengths)"
        ), ()
    return None


RULE = Rule("launching", (Graphs, BoundToNode), propose, programs=("pytorch", "jax", "native"), place=130)
