"""Memory is the wall: what frees some, at the price of time that only another run can tell.

Where the stacks of a snapshot show what holds the peak, only what they call for is proposed, each with the bytes it can
save at most; where a trace alone tells that memory ran out, the usual ways, from the cheapest in time to the dearest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from gpuscope.analyzers.advice.prediction_cache import ALL_VANISHED
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, by_framework, config, python, spelled
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.report.view import report_rows
from gpuscope.schema.document import FindingEntry, MemoryBound, Setting
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.trace.frameworks import ACTIVATIONS, StackKind
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Unified memory that migrates: by the direction of its pages, and by what moved them.

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


def paging_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
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


PAGING_RULE = Rule(
    "paging",
    (Prefetched, ReadByBoth, LeftOnHost, DeviceMemory),
    paging_rules_propose,
    programs=("pytorch", "native"),
    place=62,
)


UNKNOWN = "it saves memory, not time, and how much depends on the model: see `gpuscope advise --model … --cluster …`"
LEAST_SHARE = 0.05
"""Share of the peak that a change must be able to save to be worth proposing."""
SEEN_SHARE = 0.2
"""Share of the peak whose stacks must be known for them to say what would shrink it."""


@dataclass(frozen=True)
class Way(Suggestion):
    """One way to need less memory."""

    answers: ClassVar[tuple[str, ...]] = ("out_of_memory", "memory_peak")
    why = "{message}"
    why_not = "{unknown}; the price: {risk}"
    verify = "record again with an allocator snapshot: the peak falls"
    names: ClassVar[dict[str, Setting]] = {}
    """Its setting by framework."""
    otherwise: ClassVar[Setting]
    kinds: ClassVar[tuple[StackKind, ...]]
    """What it shrinks."""
    keeps: ClassVar[float] = 0.0
    """The part of that which stays whatever happens."""
    training_only: ClassVar[bool] = False
    basis: ClassVar[str] = ALL_VANISHED

    saved_bytes: int | None
    """Of the peak, at most; None where no stacks show that."""

    @property
    def unknown(self) -> str:
        return UNKNOWN if self.saved_bytes is None else "an allocator snapshot tells no times"


class StoresNoScores(Way):
    """Attention by a fused kernel."""

    code = "fused_attention"
    answers = ("memory_peak",)
    sets = "`scaled_dot_product_attention` for a softmax over stored scores"
    action = "Compute attention by a fused kernel, which never stores the matrix of scores"
    risk = "a mask or bias that the fused kernels don't support falls back to the slow one; results differ in rounding"
    names: ClassVar[dict[str, Setting]] = {"transformers": other_settings.ATTENTION.to('"sdpa"')}
    otherwise = torch_settings.ATTENTION.to("in place of a softmax over stored scores")
    kinds = (StackKind.ATTENTION_SCORES,)


class SmallerMicroBatch(Way):
    """Fewer samples at once."""

    code = "smaller_micro_batch"
    sets = "half the micro-batch, gradients accumulated"
    action = "Halve the micro-batch and accumulate gradients over twice as many"
    risk = "smaller matrices use the device less well"
    names: ClassVar[dict[str, Setting]] = {
        "megatron": other_settings.MEGATRON_SETTINGS_MICRO_BATCH_SIZE.to("half of it"),
        "deepspeed": other_settings.MICRO_BATCH_SIZE.to("half of it"),
        "transformers": other_settings.TRAINER_BATCH_SIZE.to("half of it"),
    }
    otherwise = python("batch size per rank", "half of it, with gradients accumulated over 2")
    kinds = (*ACTIVATIONS, StackKind.CHECKPOINTED, StackKind.LOADING)
    keeps = 0.5
    basis = "half of what the forward pass and the loader hold at the peak"


class Recomputed(Way):
    """Activations computed twice."""

    code = "activation_checkpointing"
    sets = "recompute in the backward pass, by the framework's name"
    action = "Recompute activations in the backward pass instead of keeping them"
    risk = "one more forward pass of what is recomputed, up to a third more compute (Chen et al., arXiv:1604.06174)"
    names: ClassVar[dict[str, Setting]] = {
        "megatron": other_settings.RECOMPUTE_GRANULARITY.to("selective"),
        "transformers": other_settings.TRAINER_CHECKPOINTING.to("True"),
    }
    otherwise = torch_settings.USE_REENTRANT.to("False")
    kinds = ACTIVATIONS
    training_only = True
    basis = "if nothing of the forward pass were kept; each checkpointed block's input stays"


class Sharded(Way):
    """States split over ranks."""

    code = "shard_states"
    sets = "FSDP2, ZeRO stage 3, Megatron's distributed optimizer"
    action = "Shard parameters, gradients and optimiser states over the data-parallel ranks"
    risk = "half as much communication again as plain data parallel (ZeRO stage 3, arXiv:1910.02054, 7.2)"
    names: ClassVar[dict[str, Setting]] = {
        "megatron": other_settings.DISTRIBUTED_OPTIMIZER.to(""),
        "deepspeed": other_settings.STAGE.to("3"),
    }
    otherwise = torch_settings.FULLY_SHARD.to("each layer, then the model")
    kinds = (StackKind.GRADIENTS, StackKind.OPTIMIZER, StackKind.OPTIMIZER_TEMPORARIES, StackKind.SETUP)
    basis = "over ever more ranks; of n ranks each keeps 1/n of it, so one rank alone gains nothing"


class OneTensorAtATime(Way):
    """An optimizer without temporaries of all parameters."""

    code = "single_tensor_optimizer"
    answers = ("memory_peak",)
    sets = "`fused=True` or `foreach=False` of the optimizer"
    action = "Let the optimizer update without copies of all parameters at once"
    risk = "foreach=False launches a kernel per parameter and operation, which is slower; fused=True needs CUDA tensors"
    otherwise = python("optimizer arguments", "fused=True, or foreach=False")
    kinds = (StackKind.OPTIMIZER_TEMPORARIES,)


class InHostMemory(Way):
    """States kept by the host."""

    code = "cpu_offload"
    sets = "`CPUOffloadPolicy()`, ZeRO-Offload"
    action = "Keep parameters and optimiser states in host memory"
    risk = "every step copies over PCI Express: the last resort"
    names: ClassVar[dict[str, Setting]] = {
        "deepspeed": other_settings.OFFLOAD_OPTIMIZER.to("cpu"),
        "fsdp2": torch_settings.OFFLOAD_POLICY.to("CPUOffloadPolicy()"),
    }
    otherwise = torch_settings.OFFLOAD_POLICY.to("CPUOffloadPolicy()")
    kinds = (StackKind.OPTIMIZER, StackKind.SETUP)


_SHOWN_BY_STACKS = (StoresNoScores, Recomputed, SmallerMicroBatch, OneTensorAtATime, Sharded, InHostMemory)
_USUAL = (SmallerMicroBatch, Recomputed, Sharded, InHostMemory)


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What the stacks at the peak call for; without them the usual ways."""
    if finding["code"] == "memory_peak":
        for entry in _to_answer(case):
            yield from _by_stacks(case, finding, entry)
    elif not any(_seen(entry) for entry in _to_answer(case)):
        yield from (Proposal(finding, way(None), by_framework(case, way.otherwise, **way.names)) for way in _USUAL)


