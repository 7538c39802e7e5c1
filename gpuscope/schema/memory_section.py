"""The report's section `memory`: what PyTorch's caching allocator held, from snapshots and profiler traces."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.when_used import TypedDict


class HeldEntry(TypedDict):
    """Memory in use at the peak that one line of the user's code asked for."""

    bytes: int
    blocks: int
    line: NotRequired[str]
    """The innermost frame of the user's own code, or autograd's node; empty where the stack was not recorded."""
    kind: NotRequired[str]
    """What allocated, as a row of `peak_by_kind`."""
    stacks: NotRequired[int]
    """Distinct stacks that go through the line."""
    frames: list[str]
    """Of the stack with most bytes, innermost first; empty where it was not recorded."""
    before_recording: bool
    """In use already when the recording began."""


class HeldLeft(TypedDict):
    """What the rows of `at_peak` leave out."""

    lines: int
    blocks: int
    bytes: int


class KindEntry(TypedDict):
    """Memory in use at the peak by what allocated it, as the stacks tell; all blocks are in exactly one kind."""

    kind: str
    """`forward`, `attention scores`, `gradients`, `optimizer`, `before the recording`… ([how it is
    found](findings.md#memory_peak))."""
    bytes: int
    blocks: int


class MemorySample(TypedDict):
    """A point of the timeline: the one with most allocated of its stretch."""

    time_ns: int | None
    allocated_bytes: int
    reserved_bytes: int | None


class FragmentationEntry(TypedDict):
    """Segments allocated while enough free bytes lay in blocks that the request could not use."""

    requests: int
    reserved_bytes: int
    """Reserved for them, at most what the peak reserved exceeds the peak in use."""
    largest_request_bytes: int
    free_bytes: int
    """Free at the largest of them, in blocks of its own pool, each too small."""
    free_elsewhere_bytes: int
    """Free then in blocks for other streams or for the other pool."""


class FailureEntry(TypedDict):
    """A request that failed (out of memory)."""

    time_ns: int | None
    requested_bytes: int
    allocated_bytes: int
    """In use then."""
    reserved_bytes: int
    """Reserved then."""
    free_bytes: int
    """Reserved, but in no block in use."""
    device_free_bytes: int | None
    """Free on the device."""
    free_blocks: list[int]
    """Sizes of the largest free blocks that the request could have used, had they been large enough."""
    kind: Literal["fragmentation", "scattered", "full", "limit"]
    """`fragmentation`, `scattered`, `limit` or `full` ([what they mean](findings.md#out_of_memory))."""
    why: str
    """A sentence for people; may change."""
    frames: list[str]
    """Innermost first."""


class RetryEntry(TypedDict):
    """Segments given back to the device in the midst of a request, which was then tried again."""

    time_ns: int | None
    released_bytes: int
    requested_bytes: int
    """Asked of the device then."""
    dur_ns: int | None
    """From the first segment given back to the new one."""
    certain: bool
    """False where it may have been a call of `empty_cache`: no stack shows which."""


class AllocatorChangeEntry(TypedDict):
    """What the replay needed with one option changed."""

    option: str
    value: str
    peak_reserved_bytes: int
    device_calls: int
    """CudaMalloc and cuMemMap."""
    retries: int
    failed: int
    collections: NotRequired[int]
    """Times that garbage was given back by cudaFree; reports of gpuscope 0.2 and before lack it."""


class AllocatorReplayEntry(TypedDict):
    """A replay of the recorded requests through a model of the allocator."""

    peak_reserved_bytes: int
    error_frac: float
    """Error of that peak against the recorded one."""
    placed_frac: float
    """Requests that got the very address that was recorded, from the recorded state."""
    retries: int
    failed: int
    """Requests that failed."""
    usable: bool
    """Whether other settings can be predicted."""
    why: str
    """Why no other setting can be predicted; empty where it can."""
    changes: list[AllocatorChangeEntry]
    """Tried only where memory was fragmented or ran out."""
    best: AllocatorChangeEntry | None
    """The one to take; null where none is worth it."""


class MemoryEntry(TypedDict):
    """One entry per device of each allocator snapshot, and of each trace with memory events. Sizes are bytes as PyTorch
    counts them (`memory_allocated`, `memory_reserved`)."""

    rank: int
    rank_told: NotRequired[bool]
    """False where nothing tells the rank of the file: `rank` is then 0, and the file is one of its own."""
    device: int
    path: str
    """File."""
    kind: Literal["snapshot", "profiler"]
    """`snapshot`, or `profiler` (totals only; what is not recorded is null or empty)."""
    events: int
    """Events of its history."""
    from_start: bool | None
    """Whether nothing was reserved when the recording began."""
    settings: str | None
    """The variable's value; None where not recorded."""
    variable: str
    """The variable that this PyTorch reads."""
    end_allocated_bytes: int
    end_reserved_bytes: int | None
    peak_allocated_bytes: int
    """Blocks in use."""
    peak_active_bytes: int | None
    """Allocated, or freed but still in use on another stream."""
    peak_reserved_bytes: int | None
    """Held from the device."""
    peak_time_ns: int | None
    """Of most allocated."""
    at_peak: list[HeldEntry]
    """What was in use then, by stack, the most bytes first."""
    at_peak_left: NotRequired[HeldLeft]
    """What these rows leave out; **absent** for `profiler`."""
    peak_by_kind: NotRequired[list[KindEntry]]
    """What was in use then by what allocated it; **absent** for `profiler`."""
    trains: NotRequired[bool]
    """Whether the recording shows a backward pass or an optimizer."""
    timeline: list[MemorySample]
    """At most 240 points; of each stretch of events the one with most allocated."""
    fragmentation: FragmentationEntry | None
    """Requests that got a segment, or failed, while as much lay free in blocks they could not use."""
    failures: list[FailureEntry]
    """Requests that failed."""
    failures_left: NotRequired[int]
    """Failed requests after these."""
    retries: list[RetryEntry]
    """Segments given back in the midst of a request."""
    replay: AllocatorReplayEntry | None
    """The recorded requests through a model of the allocator, as they were."""
