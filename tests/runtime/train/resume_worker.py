"""One of two processes that train, save, and go on under another parallelism; rank 0 writes the losses.

Run as `resume_worker.py FOLDER PAIRS` with RANK and WORLD_SIZE set; PAIRS is JSON of [saving, loading].
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpuscope.instrumented_runtime.train.mesh import World, leave_world
from gpuscope.instrumented_runtime.train.run_options import newest
from gpuscope.instrumented_runtime.train.settings.parallel_spec import assemble, validate
from gpuscope.instrumented_runtime.train.trainer import Trainer

SMALL = ("model.layers=2", "model.width=32", "model.vocabulary=64", "data.sequence=16", "capture.profile=false")
SMALL += ("optimizer.warmup=0", "optimizer.lr=0.01", "model.experts=2", "pipeline.micro_batches=2")
BATCH, SAVED_AFTER, STEPS = 8, 2, 4


def trainer_for(parallel: str, world: World, steps: int) -> Trainer:
    """A trainer whose steps read BATCH sequences, whatever the number of data-parallel ranks."""
    config = assemble(
        parallel=parallel, world_size=world.size, settings=[*SMALL, f"train.steps={steps}", f"checkpoint.every={steps}"]
    )
    degrees = validate(config, world.size)
    return Trainer(config.replace("data", batch=BATCH // degrees.data_ranks), world, degrees)


def losses_of(trainer: Trainer) -> list[float]:
    """Train to the end; the mean loss of each step over the ranks that know it."""
    mine: list[float | None] = []
    trainer.run(lambda record: mine.append(record.loss))
    everyone: list[Any] = [mine]
    if trainer.world.size > 1:
        everyone = [None] * trainer.world.size
        dist.all_gather_object(everyone, mine)
    known = [losses for losses in everyone if None not in losses]
    return [sum(step) / len(known) for step in zip(*known, strict=True)]


def main(folder: str, pairs: str) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=size, timeout=timedelta(seconds=120))
    world = World(rank, size, rank, torch.device("cpu"), "gloo")
    results: dict[str, list[float]] = {}
    for saving, loading in json.loads(pairs):
        saved = Path(folder, saving)
        if newest(saved) is None:
            dist.barrier()  # all have looked before anyone writes
            first = trainer_for(saving, world, SAVED_AFTER)
            first.checkpoint_into(saved)
            first.run()
        second = trainer_for(loading, world, STEPS)
        checkpoint = newest(saved)
        assert checkpoint is not None
        second.resume(checkpoint)
        results[f"{saving} → {loading}"] = losses_of(second)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(results), encoding="utf-8")
    leave_world()


if __name__ == "__main__":
    main(*sys.argv[1:])