def _to_answer(case: Case) -> list[MemoryEntry]:
    """Each snapshot of its own; of those of a run's ranks the one to speak of first."""
    entries = [one for one in case.report.get("memory", []) if one["kind"] == "snapshot"]
    if not case.finding("memory_peak"):
        return []
    ranks = report_rows.leading([one for one in entries if one.get("rank_told", True)])
    own = [one for one in entries if not one.get("rank_told", True)]
    first = report_rows.leading(entries)
    return sorted(([] if ranks is None else [ranks]) + own, key=lambda one: one is not first)


def _seen(entry: MemoryEntry) -> bool:
    """Whether the stacks tell of enough of the peak what it is."""
    unknown = (StackKind.NO_STACK.value, StackKind.BEFORE.value, StackKind.OTHER.value)
    known = sum(one["bytes"] for one in entry.get("peak_by_kind", []) if one["kind"] not in unknown)
    return known >= SEEN_SHARE * max(entry["peak_allocated_bytes"], 1)


def _by_stacks(case: Case, finding: FindingEntry, entry: MemoryEntry) -> Iterator[Proposal]:
    """Those that can save enough, what saves most at the least price first."""
    peak = entry["peak_allocated_bytes"]
    held = {one["kind"]: one["bytes"] for one in entry.get("peak_by_kind", [])}
    path = entry["path"] if len(_to_answer(case)) > 1 else ""
    for way in _SHOWN_BY_STACKS:
        saved = round(sum(held.get(kind.value, 0) for kind in way.kinds) * (1 - way.keeps))
        if saved < LEAST_SHARE * peak or not peak or (way.training_only and not entry.get("trains", False)):
            continue
        bound: MemoryBound = {"peak_bytes_before": peak, "peak_bytes_low": peak - saved, "basis": way.basis}
        yield Proposal(finding, way(saved), by_framework(case, way.otherwise, **way.names), saves=bound, path=path)


MEMORY_LIMIT_RULE = Rule("memory_wall", _SHOWN_BY_STACKS, propose, place=160)


RULES = (MEMORY_LIMIT_RULE, PAGING_RULE)
