"""Calls of the device's allocator within steps: a cache that is switched off, one that thrashes, one that grows.

A caching allocator asks the driver for whole segments while it grows and never again. So allocations *and* frees
in every judged step, in numbers of the order of its kernels, come from an allocator that caches nothing; allocations
without frees are growth; both in smaller numbers are segments given back and asked for again (a full device).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, allocator, by_framework, config, env, spelled, step_now
from gpuscope.analyzers.advice.rules.blocking_rules import Place, batches, in_loop
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.allocator.allocator_settings import merged
from gpuscope.analyzers.what_if_changes import CopyStream, NoAllocatorStalls, PinnedCopies, Predicted, Refused
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.call_tree_section import HostCallsEntry
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.schema.memory_section import AllocatorChangeEntry, AllocatorReplayEntry, MemoryEntry
from gpuscope.when_used import dataclass
from gpuscope.words.units import memory, plural, signed

# Copies between host and device.

_AHEAD_IN_JAX = other_settings.DEVICE_PUT.to("of the next batch, before the step that computes with this one")


@dataclass(frozen=True)
class PinnedBatches(Suggestion):
    """Batches from pinned memory, in PyTorch."""

    code = "pinned_copies"
    answers: ClassVar[tuple[str, ...]] = ("sync", "copy")
    sets = "`pin_memory=True` with `non_blocking=True`; in C++ `cudaMallocHost`"
    action = "Copy batches from pinned memory, asynchronously (.to(device, non_blocking=True))"
    why = "{cost}; a copy from pinned memory runs beside compute"
    risk = (
        "the operating system can't use pinned memory for anything else; a buffer must not be changed before its copy "
        "has finished"
    )
    verify = "record again: copies named «Pinned -> Device»; the cause `{finding}` falls"


@dataclass(frozen=True)
class PinnedWaitedFor(PinnedBatches):
    """The same where the host was seen to wait for a copy."""

    why = "{cost}; {waits}: the host waits for it, and the launch queue runs empty meanwhile"

    place: Place

    @property
    def waits(self) -> str:
        return self.place.text()


class PinnedByHand(PinnedBatches):
    """In a program that manages its buffers itself."""

    answers = ("copy",)
    action = "Copy from and to pinned host memory, asynchronously, beside the kernels"
    why = "{cost}; a pageable copy passes through the driver's own buffer and blocks the host"
    why_not = (
        "the trace does not show how fast pinned memory is here, nor what the copies could run beside: measure with "
        "nvbandwidth"
    )
    verify = "record again: copies from pinned memory beside kernels; the cause `copy` falls"


@dataclass(frozen=True)
class OwnCopyStream(Suggestion):
    """Copies beside kernels."""

    code = "copy_stream"
    answers = ("copy",)
    sets = "`torch.cuda.Stream` for copies from pinned memory, `jax.device_put` ahead"
    action = "Copy the next batch on its own stream, beside compute"
    why = "{cost}; a copy on the stream of the kernels runs between them, not beside them"
    risk = (
        "the next batch needs device memory as well; batch.record_stream() keeps that memory from being reused too "
        "early"
    )
    verify = "record again: copies beside kernels; the cause `copy` falls"


def copy_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Pinned memory for copies, on a stream beside the kernels."""
    if finding["code"] == "sync":
        waited = batches(in_loop(case))
        if waited and case.program == "pytorch":
            yield Proposal(finding, PinnedWaitedFor(waited[0]), _pinned(case), (PinnedCopies(),))
    else:
        yield from _copies(case, finding)


