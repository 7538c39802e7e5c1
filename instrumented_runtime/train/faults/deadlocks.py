"""A rank that deadlocks in its own code: the others wait for it in the next collective."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from gpuscope.instrumented_runtime.train.faults import DeadlockFault, StepContext, require

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


# Ranks that enter different collectives at the same place.


@dataclass(frozen=True)
class Mismatched(DeadlockFault):
    """In `step`, `rank` enters another collective than its peers' all-reduce: one of half the size
    (kind=size), an all-gather (kind=op), or the same two all-reduces the other way round (kind=order)."""

    name = "mismatched"
    what = "a collective of the default group, before the forward"
    unit = "collectives that differ"
    kind: Literal["size", "op", "order"] = "size"
    elements: int = 4096

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require(self.elements >= 2, self.name, "elements", "must be at least 2")
        return super().configure(config, world_size)

    def before_forward(self, context: StepContext) -> None:
        if not self.due(context):
            return
        import torch

        differs = context.rank == self.rank
        count = (2 if self.kind == "order" else 1) if differs else 0
        context.ledger.add(self.name, context.step, count=count)
        context.ledger.flush()
        self._collectives(differs, context)
        if context.device.type == "cuda":
            torch.cuda.synchronize(context.device)

    def _collectives(self, differs: bool, context: StepContext) -> None:
        import torch
        import torch.distributed as dist

        whole = torch.ones(self.elements, device=context.device)
        half = torch.ones(self.elements // 2, device=context.device)
        if self.kind == "order":
            for tensor in (half, whole) if differs else (whole, half):
                dist.all_reduce(tensor)
        elif self.kind == "op" and differs:
            dist.all_gather([torch.empty_like(whole) for _ in range(context.world_size)], whole)
        else:
            dist.all_reduce(half if differs else whole)


# A collective behind an `if`: all ranks but one enter it.


@dataclass(frozen=True)
class NeverJoins(DeadlockFault):
    """In `step`, every rank but `rank` enters an all-reduce of a group of all ranks; `rank` goes on to
    its next collective and waits there."""

    name = "never_joins"
    what = "an all-reduce before the forward, in a process group of its own"
    unit = "collectives entered (0: stayed away)"

    def on_model(self, context: StepContext) -> None:
        import torch.distributed as dist

        # A new group does not take over the timeout of the first.
        timeout = timedelta(seconds=context.config.train.timeout_s)
        context.state[self.name] = dist.new_group(timeout=timeout, group_desc="evaluation")

    def before_forward(self, context: StepContext) -> None:
        if not self.due(context):
            return
        import torch
        import torch.distributed as dist

        joins = context.rank != self.rank
        context.ledger.add(self.name, context.step, count=int(joins))
        context.ledger.flush()
        if joins:
            dist.all_reduce(torch.ones(1024, device=context.device), group=context.state[self.name])
            if context.device.type == "cuda":
                torch.cuda.synchronize(context.device)


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
