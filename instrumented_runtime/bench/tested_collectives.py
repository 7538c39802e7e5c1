"""The collectives under test: how each is set up for a total size, called, and checked.

An operation gets the number of elements of the whole array, as in nccl-tests: the output of an all-gather,
the input of a reduce-scatter, what a rank sends in an all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Prepared:
    """One operation on its buffers. `call` runs it; `wrong` counts the elements that came out wrong."""

    call: Callable[[], object]
    reset: Callable[[bool], object]
    wrong: Callable[[], int]


Prepare = Callable[[int, torch.dtype, torch.device], Prepared]


def _prepared(
    call: Callable[[], object], sent: Tensor, value: int, received: Tensor, expected: float | Tensor
) -> Prepared:
    """A call that makes `expected` of `received` where `sent` is filled with `value`."""
    # Timed on zeros: sums of zeros stay finite over any number of iterations.
    return Prepared(
        call,
        reset=lambda checking: sent.fill_(value if checking else 0),
        wrong=lambda: int((received != expected).sum().item()),
    )


def _ranks() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def all_reduce(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, n = _ranks()
    data = torch.empty(count, dtype=dtype, device=device)
    return _prepared(lambda: dist.all_reduce(data), data, rank + 1, data, n * (n + 1) // 2)


def all_gather(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, n = _ranks()
    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    mine = torch.empty(count // n, dtype=dtype, device=device)
    whole = torch.empty(count, dtype=dtype, device=device)
    by_rank = torch.arange(1, n + 1, dtype=dtype, device=device).unsqueeze(1)
    return _prepared(lambda: function(whole, mine), mine, rank + 1, whole.view(n, -1), by_rank)


def reduce_scatter(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, n = _ranks()
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    whole = torch.empty(count, dtype=dtype, device=device)
    mine = torch.empty(count // n, dtype=dtype, device=device)
    return _prepared(lambda: function(mine, whole), whole, rank + 1, mine, n * (n + 1) // 2)


def all_to_all(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, n = _ranks()
    outgoing = torch.empty(count, dtype=dtype, device=device)
    incoming = torch.empty(count, dtype=dtype, device=device)
    by_rank = torch.arange(1, n + 1, dtype=dtype, device=device).unsqueeze(1)
    return _prepared(
        lambda: dist.all_to_all_single(incoming, outgoing), outgoing, rank + 1, incoming.view(n, -1), by_rank
    )


def broadcast(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, _ = _ranks()
    data = torch.empty(count, dtype=dtype, device=device)
    return _prepared(lambda: dist.broadcast(data, src=0), data, rank + 1, data, 1)


def send_recv(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    """A ring: every rank sends to the next and receives from the one before, as `sendrecv_perf` does."""
    rank, n = _ranks()
    outgoing = torch.empty(count, dtype=dtype, device=device)
    incoming = torch.empty(count, dtype=dtype, device=device)

    def call() -> None:
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, outgoing, (rank + 1) % n),
                dist.P2POp(dist.irecv, incoming, (rank - 1) % n),
            ]
        )
        for work in works:
            work.wait()

    return _prepared(call, outgoing, rank + 1, incoming, (rank - 1) % n + 1)


OPERATIONS: Mapping[str, Prepare] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "send_recv": send_recv,
}
