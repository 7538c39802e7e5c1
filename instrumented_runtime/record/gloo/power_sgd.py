"""PowerSGD on gloo: bucket after bucket.

Its collectives are issued, and waited for, by callbacks, which gloo runs in its own two threads: with several buckets
under way their order differs between ranks, and both threads may wait for each other. NCCL's order is that of a stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def power_sgd_hook(backend: str) -> Callable[[Any, Any], Any]:
    """DDP's communication hook for this backend."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

    @functools.wraps(powerSGD_hook)
    def one_by_one(state: Any, bucket: Any) -> Any:
        future = powerSGD_hook(state, bucket)
        future.wait()
        return future

    return one_by_one if backend == "gloo" else powerSGD_hook
