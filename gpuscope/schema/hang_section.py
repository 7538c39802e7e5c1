"""The report's section `hang`: where a job hung, from its Flight Recorder dumps."""

from __future__ import annotations

from typing import Literal, TypedDict


class HangCause(TypedDict):
    """A rank that others waited for and that itself waited for nobody."""

    rank: int
    kind: Literal["never_arrived", "device_stuck", "mismatch", "no_dump", "circular", "transfer"]
    """`never_arrived` (enqueued nothing more), `device_stuck` (did not finish what all others did), `mismatch`,
    `no_dump`, `circular` (several that wait for each other), `transfer` (all have come, none gets through)."""
    certain: bool
    """Whether the dumps prove it; they never show why the rank stopped."""
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


class Hang(TypedDict):
    """Where a job hung. From Flight Recorder dumps. A rank waits where one of its operations is unfinished and another
    member of the group is not there; the first cause is the ranks that others wait for and that wait for nobody."""

    hung: bool
    """Whether there is a first cause."""
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
