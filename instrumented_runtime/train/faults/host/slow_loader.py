"""A data loader that takes too long: each item sleeps in the dataset, as reading or decoding would."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.utils.data import Dataset

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault, require

if TYPE_CHECKING:
    from torch import Tensor

    from gpuscope.instrumented_runtime.train.data import Tokens
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


class _Slow(Dataset["Tensor"]):
    """A dataset whose items each take longer in the steps the fault is due."""

    def __init__(self, dataset: Tokens, fault: SlowLoader, context: StepContext) -> None:
        self.dataset, self.fault, self.context = dataset, fault, context
        self.seconds = fault.ms / 1e3 / (context.config.data.batch * context.config.train.accumulate)

    def __getitem__(self, index: int) -> Tensor:
        if self.fault.due(self.context.step):
            start = time.perf_counter_ns()
            time.sleep(self.seconds)
            self.context.ledger.add(self.fault.name, self.context.step, ns=time.perf_counter_ns() - start)
        return self.dataset[index]


@dataclass(frozen=True)
class SlowLoader(StepFault):
    """Loading takes `ms` longer per step, on `rank` (-1 = all ranks): in the training process, or in `workers`
    worker processes, which hide it behind the preceding steps; those act in every step and keep no ledger."""

    name = "slow_loader"
    what = "DataLoader.__next__ on the training thread"
    unit = "items"
    bound_by = "cpu"
    cause = "input"
    ms: float = 30.0
    rank: int = -1
    workers: int = 0

    def ranks(self, config: TrainConfig, world_size: int) -> list[int] | None:  # noqa: ARG002
        return None if self.rank < 0 else [self.rank]

    def ns_per_step(self) -> int:
        return round(self.ms * 1e6)

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:  # noqa: ARG002
        require(
            config.data.workers in (0, self.workers),
            self.name,
            "workers",
            f"{self.workers} contradicts data.workers={config.data.workers}",
            f"--fault slow_loader:workers={config.data.workers}",
        )
        return config.replace("data", workers=self.workers)

    def wrap_dataset(self, dataset: Tokens, context: StepContext) -> Tokens:
        return _Slow(dataset, self, context) if self.rank in (-1, context.rank) else dataset
