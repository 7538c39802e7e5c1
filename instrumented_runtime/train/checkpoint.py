"""Distributed checkpoints: each rank writes its own shards, and any mesh can load them.

A job that resumes
with other parallelisms, or with fewer ranks, loads the same parameters and optimizer state and continues
with the next sample.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.parallel import data_parallel
from gpuscope.instrumented_runtime.train.parallel.compose import Parallelized
from gpuscope.instrumented_runtime.train.run_options import whole

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(slots=True)
class Progress:
    """Progress of the job: steps done, samples read by all ranks, and goodput's clock."""

    step: int = 0
    samples: int = 0
    started_ns: int = 0
    useful_ns: int = 0


class Checkpoints:
    """Saves to and loads from `folder` the state of a parallelized model."""

    def __init__(self, folder: Path, parallel: Parallelized, *, keep: int) -> None:
        self.folder, self.parallel, self.keep = folder, parallel, keep

    def save(self, progress: Progress) -> None:
        """Write a checkpoint; every rank calls it. The oldest beyond `keep` are removed."""
        with span("checkpoint", step=progress.step):
            state = self._state() | {"progress": _as_tensor(progress)}
            save(state, checkpoint_id=self.folder / f"step-{progress.step:08d}")
            if not dist.is_initialized() or dist.get_rank() == 0:
                for path in whole(self.folder)[: -self.keep]:
                    shutil.rmtree(path)

    def load(self, checkpoint: Path) -> Progress:
        """Load one in place; every rank calls it. Raises `InputError` if it is of another model."""
        progress = Progress()
        state = self._state() | {"progress": _as_tensor(progress)}
        try:
            load(state, checkpoint_id=checkpoint)
        except (RuntimeError, ValueError, CheckpointException) as error:
            last_line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise InputError(
                f"{checkpoint} can't be loaded: {last_line}", hint="is it of a model of the same size?"
            ) from error
        for part, optimizer in zip(self.parallel.parts, self.parallel.optimizers, strict=True):
            model_keys = get_model_state_dict(part).keys()
            set_model_state_dict(part, {key: state["model"][key] for key in model_keys})
            _set_optimizer(part, optimizer, state["optimizer"])
        return Progress(*state["progress"].tolist())

    def _state(self) -> dict[str, Any]:
        """This rank's tensors by name; the names are those of the whole model, whatever the mesh."""
        model: dict[str, Any] = {}
        optim: dict[str, Any] = {}
        for part, optimizer in zip(self.parallel.parts, self.parallel.optimizers, strict=True):
            model |= get_model_state_dict(part)
            optim |= _get_optimizer(part, optimizer)
        return {"model": model, "optimizer": optim}


def _as_tensor(progress: Progress) -> torch.Tensor:
    return torch.tensor([progress.step, progress.samples, progress.started_ns, progress.useful_ns], dtype=torch.int64)


def _get_optimizer(part: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        return data_parallel.get_state(part, optimizer)
    return dict(get_optimizer_state_dict(part, optimizer, options=_FLAT))


def _set_optimizer(part: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        data_parallel.set_state(part, optimizer, state)
        return
    mine = get_optimizer_state_dict(part, optimizer, options=_FLAT).keys()
    set_optimizer_state_dict(part, optimizer, {key: state[key] for key in mine}, options=_FLAT)
