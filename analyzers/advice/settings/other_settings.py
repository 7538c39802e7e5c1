"""Frameworks of a few settings each: torchtitan, Transformers, Accelerate, Horovod, JAX, torchao, OpenMP."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.analyzers.advice.settings.known import File, Known

PIPELINE_SCHEDULE = File("torchtitan", "torchtitan/config/job_config.py", "config")(
    "parallelism.pipeline_parallel_schedule", "1F1B", restores=True
)

_TRAINER = File("transformers", "src/transformers/training_args.py", "python")
TRAINER_HALF = {half: _TRAINER(f"TrainingArguments.{half}", "False") for half in ("bf16", "fp16")}
"""By precision."""
TRAINER_BUCKET_CAP_MB = _TRAINER("TrainingArguments.ddp_bucket_cap_mb", "None", same=("25",))
TRAINER_WORKERS = _TRAINER("TrainingArguments.dataloader_num_workers", "0")
TRAINER_COMPILE = _TRAINER("TrainingArguments.torch_compile", "False")
# Where the optimizer is seen not to be fused.
TRAINER_OPTIM = _TRAINER("TrainingArguments.optim", "adamw_torch_fused", (4, 26), restores=True, default_since=(5,))
# Off again, where it recomputes for nothing.
TRAINER_CHECKPOINTING = _TRAINER("TrainingArguments.gradient_checkpointing", "False", restores=True)
TRAINER_BATCH_SIZE = _TRAINER("TrainingArguments.per_device_train_batch_size", "8")
ATTENTION = File("transformers", "src/transformers/modeling_utils.py", "python")(
    "AutoModel.from_pretrained.attn_implementation", None, (4, 36)
)

ACCUMULATION = File("accelerate", "src/accelerate/accelerator.py", "python")(
    "Accelerator.gradient_accumulation_steps", "1"
)
ACCELERATE_BUCKET_VIEW = File("accelerate", "src/accelerate/utils/dataclasses.py", "python")(
    "DistributedDataParallelKwargs.gradient_as_bucket_view", "False"
)

_STRATEGY = File("lightning", "src/lightning/pytorch/strategies/ddp.py", "python")
OF_LIGHTNING: dict[str, Known] = {
    torch_settings.BUCKET_CAP_MB.name: _STRATEGY("DDPStrategy.bucket_cap_mb", "None", same=("25",)),
    torch_settings.BROADCAST_BUFFERS.name: _STRATEGY("DDPStrategy.broadcast_buffers", "None", same=("True",)),
    torch_settings.GRADIENT_AS_BUCKET_VIEW.name: _STRATEGY("DDPStrategy.gradient_as_bucket_view", "False"),
    torch_settings.FIND_UNUSED_PARAMETERS.name: _STRATEGY("DDPStrategy.find_unused_parameters", "False", restores=True),
    torch_settings.COMM_HOOK.name: _STRATEGY("DDPStrategy.ddp_comm_hook", "None"),
    torch_settings.NO_SYNC.name: File("lightning", "src/lightning/pytorch/trainer/trainer.py", "python")(
        "Trainer.accumulate_grad_batches", "1"
    ),
}
"""What Lightning's user sets in place of an argument of DistributedDataParallel, which only Lightning itself calls."""

FUSION_THRESHOLD = File("horovod", "docs/tensor-fusion.rst", "env")("HOROVOD_FUSION_THRESHOLD", str(128 << 20))
COMPRESSION = File("horovod", "horovod/torch/optimizer.py", "python")(
    "DistributedOptimizer.compression", "Compression.none"
)

JAX_ALLOCATOR = File("jax", "docs/gpu_memory_allocation.rst", "env")("XLA_PYTHON_CLIENT_ALLOCATOR")
JAX_CACHE_DIR = File("jax", "jax/_src/config.py", "env")("JAX_COMPILATION_CACHE_DIR")
_JAX = File("jax", "docs/jax.rst", "python")
DEVICE_PUT, JAX_INITIALIZE = _JAX("jax.device_put"), _JAX("jax.distributed.initialize")
ORBAX = File("orbax-checkpoint", "docs/api_reference/checkpoint.async_checkpointer.rst", "python")(
    "orbax.checkpoint.AsyncCheckpointer"
)

FLOAT8 = File("torchao", "torchao/float8/__init__.py", "python")("torchao.float8.convert_to_float8_training")
OMP_THREADS = File("openmp", "OpenMP API specification, environment variables", "env")("OMP_NUM_THREADS")
