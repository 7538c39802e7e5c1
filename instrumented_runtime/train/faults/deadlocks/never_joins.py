"""A collective behind an `if`: all ranks but one enter it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gpuscope.instrumented_runtime.train.faults import DeadlockFault, StepContext


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
