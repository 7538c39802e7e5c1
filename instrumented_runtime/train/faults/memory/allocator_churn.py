"""Memory allocated from and returned to the system in every step instead of being cached."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault


@dataclass(frozen=True)
class AllocatorChurn(StepFault):
    """`times` buffers of about `mb` MiB are made, written and dropped per step; on a GPU the cache is
    emptied after each, so that the next is a `cudaMalloc` and the end a `cudaFree`."""

    name = "allocator_churn"
    what = "allocations before the forward"
    unit = "buffers"
    bound_by = "memory"
    cause = "allocator"
    shows_on = ("cuda",)
    mb: float = 64.0
    times: int = 4

    def before_forward(self, context: StepContext) -> None:
        if context.micro_step or not self.due(context.step):
            return
        import torch

        start = time.perf_counter_ns()
        for time_ in range(self.times):
            # No two of a size, so that none fits where the last one was.
            size = round(self.mb * 1024**2) + time_ * 2 * 1024**2
            buffer = torch.zeros(size, dtype=torch.uint8, device=context.device)
            del buffer
            if context.device.type == "cuda":
                torch.cuda.empty_cache()
        ns = time.perf_counter_ns() - start
        context.ledger.add(self.name, context.step, count=self.times, ns=ns)
