"""A rank that deadlocks in its own code: the others wait for it in the next collective."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from gpuscope.instrumented_runtime.train.faults import DeadlockFault, StepContext


@dataclass(frozen=True)
class Hang(DeadlockFault):
    """In `step`, before its forward, `rank` waits for a lock that is never released; after `seconds` it
    continues (0 = never)."""

    name = "hang"
    what = "a lock on the training thread, before the forward"
    unit = "deadlocks"
    alone = True
    seconds: float = 0.0

    def ns_per_step(self) -> int | None:
        return round(self.seconds * 1e9) or None

    def before_forward(self, context: StepContext) -> None:
        if context.rank != self.rank or not self.due(context):
            return
        context.ledger.add(self.name, context.step, ns=self.ns_per_step())
        context.ledger.flush()  # the process may never return to do it
        lock = threading.Lock()
        lock.acquire()
        lock.acquire(timeout=self.seconds or -1)
