"""Ranks that enter different collectives at the same place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpuscope.instrumented_runtime.train.faults import DeadlockFault, StepContext, require

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


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
