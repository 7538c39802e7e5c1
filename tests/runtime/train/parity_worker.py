"""One of several processes that train the same cases; rank 0 writes how far each is from one process.

Run as `parity_worker.py RENDEZVOUS RESULT CASES`, with RANK and WORLD_SIZE set; CASES is JSON of
{name: [parallel, preset, [settings]]}.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpuscope.instrumented_runtime.train.faults import Fault, StepContext
from gpuscope.instrumented_runtime.train.mesh import World, leave_world
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import assemble, validate
from gpuscope.instrumented_runtime.train.trainer import Trainer

SMALL = ("model.layers=4", "model.width=32", "model.vocabulary=64", "data.sequence=16", "data.batch=4")
SMALL += ("optimizer.warmup=0", "optimizer.lr=0.01", "train.steps=2", "capture.profile=false")


@dataclass(frozen=True)
class Probe(Fault):
    """Keeps the first step's whole gradients by parameter name."""

    gradients: dict[str, Tensor] = field(default_factory=dict)
    parts: list[Any] = field(default_factory=list)

    def after_backward(self, context: StepContext) -> None:
        if context.step > 0:
            return
        for part in self.parts:
            for name, parameter in part.named_parameters():
                grad = parameter.grad
                whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
                assert whole is not None, f"no gradient of {name}"
                clean = re.sub(r"module\.|_checkpoint_wrapped_module\.|_orig_mod\.", "", name)
                self.gradients[clean] = whole.clone()


def train(config: TrainConfig, world: World) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Each step's mean loss over all ranks and gradient norm; the gradients of the first step, of all stages."""
    probe = Probe()
    trainer = Trainer(config, world, validate(config, world.size), (probe,))
    probe.parts.extend(trainer.parallel.parts)
    batches = trainer.batches()
    local, norms = [], []
    for step in range(config.train.steps):
        local.append(trainer.step(step, batches))
        assert trainer.gradient_norm is not None
        norms.append(trainer.gradient_norm.item())
    losses, gradients = [None if x is None else x.item() for x in local], probe.gradients
    if world.size == 1:
        return losses, norms, gradients  # type: ignore[return-value]
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, (losses, gradients))
    # Ranks that hold the same parameter must agree on its gradient, whoever we compare with.
    merged: dict[str, Tensor] = {}
    for _, theirs in everyone:
        for name, grad in theirs.items():
            assert torch.allclose(merged.setdefault(name, grad), grad, atol=1e-6), f"ranks differ in {name}"
    known = [theirs for theirs, _ in everyone if theirs[0] is not None]
    return [sum(step) / len(known) for step in zip(*known, strict=True)], norms, merged


def compare(parallel: str, preset: str, settings: list[str], world: World) -> dict[str, Any]:
    """Losses and gradient norms of both, and the largest difference of a gradient, by that gradient's size."""
    config = assemble(parallel=parallel, world_size=world.size, preset=preset, settings=[*SMALL, *settings])
    degrees = validate(config, world.size)
    losses, norms, gradients = train(config, world)
    alone = assemble(
        parallel="single",
        world_size=1,
        preset=preset,
        settings=[
            *SMALL,
            *(s for s in settings if s.startswith(("model.", "data.", "train.accumulate", "train.precision"))),
            f"data.batch={config.data.batch * degrees.data_ranks}",
        ],
    )
    expected, expected_norms, reference = train(alone, World(0, 1, 0, world.device, None))
    assert gradients.keys() == reference.keys(), gradients.keys() ^ reference.keys()
    errors = {
        name: ((gradients[name] - grad).abs().max() / grad.abs().max()).item() for name, grad in reference.items()
    }
    worst = max(errors, key=errors.__getitem__)
    losses, expected = losses + norms, expected + expected_norms
    return {"values": losses, "expected": expected, "error": errors[worst], "parameter": worst}


def main(rendezvous: str, result: str, cases: str) -> None:
    import os

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    world = World(rank, size, rank, torch.device("cpu"), "gloo")
    results: dict[str, Any] = {}
    for name, case in json.loads(cases).items():
        try:
            results[name] = compare(*case, world)
        except Exception:
            results[name] = {"failed": traceback.format_exc()}
            traceback.print_exc()
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, results[name].get("failed"))
        if any(everyone):
            results[name]["failed"] = next(text for text in everyone if text)
        if rank == 0:
            with open(result, "w", encoding="utf-8") as file:
                json.dump(results, file)
    leave_world()


if __name__ == "__main__":
    main(*sys.argv[1:])
