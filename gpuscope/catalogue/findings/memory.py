"""Device memory: requests that failed or were retried, fragmentation, room that is left."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.catalogue.finding import Finding


@dataclass(frozen=True)
class OutOfMemory(Finding):
    """A request for GPU memory failed. From an allocator snapshot (`torch.cuda.memory._dump_snapshot()`, or `gpuscope
    record --memory`, which writes one by itself when memory runs out).
    """

    code = "out_of_memory"
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


@dataclass(frozen=True)
class MemoryHeadroom(Finding):
    """A training of whose device memory at most half was ever reserved. No fault; it is advice only where much of the
    step is no compute.
    """

    code = "memory_headroom"
    recognised = """the allocator's samples (`profile_memory=True`) and the memory of the device in Kineto's header."""
    helps = "a larger batch per rank, more micro-batches in flight."
    misleads = "other processes on the device; a peak that lies outside the recording."


@dataclass(frozen=True)
class NeedlessCheckpointing(Finding):
    """Activations are computed again in the backward pass although the device has room to keep them."""

    code = "needless_checkpointing"
    recognised = """autograd's `CheckpointFunction` or frames of `torch/utils/checkpoint.py` beside a
    `memory_headroom`."""
    helps = "checkpointing off, or of fewer layers."
    misleads = "as above."
