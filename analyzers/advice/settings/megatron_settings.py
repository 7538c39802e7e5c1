"""Megatron-LM (megatron/training/arguments.py, megatron-core 0.15)."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import Known, table

_ARGUMENTS = "megatron/training/arguments.py"


def _since(name: str, default: str | None, *version: int) -> Known:
    return Known(name, default, _ARGUMENTS, "megatron-core", version)


SETTINGS = table(
    "megatron-core", _ARGUMENTS,
    ("--micro-batch-size", None), ("--tensor-model-parallel-size", "1"), ("--num-workers", "2"),
    ("--use-distributed-optimizer", None), ("--overlap-grad-reduce", None), ("--grad-reduce-in-bf16", None),
    ("--bf16", None), ("--fp16", None), ("--recompute-granularity", None),  # switches: off unless given
    ("--num-layers-per-virtual-pipeline-stage", None), ("--tp-comm-overlap", None),
    ("--manual-gc --manual-gc-interval", "0"), ("--ddp-bucket-size", None),
    ("moe_aux_loss_coeff", "0.0"), ("moe_expert_capacity_factor", None),
    _since("--fp8-format", None, 0, 4), _since("--async-save", None, 0, 7),
    _since("--attention-backend", "auto", 0, 9), _since("--num-distributed-optimizer-instances", "1", 0, 10),
    _since("--num-virtual-stages-per-pipeline-rank", None, 0, 11),
    _since("--pipeline-model-parallel-layout", None, 0, 13), _since("--cuda-graph-impl", "none", 0, 15),
)  # fmt: skip
