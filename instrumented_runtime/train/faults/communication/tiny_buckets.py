"""DDP with buckets so small that nearly every gradient gets an all-reduce of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.instrumented_runtime.train.faults import Fault, StepContext, require

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


@dataclass(frozen=True)
class TinyBuckets(Fault):
    """`ddp.bucket_cap_mb` = `mb`. The ledger holds how many buckets DDP reduced in each step."""

    name = "tiny_buckets"
    what = "DDP's gradient all-reduces"
    unit = "buckets reduced"
    bound_by = "communication"
    cause = "latency"
    mb: float = 0.01

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require(
            config.parallel.data in ("ddp", "zero1") and world_size > 1,
            self.name,
            "mb",
            f"needs DDP on two processes or more, not parallel.data={config.parallel.data} on {world_size}",
            "--parallel ddp --nproc 2",
        )
        return config.replace("ddp", bucket_cap_mb=self.mb)

    def on_step_end(self, context: StepContext) -> None:
        from torch.nn.parallel import DistributedDataParallel

        assert isinstance(context.model, DistributedDataParallel)
        # DDP's own count. It looks back at the start of a forward, so this is of the step before.
        data = context.model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        count = int(data.get("num_buckets_reduced", 0))
        if count:
            context.ledger.add(self.name, context.step - 1, count=count)
