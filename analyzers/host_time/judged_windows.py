"""The parts of a lane that its figures per step are of, before the roles of the whole run are known."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView, step_at
from gpuscope.analyzers.base.step_roles import MIN_STEADY, Role
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Judged:
    """Start and end of each judged step, shape (n,), ns; one window where too few steps are steady."""

    start: Times
    end: Times
    steady: bool

    def __len__(self) -> int:
        return len(self.start)

    def place(self, at: Times) -> Times:
        """Which of them each instant lies in, shape as `at`; NA outside all."""
        return step_at(self.start, self.end, at)


def judged(view: LaneView) -> Judged:
    """The steady steps; else everything from the first step on; without steps the window."""
    steady = [step for step, role in zip(view.steps, view.roles, strict=True) if role == Role.STEADY]
    if len(steady) >= MIN_STEADY:
        bounds = np.array([(step.start, step.end) for step in steady], np.int64)
        return Judged(bounds[:, 0], bounds[:, 1], steady=True)
    proper = [step for step in view.steps if step.step != NA]
    first, last = (proper[0].start, proper[-1].end) if proper else view.window
    return Judged(np.array([first], np.int64), np.array([last], np.int64), steady=False)
