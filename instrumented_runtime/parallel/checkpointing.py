"""Activation checkpointing: blocks recompute their inside in backward instead of keeping it."""

from __future__ import annotations

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from instrumented_runtime.model import GPT


def apply(model: GPT, every: int) -> None:
    """Wrap each `every`-th block of `model`, in place."""
    for index, (name, block) in enumerate(list(model.blocks.items())):
        if index % every == 0:
            model.blocks[name] = checkpoint_wrapper(block)
