"""The training thread stops to save a checkpoint, collect garbage or write a log."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal

from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig

_CYCLES = 20_000
_LOG_LINE = b"step loss lr grad_norm\n" * 40


@dataclass(frozen=True)
class HostStall(StepFault):
    """At the end of a step, every rank repeats a real checkpoint, garbage collection or synced log write
    until `ms` are over (at least once)."""

    name = "host_stall"
    what = "the training thread, after the optimizer"
    unit = "checkpoints, collections or log writes"
    bound_by = "cpu"
    kind: Literal["checkpoint", "gc", "logging"] = "checkpoint"
    ms: float = 50.0

    def truth(self, config: TrainConfig, world_size: int) -> dict[str, Any]:
        return {**super().truth(config, world_size), "cause": "gc" if self.kind == "gc" else "host_other"}

    def ns_per_step(self) -> int:
        return round(self.ms * 1e6)

    def on_step_end(self, context: StepContext) -> None:
        if not self.due(context.step):
            return
        start, count = time.perf_counter_ns(), 0
        with span(self.kind, step=context.step), tempfile.TemporaryFile() as file:
            while not count or time.perf_counter_ns() - start < self.ns_per_step():
                self.ACTS[self.kind](context, file)
                count += 1
        context.ledger.add(self.name, context.step, count=count, ns=time.perf_counter_ns() - start)

    @staticmethod
    def _checkpoint(context: StepContext, file: IO[bytes]) -> None:
        import torch

        assert context.model is not None
        # A sharded parameter is saved as this rank's shard.
        shards = [getattr(p, "_local_tensor", p).detach() for p in context.model.parameters()]
        file.seek(0)
        torch.save(shards, file)
        os.fsync(file.fileno())

    @staticmethod
    def _gc(context: StepContext, file: IO[bytes]) -> None:  # noqa: ARG004 - all acts are called alike
        for _ in range(_CYCLES):
            cycle: list[Any] = []
            cycle.append(cycle)
        gc.collect()

    @staticmethod
    def _logging(context: StepContext, file: IO[bytes]) -> None:  # noqa: ARG004 - all acts are called alike
        file.write(_LOG_LINE)
        file.flush()
        os.fsync(file.fileno())

    ACTS: ClassVar[dict[str, Callable[[StepContext, IO[bytes]], None]]] = {
        "checkpoint": _checkpoint,
        "gc": _gc,
        "logging": _logging,
    }
