"""What stays of a lane once its file has been analysed: small, whatever the number of its events."""

from __future__ import annotations

from dataclasses import dataclass

from analyzers.lanes import LaneView, StepWindow
from gpuscope.trace.breakdown import Breakdown
from gpuscope.trace.intervals import Spans
from gpuscope.trace.trace import Trace


@dataclass(frozen=True)
class LaneSummary:
    """A lane's window, exact parts (whole and per step), and where its communication was exposed."""

    rank: int
    device: int
    window: tuple[int, int]
    breakdown: Breakdown
    steps: tuple[StepWindow, ...]
    step_breakdowns: tuple[Breakdown, ...]
    basis: str | None
    exposed_communication: Spans
    events: int
    """Device events of the lane."""

    @property
    def key(self) -> tuple[int, int]:
        """(rank, device)."""
        return self.rank, self.device


def summarise(trace: Trace, view: LaneView) -> LaneSummary:
    """The summary of a lane."""
    return LaneSummary(
        rank=view.lane.rank,
        device=view.lane.device,
        window=view.window,
        breakdown=view.breakdown,
        steps=view.steps,
        step_breakdowns=step_breakdowns(trace, view),
        basis=view.basis,
        exposed_communication=view.parts.exposed_communication,
        events=len(view.rows),
    )


def step_breakdowns(trace: Trace, view: LaneView) -> tuple[Breakdown, ...]:
    """The exact breakdown of each step, all steps at once."""
    return trace.breakdowns(view.rows, [(step.start, step.end) for step in view.steps])
