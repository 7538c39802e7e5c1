"""The report's section `hang`: where a job hung, from its Flight Recorder dumps."""

from __future__ import annotations

from typing import Literal, TypedDict


class HangCause(TypedDict):
    """A rank that others waited for and that itself waited for nobody."""

    rank: int
    kind: Literal["never_arrived", "device_stuck", "mismatch", "no_dump", "circular", "transfer"]
    certain: bool
    """Whether the dumps prove it; they never show why the rank stopped."""
    why: str


class HangOperation(TypedDict):
    """An operation that ranks waited in, and the ranks they waited for."""

    op: str
    group: str
    description: str | None
    seq: int
    waiting: list[int]
    awaited: list[int]
    reason: Literal["absent", "unknown", "no_dump", "blocked", "mismatch"]


class HangVariant(TypedDict):
    """What some ranks called."""

    called: str
    ranks: list[int]


class HangMismatch(TypedDict):
    """Ranks that called different things; `seq` is None where they disagree about a group's members."""

    group: str
    description: str | None
    seq: int | None
    what: str
    variants: list[HangVariant]


class HangLast(TypedDict):
    """The last operation a rank enqueued; None where its dump holds none."""

    rank: int
    op: str | None
    group: str | None
    description: str | None
    seq: int | None
    state: str | None
    created_ns: int | None
    in_flight: int
    """Operations of it that were unfinished."""
    frames: list[str]


class Hang(TypedDict):
    """Where a job hung."""

    hung: bool
    first_cause: list[HangCause]
    only_waited: list[int]
    without_dump: list[int]
    operations: list[HangOperation]
    mismatches: list[HangMismatch]
    last: list[HangLast]
    certain: list[str]
    uncertain: list[str]
