"""What a simulated run leaves behind: every device operation, call and range, exact to the ns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.instructions import Collective, Kind, Reason

UNSET = -1


@dataclass
class Operation:
    """Work on a device. `left` is what remains of it at full speed while it runs."""

    rank: int
    name: str
    stream: int
    kind: Kind
    category: str
    work: int
    args: Mapping[str, Any]
    step: int
    correlation: int
    external: int
    visible: int
    """When the device could first see it."""
    collective: Collective | None = None
    graph: int = 0
    start: int = UNSET
    end: int = UNSET
    transfer: int = UNSET
    """When the last rank had arrived (collectives)."""
    ready: int = UNSET
    """When the last of what it waits for on the device had ended."""
    slots: int = 1
    """Places of the launch queue that its end frees."""


@dataclass
class Call:
    """A runtime call. `waited` is the part of it that waited for the device or for a place in the queue."""

    rank: int
    tid: int
    name: str
    start: int
    end: int
    correlation: int
    external: int
    step: int
    waited: int = 0
    blocking: bool = False
    sync: Mapping[str, Any] | None = None
    """Arguments of its `cuda_sync` row."""
    sync_start: int = UNSET
    event: tuple[int, int] | None = None
    """Stream and id of the event that it records."""


@dataclass
class Range:
    """An operator or annotation."""

    rank: int
    tid: int
    category: str
    name: str
    start: int
    end: int
    external: int
    args: Mapping[str, Any]
    step: int


@dataclass
class Held:
    """A stretch in which a thread was held up for a reason that is not its own work."""

    start: int
    end: int
    reason: Reason
    step: int


@dataclass
class Recorded:
    """One rank."""

    rank: int
    operations: list[Operation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Host step: start and end on the main thread."""
    durations: dict[str, list[int]] = field(default_factory=dict)
    """By program, how long each instruction took, without what it waited for the device or a place in the queue."""
    produced: dict[str, list[Operation]] = field(default_factory=dict)
    """By program, the operations it launched, in order."""


@dataclass
class Run:
    """All ranks, by number."""

    ranks: dict[int, Recorded]
