"""Calls of the device's allocator within steps: a cache that is switched off, one that thrashes, one that grows.

A caching allocator asks the driver for whole segments while it grows and never again. So allocations *and* frees
in every judged step, in numbers of the order of its kernels, come from an allocator that caches nothing; allocations
without frees are growth; both in smaller numbers are segments given back and asked for again (a full device).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpuscope.analyzers.advice.framework_settings import config, cost, device_floor, env, python, spelled
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import NoAllocatorStalls
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.host_calls_section import HostCallsEntry

PER_KERNEL = 0.1
"""Allocations and frees per kernel from which every tensor gets its own: each is written by a kernel or two, and a
segment of a cache (2 MiB at least) serves many."""

EMPTIED = 0.5
"""Share of the frees that no operator makes from which a flush of the cache is what makes them."""

State = Literal["off", "thrashing", "growing"]
_CONVOLUTIONS = ("conv", "miopen", "cudnn")


def state(entry: HostCallsEntry) -> State | None:
    """What the allocator of a rank does in judged steps; None where it hardly asks the driver."""
    if not entry["steady"] or entry["allocations_per_step"] + entry["frees_per_step"] == 0:
        return None
    least = PER_KERNEL * entry["kernels_per_step"]
    if min(entry["least_allocations"], entry["least_frees"]) >= max(least, 1) and entry["caches"] is not True:
        return "off"
    return "thrashing" if entry["frees_per_step"] > 0 else "growing"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By what the allocator does on the rank that asks most often."""
    entry = max(case.host_calls, key=lambda one: one["allocations_per_step"] + one["frees_per_step"], default=None)
    found = state(entry) if entry is not None else None
    if entry is None or found is None:
        return
    if case.program != "pytorch":
        yield _once(case, finding, entry)
    elif found == "off":
        yield _caching(case, finding, entry)
    elif (entry["frees_outside_per_step"] or 0) >= EMPTIED * entry["frees_per_step"] > 0:
        yield _emptied(case, finding, entry)
    elif not case.rocm and not entry["maps_segments"]:
        yield _segments(case, finding, found)


def _calls(entry: HostCallsEntry) -> str:
    return (
        f"{entry['allocations_per_step']:.0f} allocations and {entry['frees_per_step']:.0f} frees per step for "
        f"{entry['kernels_per_step']:.0f} kernels"
    )


def _caching(case: Case, finding: FindingEntry, entry: HostCallsEntry) -> Proposal:
    platform = "HIP" if case.rocm else "CUDA"
    library = "MIOpen" if case.rocm else "cuDNN"
    around = any(word in one["note"].lower() + one["name"].lower() for one in finding["evidence"]
                 for word in _CONVOLUTIONS)  # fmt: skip
    other = f"; where the calls stand inside convolutions alone, see whether they are {library}'s workspaces instead "
    other += "(torch.backends.cudnn.benchmark searches anew for every shape)"
    variables = "PYTORCH_NO_CUDA_MEMORY_CACHING"
    if case.rocm:
        variables = "PYTORCH_NO_HIP_MEMORY_CACHING or PYTORCH_NO_CUDA_MEMORY_CACHING"
    return Proposal(
        code="caching_allocator",
        action="Switch PyTorch's caching allocator on again",
        why=f"{cost(finding)}; {_calls(entry)}, in every step, as it is where {variables} is set or a pluggable "
        f"allocator caches nothing{other if around or case.rocm else ''}",
        setting=env(f"PYTORCH_NO_{platform}_MEMORY_CACHING", "unset"),
        grounds=f"inferred: with {_calls(entry)}, in every step, tensors come from the driver and from no cache",
        risk="tools that look for reads behind the end of a tensor need it switched off: then it is slow on purpose",
        verify=f"record again: no {'hip' if case.rocm else 'cuda'}Malloc and Free within a step; "
        "torch.cuda.memory_reserved() is above 0",
        changes=(NoAllocatorStalls(),),
        floor=device_floor(case, "compute"),
    )


def _emptied(case: Case, finding: FindingEntry, entry: HostCallsEntry) -> Proposal:
    return Proposal(
        code="no_empty_cache",
        action="Take torch.cuda.empty_cache() out of the step",
        why=f"{cost(finding)}; {entry['frees_outside_per_step']:.0f} frees per step are made outside any operator, as "
        "empty_cache() makes them: it waits for the device and gives all cached segments back",
        setting=python("torch.cuda.empty_cache()", "not in the loop of steps; if memory is short, PYTORCH_ALLOC_CONF="
                       "expandable_segments:True instead" if not case.rocm else "not in the loop of steps"),
        risk="another process on the same device gets no memory back between steps",
        verify=f"record again: no {spelled(case, 'cudaFree')} within a step",
        changes=(NoAllocatorStalls(),),
        floor=device_floor(case, "compute"),
    )  # fmt: skip


def _segments(case: Case, finding: FindingEntry, found: State) -> Proposal:
    thrashing = "segments are given back and asked for again, and cudaFree waits for the whole device"
    growing = "the allocator still grows; a segment that grows in place leaves fewer pieces"
    return Proposal(
        code="expandable_segments",
        action="Let the allocator grow its segments instead of freeing and allocating them",
        why=f"{cost(finding)}; {thrashing if found == 'thrashing' else growing}",
        setting=env("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
        risk="calls that the cache does not make itself (torch.cuda.empty_cache() in the loop, workspaces of "
        "libraries) stay: look what the evidence lies in; before torch 2.9 the variable is PYTORCH_CUDA_ALLOC_CONF",
        verify="record again after warm-up: no cudaMalloc and cudaFree within a step",
        changes=(NoAllocatorStalls(),),
        floor=device_floor(case, "compute"),
    )


def _once(case: Case, finding: FindingEntry, entry: HostCallsEntry) -> Proposal:
    """In a program without PyTorch's allocator."""
    if case.program == "jax":
        setting = env("XLA_PYTHON_CLIENT_ALLOCATOR", "unset (platform allocates each buffer anew)")
    else:
        value = "once before the loop, or cudaMallocAsync from a pool"
        setting = config(spelled(case, "cudaMalloc and cudaFree of a step"), spelled(case, value))
    return Proposal(
        code="allocate_once",
        action="Allocate device memory once, not in every step",
        why=f"{cost(finding)}; {_calls(entry)}",
        setting=setting,
        risk="memory that is kept is not there for others; a pool keeps what its release threshold allows",
        verify="record again: no allocation within a step",
        changes=(NoAllocatorStalls(),),
        floor=device_floor(case, "compute"),
    )


RULE = Rule(
    "allocator_calls",
    (
        Knob(
            "caching_allocator",
            ("allocator",),
            "`PYTORCH_NO_CUDA_MEMORY_CACHING` or `PYTORCH_NO_HIP_MEMORY_CACHING` unset, where every step allocates and "
            "frees for each tensor",
        ),
        Knob(
            "no_empty_cache", ("allocator",), "`torch.cuda.empty_cache()` out of the step, where one flushes the cache"
        ),
        Knob(
            "expandable_segments",
            ("allocator",),
            "`PYTORCH_ALLOC_CONF=expandable_segments:True`, where segments grow or come and go (CUDA)",
        ),
        Knob("allocate_once", ("allocator",), "without PyTorch: allocations before the loop, `cudaMallocAsync`"),
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=10,
)
