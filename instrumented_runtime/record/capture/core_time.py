"""Time the training thread ran and waited for a core in each step, as Linux counts it.

`/proc/thread-self/schedstat` (Documentation/scheduler/sched-stats.rst): ns on a core, ns runnable without one. On a
machine whose cores are all busy (gloo's threads, loader workers, other jobs) the second is the cost of that; no
profiler event shows it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

KEY = "gpuscope_cores"
"""Key in the trace's metadata."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass
class CoreTime:
    """Counts the calling thread; empty where the kernel does not count."""

    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, ns on a core, ns waiting for one)."""
    _last: tuple[int, int] | None = None

    def begin(self) -> None:
        """A step begins."""
        self._last = _read()

    def step(self, number: int) -> None:
        """End the step that began last, numbered `step`."""
        before, now = self._last, _read()
        if before is not None and now is not None:
            self.steps.append((number, now[0] - before[0], now[1] - before[1]))

    def metadata(self, threads: int) -> dict[str, object] | None:
        """The metadata for the trace, with the threads that operators take; None if nothing was counted."""
        columns = ("step", "ran_ns", "waited_ns")
        if not self.steps:
            return None
        return {"cores": cores(), "threads": threads, "columns": columns, "steps": self.steps}


def _read() -> tuple[int, int] | None:
    try:
        ran, waited, *_ = map(int, _SCHEDSTAT.read_text().split())
    except (OSError, ValueError):
        return None
    # A kernel that does not count reports 0.
    return (ran, waited) if ran else None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
