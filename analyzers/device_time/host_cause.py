"""What a host cause is: a cause of idle time that host events of certain names show on the launching thread.

A host cause is a module of `host_causes/` with a `HOST_CAUSE`, and a record in `gpuscope/catalogue/causes.py` that
says what it is called. Its section of docs/findings.md is generated from the module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from gpuscope.plugins import listed
from gpuscope.trace.schema import Category

Names = Callable[[str], bool]
"""Whether an event of this name shows the cause."""
Shown = tuple[tuple[Category, ...], Names]
"""The kinds of host events to look at, and their names."""


@dataclass(frozen=True)
class HostCause:
    """A cause that holds wherever host events with certain names cover an idle instant of the launching thread."""

    code: str
    """Its code in the table of causes."""
    order: int
    """Where several cover an instant, the lowest takes it."""
    shown_by: tuple[Shown, ...]
    about: str
    """Markdown for docs/findings.md: what it is."""
    recognised_by: str
    helps: str
    misled_by: str


@cache
def host_causes() -> tuple[HostCause, ...]:
    """Every `HOST_CAUSE` of `host_causes/`, in their order."""
    found = listed("gpuscope.analyzers.device_time.host_causes", "HOST_CAUSE")
    return tuple(sorted(found, key=lambda cause: cause.order))


@cache
def covering() -> tuple[tuple[str, Shown], ...]:
    """(cause, what shows it), in the order in which they take idle time."""
    return tuple((cause.code, shown) for cause in host_causes() for shown in cause.shown_by)
