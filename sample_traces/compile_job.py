"""A compiled DDP job with known faults; each rank writes what it injected, and what that took, to told_RANK.json.

Every step leaves the graph for a call that sleeps; one step has other sizes on all ranks, a later one on rank 1 alone.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, EVERYWHERE, ALONE = 24, 16, 20
SLEEP_S = float(sys.argv[1]) if len(sys.argv) > 1 else 0.02
dist.init_process_group("gloo")
RANK = dist.get_rank()


@torch.compiler.disable
def outside(x: torch.Tensor) -> torch.Tensor:
    began = time.perf_counter_ns()
    time.sleep(SLEEP_S)
    SLEPT.append(time.perf_counter_ns() - began)
    return x


SLEPT: list[int] = []


class Broken(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(128, 128), torch.nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = outside(y)
        return self.second(y)


class Sized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(128, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(tokens).sin()


broken, sized = Broken(), Sized()
broken.compile()
sized.compile(dynamic=False)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(broken, sized))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
calls: list[int] = []
for step in range(STEPS):
    rows = 48 if step == EVERYWHERE else 80 if step == ALONE and RANK == 1 else 32
    hidden = broken(torch.randn(32, 128))
    began = time.perf_counter_ns()
    loss = sized(torch.randn(rows, 128) + hidden.mean()).sum()
    calls.append(time.perf_counter_ns() - began)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
usual = sorted(calls)[STEPS // 2]
changed = [EVERYWHERE] if RANK == 0 else [EVERYWHERE, ALONE]
told = {"slept_ns": sorted(SLEPT)[STEPS // 2], "compiled_ns": {at: calls[at] - usual for at in changed}}
Path(f"told_{RANK}.json").write_text(json.dumps(told))
dist.destroy_process_group()
