"""Which framework a job runs and how it is parallelised, from its annotations and process groups."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_MARKS = (
    # DeepSpeed wraps its engine's methods in NVTX ranges and record_function (deepspeed/utils/nvtx.py).
    ("deepspeed", re.compile(r"^DeepSpeed\w*\.|\bdeepspeed/")),
    # Also the names of Megatron-LM's timers, which tables of operations keep (megatron/training/training.py).
    (
        "megatron",
        re.compile(
            r"\bmegatron/|^megatron\.|^\w*MegatronModule|^(embedding|layernorm)-grads-all-reduce$|"
            r"^optimizer-clip-main-grad$"
        ),
    ),
    ("torchtitan", re.compile(r"\btorchtitan/")),
    ("lightning", re.compile(r"\b(pytorch_)?lightning/|^\[pl\]\[|^\[Strategy\]|^\[Callback\]|^\[LightningModule\]")),
    ("transformers", re.compile(r"\btransformers/trainer")),
    ("accelerate", re.compile(r"\baccelerate/")),
    ("horovod", re.compile(r"\bhorovod/|^Horovod\w+")),
    ("fsdp2", re.compile(r"^FSDP::")),
    ("fsdp", re.compile(r"^FullyShardedDataParallel\.")),
    ("ddp", re.compile(r"^DistributedDataParallel\.")),
)

# A process group's description -> the parallelism it serves. Megatron-Core's descriptions
# (parallel_state.py: TENSOR_MODEL_PARALLEL_GROUP…), DeviceMesh's (`mesh_dp_shard`), DeepSpeed's.
_DESCRIPTIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "DATA_PARALLEL_GROUP": "dp",
    "sequence_parallel": "sp",
    "expert_parallel": "ep",
    "model_parallel": "tp",
    "data_parallel": "dp",
}

WRAPPERS = frozenset({"deepspeed", "megatron", "horovod", "ddp", "fsdp", "fsdp2"})
"""Those that reduce gradients for the program."""


_OF_MEGATRON = {"pipeline-timers"}
"""Formats that only jobs of Megatron leave: Primus dumps its stages' times with that backend alone."""


def frameworks(names: Iterable[str], descriptions: Iterable[str] = (), formats: Collection[str] = ()) -> list[str]:
    """The frameworks that left a mark among the names of a trace's events or of its process groups, or its files."""
    missing = dict(_MARKS)
    megatron = _OF_MEGATRON.intersection(formats) or any(d.endswith("MODEL_PARALLEL_GROUP") for d in descriptions)
    found = {"megatron"} if megatron else set()
    for name in names:
        hits = [framework for framework, mark in missing.items() if mark.search(name)]
        found.update(hits)
        for framework in hits:
            del missing[framework]
    return [framework for framework, _ in _MARKS if framework in found]


def parallelism(groups: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Degree per kind of parallelism, from (description, size) of each process group.

    Only kinds of more than one rank; a mesh dimension counts under its own name (`mesh_tp` → tp).
    """
    degrees: dict[str, int] = {}
    for description, size in groups:
        kind = parallelism_of(description)
        if kind is not None and size > 1:
            degrees.setdefault(kind, size)
    return degrees


def parallelism_of(description: str) -> str | None:
    """The kind of parallelism that a process group of this description serves; None where it does not say."""
    if description.startswith("mesh_"):
        return description.removeprefix("mesh_")
    return _DESCRIPTIONS.get(description)