def _copies(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    if case.host_calls and not _blocks(case):
        if case.program != "native":  # from pinned memory already
            by_hand = torch_settings.STREAM.to(
                "with torch.cuda.stream(copies): batch.to(device, non_blocking=True);"
                " then torch.cuda.current_stream().wait_stream(copies) before its use"
            )
            setting = _AHEAD_IN_JAX if case.program == "jax" else by_hand
            yield Proposal(finding, OwnCopyStream(), setting, (CopyStream(),))
    elif case.program == "pytorch" or case.program is None:
        yield Proposal(finding, PinnedBatches(), _pinned(case), (PinnedCopies(),))
    else:
        value = "cudaMallocHost or cudaHostRegister, then cudaMemcpyAsync on a stream"
        by_hand = config("host buffers of the copies", spelled(case, value))
        yield Proposal(finding, PinnedByHand(), by_hand if case.native else _AHEAD_IN_JAX)


def _blocks(case: Case) -> bool:
    """Whether the host waits for a copy to the device (in C++ also for one back), as it does for pageable memory."""
    wanted = ("HtoD", "DtoH") if case.native else ("HtoD",)
    places = (place["copy"] for rank in case.host_calls for place in rank["blocking_calls"])
    return any(copy is not None and copy.startswith(wanted) for copy in places)


def _pinned(case: Case) -> Setting:
    """Batches in pinned memory, in PyTorch."""
    # The Trainer's loader pins by default, so what is pageable there is copied by the model or a callback.
    by_hand = torch_settings.TENSOR_TO.to(
        "device, non_blocking=True  # of a tensor in pinned memory: .pin_memory() first"
    )
    return by_framework(case, torch_settings.PIN_MEMORY.to("True"), transformers=by_hand)


COPY_RULE = Rule(
    "copies",
    (PinnedBatches, PinnedWaitedFor, PinnedByHand, OwnCopyStream),
    copy_rules_propose,
    programs=("pytorch", "jax", "native"),
    place=60,
)


# Settings of PyTorch's caching allocator, as a replay of the recorded requests under each of them tells.

USUAL = ("expandable_segments", "True")
"""What PyTorch's own message recommends where memory is fragmented."""


@dataclass(frozen=True)
class AllocatorSetting(Suggestion):
    """An option of the caching allocator."""

    code = "allocator_setting"
    answers = ("out_of_memory", "allocator_retries", "fragmentation")
    sets = """`PYTORCH_CUDA_ALLOC_CONF` (`PYTORCH_ALLOC_CONF` where torch 2.9 or later is recorded and that is not \
set, on Ascend `PYTORCH_NPU_ALLOC_CONF`): the best of `expandable_segments`, `max_split_size_mb`, \
`roundup_power2_divisions`, `garbage_collection_threshold` by replaying the recorded requests; what is set besides is \
kept"""
    action = "Set {option}:{value} for the caching allocator"
    why = "{message}"
    verify = (
        "torch.cuda.memory_stats(): reserved_bytes.all.peak{near}, num_alloc_retries and num_ooms 0; or record memory "
        "history again and run gpuscope analyze on the snapshot"
    )

    option: str
    value: str
    peak_reserved_bytes: int | None
    """With it, where the recorded requests could be replayed."""

    @property
    def near(self) -> str:
        return "" if self.peak_reserved_bytes is None else f" near {memory(self.peak_reserved_bytes)}"


class SegmentsThatGrow(AllocatorSetting):
    """`expandable_segments`."""

    risk = (
        "older PyTorch can't pass such tensors to other processes by CUDA IPC; mapping pages is slower than cudaMalloc"
    )


class BlocksKeptWhole(AllocatorSetting):
    """`max_split_size_mb`."""

    risk = "blocks from that size on are kept whole: a request between two sizes may need a new segment"


class RequestsRoundedUp(AllocatorSetting):
    """`roundup_power2_divisions`."""

    risk = "every request is rounded up: each block in use gets a little larger"


class MemoryGivenBack(AllocatorSetting):
    """`garbage_collection_threshold`."""

    risk = (
        "it acts only under torch.cuda.set_per_process_memory_fraction(); what it gives back must be allocated "
        "anew, and cudaFree waits for the device"
    )


_BY_OPTION = {
    "expandable_segments": SegmentsThatGrow,
    "max_split_size_mb": BlocksKeptWhole,
    "roundup_power2_divisions": RequestsRoundedUp,
    "garbage_collection_threshold": MemoryGivenBack,
}


def allocator_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The best setting that was replayed; where none could be, the usual one without a prediction."""
    own = [one for one in case.report.get("memory", []) if one["rank"] in finding["ranks"] or not finding["ranks"]]
    replayed = ((one, one["replay"]) for one in own if one["replay"])
    entry = next((one for one, replay in replayed if replay["changes"] or replay["why"]), None)
    if entry is None or entry["replay"] is None:
        return
    replay, best = entry["replay"], entry["replay"]["best"]
    if best is None and replay["usable"]:
        return  # nothing that was tried helps
    option, value = (best["option"], best["value"]) if best else USUAL
    record = _BY_OPTION[option](option, value, best["peak_reserved_bytes"] if best else None)
    setting = env(entry["variable"], merged(entry["settings"] or "", option, value))
    if option == "garbage_collection_threshold":
        setting = setting | {
            "besides": "with torch.cuda.set_per_process_memory_fraction(1.0), without which it is idle"
        }
    outcome = _outcome(case, entry, replay, best) if best else Refused(replay["why"])
    yield Proposal(finding, record, setting, outcome=outcome, gains_time=False)


def _outcome(case: Case, entry: MemoryEntry, replay: AllocatorReplayEntry, best: AllocatorChangeEntry) -> Predicted:
    """Memory is what is saved; the step gets shorter only where the trace shows the stalls of retries that go."""
    basis = _basis(entry, replay, best)
    if entry["retries"] and not (best["retries"] or best["failed"] or best.get("collections")):
        outcome = case.predict((NoAllocatorStalls(),))
        if isinstance(outcome, Predicted):
            return replace(outcome, basis=f"{basis}; {outcome.basis}")
    step = step_now(case)
    return Predicted(step, step, step, step, basis)


def _basis(entry: MemoryEntry, replay: AllocatorReplayEntry, best: AllocatorChangeEntry) -> str:
    now, then = replay["peak_reserved_bytes"], best["peak_reserved_bytes"]
    gains = [f"peak of reserved memory {memory(now)} → {memory(then)}"] if now != then else []
    if replay["failed"] > best["failed"]:
        gains.append(f"failed requests {replay['failed']} → {best['failed']}")
    if replay["retries"] > best["retries"]:
        gains.append(f"retries {replay['retries']} → {best['retries']}")
    return (
        f"{', '.join(gains)}, by replaying {plural(entry['events'], 'recorded event')} of rank {entry['rank']} under "
        f"this setting; replayed as it was, the peak is off by {signed(replay['error_frac'])}"
    )


ALLOCATOR_RULE = Rule("memory", tuple(_BY_OPTION.values()), allocator_rules_propose, place=20)


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


ALLOCATOR_CALL_RULE = Rule(
    "allocator_calls",
    (CachingAgain, NoEmptyCache, GrowingInPlace, GrowingInsteadOfThrashing, AllocatedOnce),
    propose,
    programs=("pytorch", "jax", "native"),
    place=10,
)


RULES = (ALLOCATOR_CALL_RULE, ALLOCATOR_RULE, COPY_RULE)
