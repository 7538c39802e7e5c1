"""A pipeline stage whose computations, sends and receives are ranges with stage and micro-batch.

PyTorch's stages add no annotations to a trace.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

from gpuscope.instrumented_runtime.record.ranges import Span, span
from gpuscope.instrumented_runtime.train.measures.exposed_time import EXPOSED

_TAG = "_gpuscope_transfer"


class RangedStage(PipelineStage):
    """Ranges `forward`, `backward`, `backward_weight`; its P2P operations record what they carry."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span("forward", micro_batch=fwd_chunk_id, stage=self.stage_index):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span("backward", micro_batch=bwd_chunk_id, stage=self.stage_index):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span("backward_weight", micro_batch=bwd_chunk_id, stage=self.stage_index):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._tag("recv_forward", fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._tag("recv_backward", bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._tag("send_forward", fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._tag("send_backward", bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

    def _tag(self, name: str, micro_batch: int, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        for operation in operations:
            setattr(operation, _TAG, (name, micro_batch, self.stage_index))
        return operations


def range_transfers() -> None:
    """Put the schedules' waits for sends and receives inside ranges, and measure them.

    The wait blocks the rank, and only the schedule's own helper knows when, so that helper is wrapped.
    A PyTorch without it loses only these ranges.
    """
    start = getattr(schedules, "_batch_p2p", None)
    if start is None or hasattr(start, _TAG):
        return

    def ranged(operations: list[dist.P2POp], desc: str | None = None) -> list[Any]:
        if not operations:
            return start(operations, desc)  # type: ignore[no-any-return]
        with EXPOSED.waiting(operations[0].tensor):  # gloo writes to the socket before it returns
            works = start(operations, desc)
        tagged = [operation for operation in operations if hasattr(operation, _TAG)]
        if len(tagged) != len(operations) or not works:
            return works  # type: ignore[no-any-return]
        if len(works) == len(operations):
            return [_RangedWork(work, [op]) for work, op in zip(works, operations, strict=True)]
        # Coalesced by NCCL: one wait for all; the receives are what it waits for.
        receives = [op for op in operations if op.op is dist.irecv] or operations
        return [_RangedWork(work, receives) for work in works]

    setattr(ranged, _TAG, True)
    schedules._batch_p2p = ranged  # type: ignore[assignment]


class _RangedWork:
    """A `Work` whose wait is a range."""

    def __init__(self, work: dist.Work, operations: list[dist.P2POp]) -> None:
        self.work, self.operations = work, operations

    def wait(self, *args: Any) -> Any:
        with self._range(), EXPOSED.waiting(self.operations[0].tensor):
            return self.work.wait(*args)

    def _range(self) -> Span:
        name, micro_batch, stage = getattr(self.operations[0], _TAG)
        nbytes = sum(op.tensor.numel() * op.tensor.element_size() for op in self.operations)
        return span(name, micro_batch=micro_batch, stage=stage, nbytes=nbytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)
