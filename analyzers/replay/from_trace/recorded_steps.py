"""Which steps of a rank are replayed: a few whole ones from the middle, so that memory stays bounded."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView, StepWindow
from gpuscope.trace.columns.table import Mask, Table, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

STEPS_KEPT = 10
"""Steps replayed at most: enough to see how steps vary, a bounded graph for runs of thousands."""
STEPS_WANTED = 3
"""Steps below which further ranks are not worth what they take: the first one begins as recorded, whatever changes."""
EVENTS_KEPT = 20_000
"""Device events per rank up to which further steps are taken: a graph of them takes about half a second."""
LARGEST_STEP = 100_000
"""Device events of the largest step that is still kept: about 30 MB of graph."""
RUN_KEPT = 400_000
"""Device events over all ranks: a graph of them takes some hundred MB, a prediction some ten seconds."""


UNLINKED_FRAC = 0.05
"""Share of operations whose launch may be unknown: each keeps its measured start, and no change moves it."""


@dataclass(frozen=True)
class Window:
    """The steps replayed, whole and in a row; where the trace has no steps, one of all it holds."""

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


def window(trace: Trace, view: LaneView, ranks: int = 1) -> Window | None:
    """The steps of a lane of a run of so many ranks to replay; None where not even one of them is small enough.

    The middle ones of the longest run of steps whose launches are recorded: profilers lose calls at the start. A rank
    does not know which of them are steady on all ranks, so its own durations do not choose: all ranks of a run that
    record the same keep the same ones, and the replay of the run looks at the steady ones among them.
    """
    steps = [step for step in view.steps if step.step != NA] or [StepWindow(NA, *view.window)]
    device = trace["device_events"]
    bounds = np.array([step.start for step in steps] + [steps[-1].end])
    places = np.searchsorted(device["start"][view.rows], bounds)
    low, high = _longest(_linked(device, view.rows, places)) if view.lane.device != NA else (0, len(steps))
    largest = max(1, int(np.diff(places)[low:high].max()))
    share = RUN_KEPT // ranks
    if largest > min(LARGEST_STEP, share):
        return None
    kept = min(STEPS_KEPT, max(1, min(EVENTS_KEPT, share) // largest), high - low)
    first = low + (high - low - kept) // 2
    chosen = steps[first : first + kept]
    closed = chosen[-1].end == view.window[1]
    # A single annotated step begins before its device works and may end after that: none of that is replayed.
    begin, end = int(device["start"][view.rows].min()), int(device["end"][view.rows].max())
    chosen[0] = StepWindow(chosen[0].step, max(chosen[0].start, begin), chosen[0].end)
    chosen[-1] = StepWindow(chosen[-1].step, chosen[-1].start, min(chosen[-1].end, end))
    return Window(tuple(chosen), closed)


def _linked(device: Table, rows: Times, places: Times) -> Mask:
    """Per step, whether the launches of its operations are recorded, but for a few."""
    lost = np.concatenate(([0], np.cumsum((device.at("launch", rows) == NA) & (device.at("correlation", rows) != NA))))
    counts = np.diff(places)
    return np.asarray(lost[places[1:]] - lost[places[:-1]] <= UNLINKED_FRAC * counts)


def _longest(linked: Mask) -> tuple[int, int]:
    """The longest run, as [low, high); all where there is none: then the graph says what is missing."""
    best, begin = (0, 0), 0
    for place, good in enumerate([*linked.tolist(), False]):
        if not good:
            best = max(best, (begin, place), key=lambda run: run[1] - run[0])
            begin = place + 1
    return best if best[1] else (0, len(linked))
