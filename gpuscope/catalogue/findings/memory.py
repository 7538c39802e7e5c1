"""Device memory: requests that failed or were retried, fragmentation, room that is left."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units

WHY_FAILED = {
    "fragmentation": "fragmentation: enough bytes were free, but in pieces",
    "scattered": "the free memory was partly in pieces of reserved memory, partly on the device",
    "limit": "because of a limit set for the process, not of the device",
    "full": "no allocator setting helps: the job must use less memory at once",
}


@dataclass(frozen=True)
class OutOfMemory(Finding):
    """A request for GPU memory failed. From an allocator snapshot (`torch.cuda.memory._dump_snapshot()`, or `gpuscope
    record --memory`, which writes one by itself when memory runs out).
    """

    code = "out_of_memory"
    severity = "high"
    recognised = """an `oom` event of the snapshot's history. The message says which request it was, how much was in
    use, how much lay free in reserved blocks, the size of the largest free block that request could have used, and
    what was free on the device. `fragmentation`: enough lay free, in pieces. `limit`: enough was free on the device,
    so `set_per_process_memory_fraction` refused it. `scattered`: what was free in reserved blocks and on the device
    would have been enough together. `full`: none of these; then no setting of the allocator makes room."""
    helps = """for fragmentation the setting under «What to change», found by replaying the recorded requests under
    it. For a full device less in use at once: see what is held at the peak by stack; activation checkpointing, a
    smaller micro-batch, sharding, offload."""
    misleads = """memory that is not the allocator's (NCCL buffers, CUDA contexts, other processes): it appears only
    as less free on the device. A history that was recorded without stacks has sizes, not places."""

    requests: int
    kinds: list[str]
    """Why they failed: fragmentation, scattered, limit, full."""
    first: str
    """Of the first one, in words."""

    def message(self) -> str:
        return f"{self.shows()}. {self.first[0].upper()}{self.first[1:]}"

    def shows(self) -> str:
        cause = "some by fragmentation, some because memory was full"
        if len(self.kinds) == 1:
            cause = WHY_FAILED[self.kinds[0]]
        return f"{units.plural(self.requests, 'request')} for memory failed; {cause}"


@dataclass(frozen=True)
class AllocatorRetries(Finding):
    """A request found the device full: the allocator synchronised, gave cached segments back, and asked again."""

    code = "allocator_retries"
    recognised = """segments freed directly before a new segment or a failure within one request. The history has no
    event for it, and `empty_cache()` followed by a request looks the same: the stack shows which, or whether the
    request would have fitted beforehand. Where neither does, the finding says so."""
    helps = """as for `out_of_memory`; a job that retries is a job that soon fails. The time is in the trace as the
    cause `allocator`."""
    misleads = "`garbage_collection_threshold`, which gives back in the same way, without synchronising."

    retries: int
    certain: int
    """Of these, those that were no calls of empty_cache."""
    took_ns: int

    def message(self) -> str:
        open_ = self.retries - self.certain
        doubt = f"; {open_} of them may have been calls of empty_cache" if open_ else ""
        took = f", which took {units.duration(self.took_ns)} in all" if self.took_ns else ""
        return (
            f"{units.plural(self.retries, 'request')} found the device full: the allocator released cached memory and "
            f"retried, with the device synchronised{took}{doubt}"
        )


@dataclass(frozen=True)
class Fragmentation(Finding):
    """Segments were allocated while at least as many bytes lay free in blocks that the request could not use: each
    too small, or kept for another stream or for the other pool (requests of at most 1 MiB have a pool of their own).
    """

    code = "fragmentation"
    recognised = """the snapshot's history, request by request. The share is the bytes of such segments by the peak of
    reserved memory, at most what that peak exceeds the peak in use. Severity is low unless requests were retried
    (medium) or failed for it (high): without pressure it costs memory, not time. Much reserved and little in use at
    the end is **not** fragmentation but the cache after a peak."""
    helps = "the setting under «What to change»; fewer different sizes (padding batches to a few lengths)."
    misleads = "a history that begins long after the process did: what was reserved before it is not judged."

    share: float
    """Of the peak of reserved memory."""
    reserved_bytes: int
    peak_bytes: int
    requests: int
    largest_request_bytes: int
    free_bytes: int
    free_elsewhere_bytes: int

    def message(self) -> str:
        size, peak = units.memory(self.reserved_bytes), units.memory(self.peak_bytes)
        return (
            f"Up to {units.share(self.share)} of the peak of reserved memory ({size} of {peak}) was reserved while as "
            f"much was free in blocks that the requests could not use: {units.plural(self.requests, 'request')}, the "
            f"largest {units.memory(self.largest_request_bytes)} with {units.memory(self.free_bytes)} free in smaller "
            f"blocks of its pool and {units.memory(self.free_elsewhere_bytes)} in blocks for other streams or sizes"
        )


@dataclass(frozen=True)
class MemoryHeadroom(Finding):
    """A training of whose device memory at most half was ever reserved. No fault; it is advice only where much of the
    step is no compute.
    """

    code = "memory_headroom"
    severity = "low"
    recognised = """the allocator's samples (`profile_memory=True`) and the memory of the device in Kineto's header."""
    helps = "a larger batch per rank, more micro-batches in flight."
    misleads = "other processes on the device; a peak that lies outside the recording."

    reserved_bytes: int
    """The most that was, on the rank with least room."""
    capacity_bytes: int

    def message(self) -> str:
        return f"Most of the memory stays free: {_room(self.reserved_bytes, self.capacity_bytes)}"


@dataclass(frozen=True)
class NeedlessCheckpointing(Finding):
    """Activations are computed again in the backward pass although the device has room to keep them."""

    code = "needless_checkpointing"
    severity = "low"
    recognised = """autograd's `CheckpointFunction` or frames of `torch/utils/checkpoint.py` beside a
    `memory_headroom`."""
    helps = "checkpointing off, or of fewer layers."
    misleads = "as above."

    reserved_bytes: int
    """The most that was, on the rank with least room."""
    capacity_bytes: int

    def message(self) -> str:
        room = _room(self.reserved_bytes, self.capacity_bytes)
        return f"Activations are computed again in the backward pass, although there is room for them: {room}"


@dataclass(frozen=True)
class MemoryPeak(Finding):
    """What holds GPU memory at the peak of an allocator snapshot that is analysed without a trace: the headline of such
    a report.
    """

    code = "memory_peak"
    severity = "low"
    recognised = """the blocks in use at the moment of most allocated memory, summed by the line of the user's own code
    that asked for them: the innermost frame that is neither of the standard library, nor of an installed package, nor
    of torch. The thread of the backward pass has no Python frames: there autograd's node stands for the line. Each
    block also counts to one kind (forward, attention scores, gradients, optimizer…), by the functions and files of
    torch that its stack goes through."""
    helps = """what is under «What would shrink the peak», each with the bytes it can save at most: a fused attention
    kernel for scores that a softmax within attention keeps, activation checkpointing and a smaller micro-batch for what
    the forward pass keeps, sharding for gradients, optimizer states and parameters, `fused=True` for copies that the
    optimizer makes. Nothing is proposed that the stacks don't show."""
    misleads = """what was in use before the recording began has no stack: begin it before the model is built. Once the
    largest is gone another moment may be the peak, so a saving is a bound, not a prediction."""

    said: str
    """What `report.view.memory_sentences` says of the section `memory`, which holds the numbers."""
    snapshot: str
    """Which one, of several."""

    def message(self) -> str:
        return f"{self.said[0].upper()}{self.said[1:]}{f' ({self.snapshot})' if self.snapshot else ''}"


def _room(reserved_bytes: int, capacity_bytes: int) -> str:
    reserved, capacity = units.memory(reserved_bytes), units.memory(capacity_bytes)
    return f"{reserved} of the device's {capacity} are the most that was reserved"
