"""Many tiny operators: the host launches more slowly than the device executes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault


@dataclass(frozen=True)
class LaunchBound(StepFault):
    """`ops` additions to a tensor of one element before each step's forward, on every rank."""

    name = "launch_bound"
    what = "tiny operators before the forward"
    unit = "operators"
    bound_by = "cpu"
    cause = "launch"
    shows_on = ("cuda",)
    ops: int = 2000

    def before_forward(self, context: StepContext) -> None:
        if context.micro_step or not self.due(context.step):
            return
        import torch

        start = time.perf_counter_ns()
        tiny = torch.zeros(1, device=context.device)
        for _ in range(self.ops):
            tiny.add_(1)
        context.ledger.add(self.name, context.step, count=self.ops, ns=time.perf_counter_ns() - start)
