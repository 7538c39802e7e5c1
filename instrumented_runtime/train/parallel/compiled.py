"""torch.compile and CUDA graphs, block by block, so that each block is one unit for FSDP and DDP too."""

from __future__ import annotations

import torch

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.model.gpt import GPT
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


def apply_compile(model: GPT) -> None:
    """Compile each block in place; all blocks are identical, so they share the first one's code."""
    for block in model.blocks.values():
        block.compile()


def apply_cuda_graphs(model: GPT, config: TrainConfig) -> None:
    """Capture each block's forward and backward as CUDA graphs, in place.

    Per block, so that DDP can reduce a block's gradients while the next one's graph runs.
    Raises `UsageError` without a GPU.
    """
    device = next(model.parameters()).device
    if device.type != "cuda":
        raise UsageError("train.cuda_graph: needs a GPU", hint="leave it out on the CPU")
    blocks = tuple(model.blocks.values())
    shape = (config.data.batch, config.data.sequence, config.model.width)
    samples = tuple((torch.zeros(shape, device=device, requires_grad=True),) for _ in blocks)
    # Autocast's cache of cast weights would be captured and go stale.
    half = config.train.precision == "bf16"
    with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
        torch.cuda.make_graphed_callables(blocks, samples)
