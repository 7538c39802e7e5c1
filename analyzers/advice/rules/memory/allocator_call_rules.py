"""Calls of the device's allocator within steps: a cache that is switched off, one that thrashes, one that grows.

A caching allocator asks the driver for whole segments while it grows and never again. So allocations *and* frees
in every judged step, in numbers of the order of its kernels, come from an allocator that caches nothing; allocations
without frees are growth; both in smaller numbers are segments given back and asked for again (a full device).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpuscope.analyzers.advice.framework_settings import allocator, config, spelled
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.changes import NoAllocatorStalls
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.schema.host_calls_section import HostCallsEntry
from gpuscope.when_used import dataclass

PER_KERNEL = 0.1
"""Allocations and frees per kernel from which every tensor gets its own: each is written by a kernel or two, and a
segment of a cache (2 MiB at least) serves many."""

EMPTIED = 0.5
"""Share of the frees that no operator makes from which a flush of the cache is what makes them."""

State = Literal["off", "thrashing", "growing"]
_CONVOLUTIONS = ("conv", "miopen", "cudnn")


@dataclass(frozen=True)
class AllocatorCalls(Suggestion):
    """Fewer calls of the device's allocator."""

    answers = ("allocator", "sync", "launch")
    why = "{cost}; {calls}"

    allocations_per_step: float
    frees_per_step: float
    kernels_per_step: float
    rocm: bool

    @property
    def calls(self) -> str:
        return (
            f"{self.allocations_per_step:.0f} allocations and {self.frees_per_step:.0f} frees per step for "
            f"{self.kernels_per_step:.0f} kernels"
        )

    @property
    def runtime(self) -> str:
        return "hip" if self.rocm else "cuda"


@dataclass(frozen=True)
class CachingAgain(AllocatorCalls):
    """PyTorch's cache switched on."""

    code = "caching_allocator"
    sets = """`PYTORCH_NO_CUDA_MEMORY_CACHING` or `PYTORCH_NO_HIP_MEMORY_CACHING` unset, where every step allocates \
and frees for each tensor"""
    action = "Switch PyTorch's caching allocator on again"
    why = (
        "{cost}; {calls}, in every step, as it is where {variables} is set or a pluggable allocator caches "
        "nothing{workspaces}"
    )
    grounds = "{calls}: no cache (inferred)"
    risk = "tools that look for reads behind the end of a tensor need it switched off: then it is slow on purpose"
    verify = "record again: no {runtime}Malloc and Free within a step; torch.cuda.memory_reserved() is above 0"

    in_convolutions: bool
    """Whether the evidence lies in convolutions."""

    @property
    def variables(self) -> str:
        devices = ("HIP", "CUDA") if self.rocm else ("CUDA",)
        return " or ".join(torch_settings.NO_CACHING[device].name for device in devices)

    @property
    def workspaces(self) -> str:
        if not (self.in_convolutions or self.rocm):
            return ""
        library = "MIOpen" if self.rocm else "cuDNN"
        return (
            f"; where the calls stand inside convolutions alone, see whether they are {library}'s workspaces "
            "instead (torch.backends.cudnn.benchmark searches anew for every shape)"
        )


@dataclass(frozen=True)
class NoEmptyCache(AllocatorCalls):
    """Segments not given back in every step."""

    code = "no_empty_cache"
    sets = "`torch.cuda.empty_cache()` out of the step, where one flushes the cache"
    action = "Take torch.cuda.empty_cache() out of the step"
    why = (
        "{cost}; {outside} frees per step are made outside any operator, as empty_cache() makes them: it waits for the "
        "device and gives all cached segments back"
    )
    risk = "another process on the same device gets no memory back between steps"
    verify = "record again: no {runtime}Free within a step"

    frees_outside_per_step: float
    """Of any operator."""

    @property
    def outside(self) -> str:
        return f"{self.frees_outside_per_step:.0f}"


