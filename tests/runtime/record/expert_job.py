"""Experts whose time follows from their tokens: each rank's sleeps for so many µs a token, between real all-to-alls.

The first half of the steps is routed evenly, the second as LOADS says, or both as EXPERTS says for each expert of each
rank; what a step took is written to told.json.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
LOADS = json.loads(os.environ.get("LOADS", "[]"))
EXPERTS = json.loads(os.environ.get("EXPERTS", "[]"))
TOKENS, WIDTH, LAYERS, STEPS = 256, 64, 3, int(os.environ["STEPS"])
SLOW = float(os.environ.get("SLOW", "0")) if RANK == 0 else 0.0


@torch.library.custom_op("job::experts", mutates_args=())
def experts(tokens: torch.Tensor) -> torch.Tensor:
    time.sleep(0.002 + 200e-6 * len(tokens) + SLOW)
    return tokens * 2


def apart(tokens: torch.Tensor, loads: list[float]) -> torch.Tensor:
    """Each of this rank's experts multiplies its own tokens, of which `loads` of the mean come to each."""
    parts = [round(TOKENS * own) for own in loads]
    parts[-1] += len(tokens) - sum(parts)
    return torch.cat([experts(part @ SQUARE) for part in tokens.split(parts)])


def layer(tokens: torch.Tensor, loads: list[float], held: list[float]) -> torch.Tensor:
    sent = [round(TOKENS * own / WORLD) for own in loads]
    sent[-1] += TOKENS - sum(sent)
    received = [sent[RANK]] * WORLD
    there = torch.empty(sum(received), WIDTH)
    dist.all_to_all_single(there, tokens, received, sent)
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, apart(there, held) if held else experts(there), sent, received)
    return back


weight = torch.ones(WIDTH, requires_grad=True)
SQUARE = torch.eye(WIDTH)
optimizer = torch.optim.SGD([weight], lr=0.1)
took: list[int] = []
for step in range(STEPS):
    dist.barrier()
    began = time.perf_counter_ns()
    later = step >= STEPS // 2
    held = EXPERTS[later] if EXPERTS else []
    loads = [sum(own) for own in held] or (LOADS[step % len(LOADS)] if later else [1.0] * WORLD)
    tokens = torch.ones(TOKENS, WIDTH)
    for _ in range(LAYERS):
        tokens = layer(tokens, loads, held[RANK] if held else [])
    (tokens * weight).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    dist.barrier()
    took.append(time.perf_counter_ns() - began)
if RANK == 0:
    Path("told.json").write_text(json.dumps(took))
dist.destroy_process_group()
