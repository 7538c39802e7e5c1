"""What an analysis can't do without: said where it is missing, with how to record it."""

from __future__ import annotations

from collections.abc import Callable

from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Need:
    """Something that the trace must hold: by default, rows of the table `what`."""

    what: str
    how: str
    """How to record it."""
    present: Callable[[Trace], bool] | None = None
    """Whether the trace holds it, where that is not the rows of one table."""
    optional: bool = False
    """Whether a good recording may lack it: then this analysis does not apply to the run, and the user is not asked to
    record it."""

    def met(self, trace: Trace) -> bool:
        """Whether the trace holds it."""
        return self.present(trace) if self.present is not None else len(trace[self.what]) > 0


def any_of(*tables: str) -> Callable[[Trace], bool]:
    """For `Need.present`: whether at least one of the tables has rows."""
    return lambda trace: any(len(trace[table]) for table in tables)


def serves(trace: Trace) -> bool:
    """Whether these are steps of an inference server: any of them has a phase."""
    return bool((trace["steps"]["phase"] != NO_NAME).any())


OF_A_SERVER = Need("steps of a server", "servers name the ranges around their steps", serves, optional=True)
NO_SERVER = Need(
    "other steps than a server's", "a server needs each message at once", lambda trace: not serves(trace), optional=True
)
DEVICE_EVENTS = Need("device_events", "record the device's activity (ProfilerActivity.CUDA, nsys -t cuda)")
