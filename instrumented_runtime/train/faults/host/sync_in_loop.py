"""`.item()` in the middle of the forward: the host waits for the device, and its queue runs dry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault


@dataclass(frozen=True)
class SyncInLoop(StepFault):
    """Reads every block's output on the host `times` times, as debugging prints and finite checks do."""

    name = "sync_in_loop"
    what = "Tensor.item() after every transformer block's forward"
    unit = ".item() calls"
    bound_by = "cpu"
    cause = "sync"
    shows_on = ("cuda",)
    times: int = 1

    def on_model(self, context: StepContext) -> None:
        from gpuscope.instrumented_runtime.train.faults.blocks import blocks, is_shape_only

        def read(_module: Any, _inputs: Any, output: Any) -> None:
            local = getattr(output, "_local_tensor", output)
            if self.due(context.step) and not is_shape_only(local):
                for _ in range(self.times):
                    local.detach().flatten()[0].item()
                context.ledger.add(self.name, context.step, count=self.times)

        for block in blocks(context):
            block.register_forward_hook(read)
