"""The training thread stops to save a checkpoint, collect garbage or write a log."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal

from torch.utils.data import Dataset

from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault, require

if TYPE_CHECKING:
    from torch import Tensor

    from gpuscope.instrumented_runtime.train.mesh import Tokens
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


# Many tiny operators: the host launches more slowly than the device executes.


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


# A data loader that takes too long: each item sleeps in the dataset, as reading or decoding would.


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


# `.item()` in the middle of the forward: the host waits for the device, and its queue runs dry.


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
        from gpuscope.instrumented_runtime.train.faults.burn import blocks, is_shape_only

        def read(_module: Any, _inputs: Any, output: Any) -> None:
            local = getattr(output, "_local_tensor", output)
            if self.due(context.step) and not is_shape_only(local):
                for _ in range(self.times):
                    local.detach().flatten()[0].item()
                context.ledger.add(self.name, context.step, count=self.times)

        for block in blocks(context):
            block.register_forward_hook(read)


# Memory allocated from and returned to the system in every step instead of being cached.


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


# Copies between device and pageable host memory: each goes through a staging buffer and blocks.


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
