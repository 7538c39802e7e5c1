"""Which recorded event shows something: enough to find it in its rank's file again."""

from __future__ import annotations

from typing import Literal

from gpuscope.when_used import TypedDict


class EventId(TypedDict):
    """One recorded event of a rank; times are on the rank's own clock."""

    table: Literal["device_events", "host_events"]
    """Whether a device or a thread of the host ran it."""
    device: int | None
    """Of a device event; null on a CPU, whose training thread is the device."""
    stream: int | None
    """Of a device event, where it is recorded."""
    thread: int | None
    """Of a host event, the id of its thread, where it is recorded."""
    start_ns: int
    dur_ns: int
    name: str
