"""Which framework a job runs and how it is parallelised, from its annotations and process groups."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from gpuscope import when_used

_MARKS = (
    # Servers name the ranges around their steps (serving_names.py), their operators, and the files of stacks.
    (
        "sglang",
        ("step[", "sglang", "sgl_kernel", "scheduler."),
        when_used.pattern(r"^step\[[A-Z_]+ bs=|\bsglang(/|::)|\bsgl_kernel\b|^scheduler\.run_batch$", re.MULTILINE),
    ),
    (
        "tensorrt_llm",
        ("[Executor]", "tensorrt_llm"),
        when_used.pattern(r"^\[Executor\] _forward_step|\btensorrt_llm(/|::)", re.MULTILINE),
    ),
    (
        "vllm",
        ("execute_", "vllm", "gpu_model_runner"),
        when_used.pattern(
            r"^execute_(\d+_)?context_\d+\(|^execute_new_\d+_cached_|\bvllm(/|::)|^gpu_model_runner: ", re.MULTILINE
        ),
    ),
    # DeepSpeed wraps its engine's methods in NVTX ranges and record_function (deepspeed/utils/nvtx.py).
    ("deepspeed", ("DeepSpeed", "deepspeed"), when_used.pattern(r"^DeepSpeed\w*\.|\bdeepspeed/", re.MULTILINE)),
    (
        "megatron",
        ("megatron", "Megatron"),
        when_used.pattern(r"\bmegatron/|^megatron\.|^\w*MegatronModule", re.MULTILINE),
    ),
    ("torchtitan", ("torchtitan",), when_used.pattern(r"\btorchtitan/")),
    (
        "lightning",
        ("lightning", "[pl]", "[Strategy]", "[Callback]", "[LightningModule]"),
        when_used.pattern(
            r"\b(pytorch_)?lightning/|^\[pl\]\[|^\[Strategy\]|^\[Callback\]|^\[LightningModule\]", re.MULTILINE
        ),
    ),
    ("transformers", ("transformers",), when_used.pattern(r"\btransformers/trainer")),
    ("accelerate", ("accelerate",), when_used.pattern(r"\baccelerate/")),
    ("horovod", ("horovod", "Horovod"), when_used.pattern(r"\bhorovod/|^Horovod\w+", re.MULTILINE)),
    ("fsdp2", ("FSDP::",), when_used.pattern(r"^FSDP::", re.MULTILINE)),
    ("fsdp", ("FullyShardedDataParallel.",), when_used.pattern(r"^FullyShardedDataParallel\.", re.MULTILINE)),
    ("ddp", ("DistributedDataParallel.",), when_used.pattern(r"^DistributedDataParallel\.", re.MULTILINE)),
)
"""By framework: texts one of which stands in every name that the pattern knows, which are looked for in a hundredth of
its time; the pattern."""

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

SERVERS = frozenset({"sglang", "vllm", "tensorrt_llm"})
"""Those that answer requests with a model."""
WRAPPERS = frozenset({"deepspeed", "megatron", "horovod", "ddp", "fsdp", "fsdp2"})
"""Those that reduce gradients for the program."""


_OF_MEGATRON = {"pipeline-timers"}
"""Formats that only jobs of Megatron leave: Primus dumps its stages' times with that backend alone."""
_TIMERS = when_used.pattern(r"^(embedding|layernorm)-grads-all-reduce$|^optimizer-clip-main-grad$", re.MULTILINE)
"""Megatron-LM's timers (megatron/training/training.py), which tables of operations keep. Of other traces gpuscope
itself gives these names to what it finds in them."""


def frameworks(
    names: Iterable[str],
    descriptions: Iterable[str] = (),
    formats: Collection[str] = (),
    among: Collection[str] | None = None,
) -> list[str]:
    """The frameworks, of all or `among` these, that left a mark among the names of a trace's events or of its process
    groups, or its files."""
    lines = "\n".join(names)  # searched as one text: a trace may have 100,000 names
    megatron = (
        _OF_MEGATRON.intersection(formats)
        or any(description.endswith("MODEL_PARALLEL_GROUP") for description in descriptions)
        or ("operations" in formats and _TIMERS.search(lines))
    )
    marks = _MARKS if among is None else [one for one in _MARKS if one[0] in among]
    return [
        mark
        for mark, parts, pattern in marks
        if (any(part in lines for part in parts) and pattern.search(lines)) or (mark == "megatron" and megatron)
    ]


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