class GrowingInPlace(AllocatorCalls):
    """Segments that grow, while the allocator still does."""

    code = "expandable_segments"
    sets = """`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` (`PYTORCH_ALLOC_CONF` where torch 2.9 or later is \
recorded), where segments grow or come and go (CUDA)"""
    action = "Let the allocator grow its segments instead of freeing and allocating them"
    why = "{cost}; the allocator still grows; a segment that grows in place leaves fewer pieces"
    risk = (
        "calls that the cache does not make itself (torch.cuda.empty_cache() in the loop, workspaces of libraries) "
        "stay: look what the evidence lies in"
    )
    verify = "record again after warm-up: no cudaMalloc and cudaFree within a step"


class GrowingInsteadOfThrashing(GrowingInPlace):
    """The same on a full device."""

    why = "{cost}; segments are given back and asked for again, and cudaFree waits for the whole device"


class AllocatedOnce(AllocatorCalls):
    """In a program without PyTorch's allocator."""

    code = "allocate_once"
    sets = "without PyTorch: allocations before the loop, `cudaMallocAsync`"
    action = "Allocate device memory once, not in every step"
    risk = "memory that is kept is not there for others; a pool keeps what its release threshold allows"
    verify = "record again: no allocation within a step"


def state(entry: HostCallsEntry) -> State | None:
    """What the allocator of a rank does in judged steps; None where it hardly asks the driver."""
    if not entry["steady"] or entry["allocations_per_step"] + entry["frees_per_step"] == 0:
        return None
    least = PER_KERNEL * entry["kernels_per_step"]
    # Without a cache the backward pass frees too, within operators.
    emptied = (entry["frees_outside_per_step"] or 0) >= entry["frees_per_step"]
    each_step = min(entry["least_allocations"], entry["least_frees"])
    if each_step >= max(least, 1) and not emptied and entry["caches"] is not True:
        return "off"
    return "thrashing" if entry["frees_per_step"] > 0 else "growing"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By what the allocator does on the rank that asks most often. Frees wait for the device: what they cost is as well
    a wait (that a blocking call before them took over), or launches that come late behind them."""
    entry = max(case.host_calls, key=lambda one: one["allocations_per_step"] + one["frees_per_step"], default=None)
    found = state(entry) if entry is not None else None
    if entry is None or found is None or (finding["code"] != "allocator" and not entry["frees_per_step"]):
        return
    answer = _answer(case, finding, entry, found)
    if answer is not None:
        yield Proposal(finding, *answer, (NoAllocatorStalls(),))


def _answer(
    case: Case, finding: FindingEntry, entry: HostCallsEntry, found: State
) -> tuple[AllocatorCalls, Setting] | None:
    calls = entry["allocations_per_step"], entry["frees_per_step"], entry["kernels_per_step"], case.rocm
    if case.program == "jax":
        return AllocatedOnce(*calls), other_settings.JAX_ALLOCATOR.to("unset (platform allocates each buffer anew)")
    if case.program != "pytorch":
        value = "once before the loop, or cudaMallocAsync from a pool"
        setting = config(spelled(case, "cudaMalloc and cudaFree of a step"), spelled(case, value))
        return AllocatedOnce(*calls), setting
    if found == "off":
        lies_in = [one["note"].lower() + one["name"].lower() for one in finding["evidence"]]
        around = any(word in text for text in lies_in for word in _CONVOLUTIONS)
        setting = torch_settings.NO_CACHING["HIP" if case.rocm else "CUDA"].to("unset")
        return CachingAgain(*calls, around), setting
    outside = entry["frees_outside_per_step"] or 0
    if outside >= EMPTIED * entry["frees_per_step"] > 0:
        value = "not in the loop of steps"
        if not case.rocm:
            instead = allocator(case, "expandable_segments", "True")
            value += f"; if memory is short, {instead['name']}={instead['value']} instead"
        return NoEmptyCache(*calls, outside), torch_settings.EMPTY_CACHE.to(value)
    if case.rocm or entry["maps_segments"]:
        return None
    kind = GrowingInsteadOfThrashing if found == "thrashing" else GrowingInPlace
    return kind(*calls), allocator(case, "expandable_segments", "True")


RULE = Rule(
    "allocator_calls",
    (CachingAgain, NoEmptyCache, GrowingInPlace, GrowingInsteadOfThrashing, AllocatedOnce),
    propose,
    programs=("pytorch", "jax", "native"),
    place=10,
)
