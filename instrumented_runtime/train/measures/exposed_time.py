"""Exposed communication of a step, where it is known without a trace (docs/definitions.md: in flight, and the training
thread computes nothing)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gpuscope.instrumented_runtime.record.gloo.collective_log import LOG
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import waits


def is_measurable(config: TrainConfig, device_type: str) -> bool:
    """Whether all communication of a step is seen without a trace.

    It is where DDP's reducer tells it, and on the CPU where the trainer itself waits (pipelines, all-to-alls, the norm
    of gradients over ranks). Sharded data, tensor parallelism and the ring wait inside PyTorch: a part of the whole
    would be another number than the trace's.
    """
    return waits(config) <= ({"in reducer", "in trainer"} if device_type == "cpu" else {"in reducer"})


class ExposedCommunication:
    """Waits of the training thread that the trainer itself makes (on the CPU), and what DDP's reducer reports as not
    hidden by backward: all there is where it `is_measurable`."""

    def __init__(self) -> None:
        self._waited_ns = 0
        self._known = False
        self._seen: dict[int, int] = {}

    @contextmanager
    def waiting(self, tensor: Tensor) -> Iterator[None]:
        """The training thread is blocked on communication of `tensor` inside, unless it is a GPU's."""
        if tensor.device.type != "cpu":
            yield
            return
        start = time.time_ns()
        try:
            yield
        finally:
            self._known = True
            self._waited_ns += max(0, _ended(start) - start)

    def take(self, parts: list[Any]) -> int | None:
        """Nanoseconds since the last call; None if unknown."""
        ddp = [self._of_reducer(part) for part in parts if isinstance(part, DistributedDataParallel)]
        reduced = [ns for ns in ddp if ns is not None]
        if not self._known and not reduced:
            return None
        waited, self._waited_ns = self._waited_ns, 0
        return waited + sum(reduced)

    def _of_reducer(self, ddp: DistributedDataParallel) -> int | None:
        """That of the last backward, if DDP timed it: it times the first ones, then one in a hundred (on a CPU all)."""
        # DDP sums up its timers as the next forward begins, which would count for the next step. On a GPU that has to
        # do: asking now would wait for the device.
        if getattr(ddp, "device_type", "") == "cpu":
            ddp.logger.set_runtime_stats_and_log()  # type: ignore[union-attr]
        data = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        start, total = data.get("backward_comm_time_start"), data.get("backward_comm_time")
        if not start or not total or start == self._seen.get(id(ddp)):
            return None
        self._seen[id(ddp)] = start
        return max(0, int(total) - int(data["backward_compute_comm_overlap_time"]))


def _ended(start: int) -> int:
    """When the collective that was issued last ended, if that was after `start`, else now (ns since the epoch).

    A thread without a core goes on later than the collective ends, and that is no communication.
    """
    last = LOG.last()
    if last is None or last.issued_ns < start or last.is_p2p or last.completed_ns is None:
        return time.time_ns()
    return last.completed_ns


EXPOSED = ExposedCommunication()
"""A process-wide instance: training is on one thread, and the waits are deep inside a schedule or an autograd node."""
