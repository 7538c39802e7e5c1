"""Megatron-LM (megatron/training/arguments.py, megatron-core 0.15).

A version is the first published megatron-core whose configuration has the field that the argument sets; 0.4 was not
looked at. An argument that sets no field of megatron-core has none.
"""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import File

_ARGUMENTS = File("megatron-core", "megatron/training/arguments.py", "config")
MICRO_BATCH_SIZE = _ARGUMENTS("--micro-batch-size")
TENSOR_PARALLEL = _ARGUMENTS("--tensor-model-parallel-size", "1")
NUM_WORKERS = _ARGUMENTS("--num-workers", "2")
# Switches: off unless given.
DISTRIBUTED_OPTIMIZER = _ARGUMENTS("--use-distributed-optimizer")
OVERLAP_GRAD_REDUCE = _ARGUMENTS("--overlap-grad-reduce")
OVERLAP_PARAM_GATHER = _ARGUMENTS("--overlap-param-gather")
GRAD_REDUCE_IN_BF16 = _ARGUMENTS("--grad-reduce-in-bf16")
HALF = {half: _ARGUMENTS(f"--{half}") for half in ("bf16", "fp16")}
"""By precision."""
RECOMPUTE_GRANULARITY = _ARGUMENTS("--recompute-granularity")
LAYERS_PER_VIRTUAL_STAGE = _ARGUMENTS("--num-layers-per-virtual-pipeline-stage")
VIRTUAL_STAGES = _ARGUMENTS("--num-virtual-stages-per-pipeline-rank")  # sets no field: since when is unverified
TP_COMM_OVERLAP = _ARGUMENTS("--tp-comm-overlap")
MANUAL_GC = _ARGUMENTS("--manual-gc --manual-gc-interval", "0")
BUCKET_SIZE = _ARGUMENTS("--ddp-bucket-size")

_TRANSFORMER = File("megatron-core", "megatron/core/transformer/transformer_config.py", "config")
FP8_FORMAT = _TRANSFORMER("--fp8-format")  # `fp8`, there in 0.3 already
AUX_LOSS = _TRANSFORMER("moe_aux_loss_coeff", "0.0", (0, 5))
CAPACITY_FACTOR = _TRANSFORMER("moe_expert_capacity_factor", None, (0, 7))
ATTENTION_BACKEND = _TRANSFORMER("--attention-backend", "auto", (0, 11))
PIPELINE_LAYOUT = _TRANSFORMER("--pipeline-model-parallel-layout", None, (0, 13))
CUDA_GRAPH_IMPL = _TRANSFORMER("--cuda-graph-impl", "none", (0, 15))

_DDP = File("megatron-core", "megatron/core/distributed/distributed_data_parallel_config.py", "config")
OPTIMIZER_INSTANCES = _DDP("--num-distributed-optimizer-instances", "1", (0, 10))

ASYNC_SAVE = File("megatron-core", "CHANGELOG.md", "config")("--async-save", None, (0, 7))
