"""Copies between device and pageable host memory: each goes through a staging buffer and blocks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


@dataclass(frozen=True)
class PageableCopies(StepFault):
    """Batches come in pageable memory, and `mb` MiB go to the device and back before each step's forward.
    Without a GPU these are copies within host memory."""

    name = "pageable_copies"
    what = "host-device copies before the forward"
    unit = "bytes copied, both ways"
    bound_by = "memory"
    cause = "copy"
    shows_on = ("cuda",)
    mb: float = 64.0

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:  # noqa: ARG002
        return config.replace("data", pin_memory=False)

    def on_model(self, context: StepContext) -> None:
        import torch

        host = torch.zeros(round(self.mb * 1024**2), dtype=torch.uint8)
        # On a CPU `to` would hand back the same tensor and copy nothing.
        context.state[self.name] = host, torch.empty_like(host, device=context.device)

    def before_forward(self, context: StepContext) -> None:
        if context.micro_step or not self.due(context.step):
            return
        host, device = context.state[self.name]
        start = time.perf_counter_ns()
        device.copy_(host)
        host.copy_(device)
        ns = time.perf_counter_ns() - start
        context.ledger.add(self.name, context.step, count=2 * host.nbytes, ns=ns)
