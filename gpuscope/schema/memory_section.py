"""The report's section `memory`: what PyTorch's caching allocator held, from snapshots and profiler traces."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.when_used import TypedDict

# The report's section `hang`: where a job hung, from its Flight Recorder dumps.

Doing = Literal[
    "debugger",
    "rendezvous",
    "collective",
    "compiling",
    "data_loader",
    "storage",
    "device_wait",
    "autograd",
    "lock",
    "gil",
    "host_code",
]
"""What a rank's main thread was in: a debugger, the making of a process group, a collective, a compiler, a data loader,
saving or reading files, a wait for its GPU, a backward pass, a lock, a lack of the interpreter's lock that another
thread held, other code."""
Reason = Literal[
    "killed",
    "out_of_memory_host",
    "out_of_memory",
    "crashed",
    "exited",
    "stopped",
    "gpu_error",
    "driver_error",
    "program_error",
    "unresponsive",
    "network",
    "debugger",
    "rendezvous",
    "compiling",
    "data_loader",
    "storage",
    "blocked_call",
    "device_wait",
    "lock",
    "gil",
    "host_code",
]
"""Why a rank stands still. `gpu_error` is a fault of hardware, `program_error` one of the program on the GPU,
`blocked_call` a CUDA or NCCL call that does not return."""


class HangCause(TypedDict):
    """A rank that others waited for and that itself waited for nobody."""

    rank: int
    kind: Literal[
        "never_arrived",
        "device_stuck",
        "mismatch",
        "no_dump",
        "circular",
        "transfer",
        "gone",
        "behind",
        "elsewhere",
        "network",
        "silent",
        "other_group",
        "watchdog_stuck",
    ]
    """`never_arrived` (enqueued nothing more), `device_stuck` (did not finish what all others did), `mismatch`,
    `no_dump`, `circular` (several that wait for each other), `transfer` (all have come, none gets through); without
    dumps that tell: `gone` (takes no part any more), `behind` (launched fewer operations), `elsewhere` (its stack is
    not in a collective, those of others are), `network`; where watchdogs' time was up: `silent` (reports nothing),
    `other_group` (waits in another group's operation), `watchdog_stuck` (its watchdog made no progress)."""
    certain: bool
    """Whether it is proved that this rank is a first cause."""
    reason: NotRequired[Reason | None]
    """What it did instead, by its stack, its log or its process; null where nothing tells."""
    reason_certain: NotRequired[bool]
    """Whether that is proved too."""
    place: NotRequired[str | None]
    """Where in the user's code."""
    remedy: NotRequired[str | None]
    """What to do next; a sentence for people, may change."""
    why: str
    """A sentence for people; may change."""


class HangOperation(TypedDict):
    """An operation that ranks waited in, and the ranks they waited for."""

    op: str
    """`all_reduce`, `send`…"""
    group: str
    """Process group."""
    description: str | None
    """What the framework calls the group."""
    seq: int
    """Number within the group."""
    waiting: list[int]
    """Ranks."""
    awaited: list[int]
    """Ranks."""
    reason: Literal["absent", "unknown", "no_dump", "blocked", "mismatch"]
    """`absent` (not enqueued), `unknown` (the dump doesn't say), `no_dump`, `blocked` (enqueued behind another
    unfinished operation), `mismatch`."""


class HangVariant(TypedDict):
    """What some ranks called."""

    called: str
    ranks: list[int]


class HangMismatch(TypedDict):
    """Ranks that called different things; `seq` is None where they disagree about a group's members."""

    group: str
    description: str | None
    seq: int | None
    """Number within the group; null for `members`."""
    what: str
    """`operation`, `dtype`, `size` or `members`."""
    variants: list[HangVariant]


class HangLast(TypedDict):
    """The last operation a rank enqueued; None where its dump holds none."""

    rank: int
    op: str | None
    group: str | None
    description: str | None
    seq: int | None
    state: str | None
    """`scheduled`, `started` or `completed`, as recorded; on gloo always `scheduled`."""
    created_ns: int | None
    in_flight: int
    """Operations of it that were unfinished."""
    frames: list[str]
    """The Python stack, innermost first."""


class HangHost(TypedDict):
    """What a rank's main thread was doing when its stack was dumped."""

    rank: int
    doing: Doing
    place: str | None
    """Where in the user's code."""
    frames: list[str]
    """Innermost first; a line's code stands after a tab."""


class HangSign(TypedDict):
    """A line of a log, or a process's state, that bears on the hang."""

    rank: int | None
    sign: str
    """As `reason`, or `mismatch`, `timed_out`, `watchdog_stuck`, `dump_signal` (another rank's time was up), `lagging`,
    `peer_closed`, `last_line` (of a first cause), `alive`."""
    text: str
    file: str
    line: int


SourceOfHang = Literal["flight_recorder", "stacks", "logs", "ras", "process_states", "compile_logs"]


class HangSource(TypedDict):
    """What was read of one kind."""

    source: SourceOfHang
    ranks: list[int]
    """Ranks that it tells of."""
    missing: list[int]
    """Ranks of the job that it does not tell of."""
    how: str | None
    """How to get what is missing; null where nothing is."""


class HangContradiction(TypedDict):
    """Two sources that can't both be right of one moment."""

    rank: int
    kind: Literal["waits_in_collective", "answers_though_gone", "ras_not_behind"]
    what: str
    """A sentence for people; may change."""


class Hang(TypedDict):
    """Where a job hung, and why. By Flight Recorder dumps a rank waits where one of its operations is unfinished and
    another member of the group is not there; the first cause is the ranks that others wait for, which wait for nobody.
    Stacks, logs, NCCL's RAS, processes' states and compile logs say what these did, or who they are without dumps."""

    hung: bool
    """Whether the job hung: there is a first cause, or an operation waited for until its time was up."""
    first_cause: list[HangCause]
    """The ranks that made the job hang."""
    only_waited: list[int]
    """Ranks that waited, for the first cause or for ranks that wait for it."""
    without_dump: list[int]
    """Ranks of the job that left no dump."""
    operations: list[HangOperation]
    """Operations that ranks waited in."""
    mismatches: list[HangMismatch]
    """Ranks that called different things."""
    last: list[HangLast]
    """The last operation each rank enqueued, as far as its dump holds one."""
    certain: list[str]
    """Sentences: what the dumps say outright."""
    uncertain: list[str]
    """Sentences: what they leave open."""
    hosts: NotRequired[list[HangHost]]
    """What each rank's main thread was doing."""
    signs: NotRequired[list[HangSign]]
    """Lines of logs that bear on it."""
    sources: NotRequired[list[HangSource]]
    """What was read, and what is missing."""
    contradictions: NotRequired[list[HangContradiction]]
    """Where sources disagree."""


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
