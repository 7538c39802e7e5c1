"""What the scripts share: their options, their clock, a model."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from itertools import repeat

import torch
import torch.distributed as dist
from torch import nn

WARMUP = 12
"""Steps that are not timed: workers' first batches are ready before they are asked for."""


def options(steps: int = 200) -> argparse.Namespace:
    """`--fixed` is there to measure what can be gained; whoever tunes a script does not know of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--fixed", action="store_true")
    found = parser.parse_args()
    torch.manual_seed(0)
    return found


def join() -> int:
    """The process group that torchrun describes."""
    dist.init_process_group("gloo")
    return dist.get_rank()


def layers(count: int, width: int) -> nn.Sequential:
    """So many linear layers."""
    return nn.Sequential(*(part for _ in range(count) for part in (nn.Linear(width, width), nn.Tanh())))


class Clock:
    """Times steps; rank 0 prints the last loss and the mean step, which holds what comes round every few steps."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def step(self) -> None:
        """A step has ended."""
        self.ends.append(time.perf_counter())

    def report(self, loss: torch.Tensor) -> None:
        """The last line of a script."""
        timed = self.ends[WARMUP:]
        taken = (timed[-1] - timed[0]) / (len(timed) - 1)
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"loss {loss.item():.6f}, {taken * 1e3:.2f} ms per step", flush=True)
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: torch.Tensor | Iterable[torch.Tensor], steps: int
) -> None:
    """Steps on batches, or all on the same one; timed and reported."""
    clock = Clock()
    each = repeat(batches) if isinstance(batches, torch.Tensor) else batches
    for _, data in zip(range(steps), each, strict=False):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.step()
    clock.report(loss)
