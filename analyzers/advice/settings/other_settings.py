"""Frameworks of a few settings each: torchtitan, Transformers, Accelerate, Horovod, JAX, torchao, OpenMP."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import File

PIPELINE_SCHEDULE = File("torchtitan", "torchtitan/config/job_config.py", "config")(
    "parallelism.pipeline_parallel_schedule", "1F1B", restores=True
)

_TRAINER = File("transformers", "src/transformers/training_args.py", "python")
TRAINER_HALF = {half: _TRAINER(f"TrainingArguments.{half}", "False") for half in ("bf16", "fp16")}
"""By precision."""
TRAINER_BUCKET_CAP_MB = _TRAINER("TrainingArguments.ddp_bucket_cap_mb", "None")
TRAINER_WORKERS = _TRAINER("TrainingArguments.dataloader_num_workers", "0")
TRAINER_COMPILE = _TRAINER("TrainingArguments.torch_compile", "False")
TRAINER_OPTIM = _TRAINER("TrainingArguments.optim", None, (4, 26))
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
