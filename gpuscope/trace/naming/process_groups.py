"""What the description of a process group says of its use."""

from __future__ import annotations

import re

from gpuscope import when_used

_PIPELINE = when_used.pattern(r"^PIPELINE_MODEL_PARALLEL_GROUP$|(?:^|_)(?:pp|pipe|pipeline)(?:_|$)", re.IGNORECASE)
"""Megatron-Core's description, DeviceMesh's (`mesh_pp`), DeepSpeed's (`pipe_parallel_group`)."""


def is_pipeline_group(description: str) -> bool:
    """Whether a group with that description holds the stages of a pipeline."""
    return _PIPELINE.search(description) is not None
