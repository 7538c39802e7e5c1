"""Time by the place of the program that it goes back to, as one tree; tables by line, module, operator or kernel are
made from it."""

from __future__ import annotations

from typing import Literal

from gpuscope.when_used import TypedDict

PlaceKind = Literal["range", "line", "module", "operator", "kernel", "unknown"]


class PlaceEntry(TypedDict):
    """A place of the program within the one above it. Times are its own, without the places below it, and summed over
    the ranks analysed."""

    id: int
    parent: int | None
    kind: PlaceKind
    """`line` is a function of the user's own code, by the line where it begins; `unknown` stands for what no host event
    covers, or no launch ties to one."""
    name: str
    device_ns: int
    """Durations of device events that were launched there."""
    exposed_communication_ns: int
    """Of communication launched there, what was exposed."""
    idle_ns: int
    """Idle time of the device while the thread that launches next was there."""
