"""Which steps of a rank are replayed: a few whole ones from the middle, so that memory stays bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.lanes import LaneView, StepWindow
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

STEPS_KEPT = 10
"""Steps replayed at most: enough to see how steps vary, a bounded graph for runs of thousands."""
EVENTS_KEPT = 50_000
"""Device events replayed at most per rank: about 20 MB of graph."""


@dataclass(frozen=True)
class Window:
    """The steps replayed, whole and in a row; where the trace tells no steps, one of all it holds."""

    steps: tuple[StepWindow, ...]
    closed: bool
    """Whether it ends where the trace does, so that its last step ends with its last device event."""

    @property
    def start(self) -> int:
        """ns."""
        return self.steps[0].start

    @property
    def end(self) -> int:
        """ns."""
        return self.steps[-1].end


def window(trace: Trace, view: LaneView) -> Window | None:
    """The steps of a lane to replay; None where not even one of them is small enough to keep.

    The middle ones: the first are often warm-up. They are the same for all ranks of a run that record the same.
    """
    steps = [step for step in view.steps if step.step != NA]
    steps = steps or [StepWindow(NA, *view.window)]
    starts = trace["device_events"]["start"][view.rows]
    bounds = np.array([step.start for step in steps] + [steps[-1].end])
    counts = np.diff(np.searchsorted(starts, bounds))
    largest = max(1, int(counts.max()))
    kept = min(STEPS_KEPT, EVENTS_KEPT // largest, len(steps))
    if not kept:
        return None
    first = (len(steps) - kept) // 2
    return Window(tuple(steps[first : first + kept]), first + kept == len(steps))
