"""A rank that deadlocks in its own code: the others wait for it in the next collective."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from instrumented_runtime.faults import Fault, StepContext, require_rank

if TYPE_CHECKING:
    from instrumented_runtime.config import TrainConfig


@dataclass(frozen=True)
class Hang(Fault):
    """In `step`, before its forward, `rank` waits for a lock that nobody gives back; after `seconds` it
    goes on (0 = never)."""

    name = "hang"
    what = "a lock on the training thread, before the forward"
    unit = "deadlocks"
    finding = "hang"
    rank: int = 1
    step: int = 2
    seconds: float = 0.0

    def ranks(self, config: TrainConfig, world_size: int) -> list[int]:  # noqa: ARG002
        return [self.rank]

    def steps(self, config: TrainConfig) -> dict[str, int]:  # noqa: ARG002
        return {"first": self.step, "last": self.step, "every": 1}

    def ns_per_step(self) -> int | None:
        return round(self.seconds * 1e9) or None

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require_rank(self.rank, world_size, self.name)
        return config

    def before_forward(self, context: StepContext) -> None:
        if (context.rank, context.step, context.micro_step) != (self.rank, self.step, 0):
            return
        context.ledger.add(self.name, context.step, ns=self.ns_per_step())
        context.ledger.flush()  # nobody may come back to do it
        lock = threading.Lock()
        lock.acquire()
        lock.acquire(timeout=self.seconds or -1)
