"""The report's section `hang`: where a job hung, from its Flight Recorder dumps."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.when_used import TypedDict

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
