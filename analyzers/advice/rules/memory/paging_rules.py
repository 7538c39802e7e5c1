"""Unified memory that migrates: by the direction of its pages, and by what moved them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, spelled
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

DEMAND = ("page fault", "speculative prefetch", "access counters")
"""Causes of migrations that some access asked for; the driver fetches more than the page that faulted."""
SIDES = {"HtoD": "the device", "DtoH": "the host"}
LEAST = 0.05
"""Share of all that migrated from which a direction is worth a prefetch."""
ALIKE = 0.5
"""Smaller by larger direction from which the same pages are taken to go to and fro in each step."""
MOVED_WHY_NOT = "which accesses cause the faults is not recorded"
FAULTS = "record again with --cuda-um-cpu-page-faults=true and --cuda-um-gpu-page-faults=true: "
LINUX = "takes a device with concurrentManagedAccess (not Windows, WSL, nor GPUs before Pascal)"


@dataclass(frozen=True)
class Prefetched(Suggestion):
    """Pages moved before they are used."""

    code = "prefetch"
    answers = ("paging",)
    sets = """`cudaMemPrefetchAsync` to the device just before a launch, to the host behind the kernel, by the \
direction in which pages migrate on demand"""
    action = "Prefetch unified memory to {side} instead of letting its accesses fault"
    grounds = "{moved}"
    why_not = MOVED_WHY_NOT
    risk = (
        "a prefetch copies the whole range, even what is not touched; if the other side touches the data behind it, "
        "its pages move back one by one"
    )
    verify = FAULTS + "none on {side}"

    side: str
    demand_bytes: int
    prefetched_bytes: int

    @property
    def subject(self) -> str:
        return self.side

    @property
    def moved(self) -> str:
        already = f", {units.memory(self.prefetched_bytes)} by a prefetch" if self.prefetched_bytes else ""
        return f"{units.memory(self.demand_bytes)} moved to {self.side} on demand{already}"


@dataclass(frozen=True)
class ReadByBoth(Suggestion):
    """Copies of pages on both sides."""

    code = "memory_advice"
    answers = ("paging",)
    sets = """`cudaMemAdviseSetReadMostly` for what both sides read, `cudaMemAdviseSetPreferredLocation` on the \
host with `cudaMemAdviseSetAccessedBy` where pages are evicted"""
    action = "Mark data that host and device only read as read-mostly, so that both keep a copy"
    grounds = "inferred: {to_device} moved to the device on demand and {to_host} back, as pages do that both sides use"
    why_not = MOVED_WHY_NOT + ", nor whether they write: it helps where neither does between two migrations"
    risk = "a write to such a page drops all copies of it: slower than without where either side writes often"
    verify = FAULTS + "fewer migrations back to the host"

    to_device_bytes: int
    to_host_bytes: int

    @property
    def to_device(self) -> str:
        return units.memory(self.to_device_bytes)

    @property
    def to_host(self) -> str:
        return units.memory(self.to_host_bytes)


@dataclass(frozen=True)
class LeftOnHost(Suggestion):
    """Pages that a full device reads where they lie."""

    code = "memory_advice"
    answers = ("paging",)
    sets = ReadByBoth.sets
    action = "Leave data that kernels touch once in host memory, where they read it without moving it"
    grounds = "{evicted} were evicted from the device for other pages: all that is in use does not fit"
    why_not = "how often each page is used before it is evicted is not recorded"
    risk = "each access then crosses the link: slower for what a kernel reads several times; " + LINUX
    verify = "record again: no migrations with the cause eviction"

    evicted_bytes: int

    @property
    def evicted(self) -> str:
        return units.memory(self.evicted_bytes)


@dataclass(frozen=True)
class DeviceMemory(Suggestion):
    """No unified memory, in PyTorch."""

    code = "device_memory"
    answers = ("paging",)
    sets = "PyTorch's own allocator in place of one of unified memory; bitsandbytes optimizers that are not paged"
    action = "Keep tensors in the device's own memory"
    grounds = (
        "inferred: PyTorch's allocator takes no unified memory, so an allocator of the program's does "
        "(torch.cuda.memory.CUDAPluggableAllocator, RMM's ManagedMemoryResource), or an optimizer "
        "(bitsandbytes PagedAdamW)"
    )
    why_not = "which tensors migrate is not recorded"
    risk = "what does not fit then fails for lack of memory instead of moving"
    verify = "record again: no migrations"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """In C++ prefetches and memory advice by what moved pages; in PyTorch the allocator that has none."""
    if case.program == "pytorch":
        value = "left out, or an allocator of cudaMalloc; of bitsandbytes AdamW in place of PagedAdamW"
        yield Proposal(finding, DeviceMemory(), torch_settings.CURRENT_ALLOCATOR.to(value))
        return
    moved = _moved(case)
    demand = {way: sum(moved[way, cause] for cause in DEMAND) for way in SIDES}
    if evicted := sum(size for (_, cause), size in moved.items() if cause == "eviction"):
        value = "cudaMemAdviseSetPreferredLocation with cudaCpuDeviceId, and cudaMemAdviseSetAccessedBy with the device"
        yield Proposal(finding, LeftOnHost(evicted), config(spelled(case, "cudaMemAdvise"), spelled(case, value)))
        return
    places = {
        "HtoD": "the device: just before the launch, behind the host's last access",
        "DtoH": "cudaCpuDeviceId: right behind the kernel that writes it, on its stream",
    }
    for way, side in SIDES.items():
        if demand[way] and demand[way] >= LEAST * sum(demand.values()):
            record = Prefetched(side, demand[way], moved[way, "user prefetch"])
            setting = config(spelled(case, "cudaMemPrefetchAsync"), spelled(case, places[way]))
            yield Proposal(finding, record, setting)
    if case.steady_steps and min(demand.values()) > ALIKE * max(demand.values()):
        setting = config(spelled(case, "cudaMemAdvise"), spelled(case, "cudaMemAdviseSetReadMostly"))
        yield Proposal(finding, ReadByBoth(demand["HtoD"], demand["DtoH"]), setting)


def _moved(case: Case) -> Counter[tuple[str, str]]:
    """Bytes that migrated, by direction and cause."""
    found: Counter[tuple[str, str]] = Counter()
    for one in case.report["copies"]:
        what, _, cause = one["kind"].partition(", ")
        if what.startswith("migration "):
            found[what.removeprefix("migration "), cause or DEMAND[0]] += one["bytes"] or 0
    return found


RULE = Rule(
    "paging", (Prefetched, ReadByBoth, LeftOnHost, DeviceMemory), propose, programs=("pytorch", "native"), place=62
)
