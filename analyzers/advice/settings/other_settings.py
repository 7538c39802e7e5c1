"""Frameworks of a few settings each: torchtitan, Transformers, Accelerate, Horovod, JAX."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import Known, table

SETTINGS = {
    **table(
        "torchtitan", "torchtitan/config/job_config.py",
        Known("parallelism.pipeline_parallel_schedule", "1F1B", "torchtitan/config/job_config.py", "torchtitan",
              restores=True),
    ),
    **table(
        "transformers", "src/transformers/training_args.py",
        ("TrainingArguments.bf16", "False"), ("TrainingArguments.fp16", "False"),
        ("TrainingArguments.ddp_bucket_cap_mb", "None"), ("TrainingArguments.dataloader_num_workers", "0"),
        ("TrainingArguments.torch_compile", "False"),
        Known("TrainingArguments.optim", None, "src/transformers/training_args.py", "transformers", (4, 26)),
        Known("TrainingArguments.gradient_checkpointing", "False", "src/transformers/training_args.py", "transformers",
              restores=True),  # off again, where it recomputes for nothing
        ("TrainingArguments.per_device_train_batch_size", "8"),
        Known("from_pretrained.attn_implementation", None, "src/transformers/modeling_utils.py", "transformers",
              (4, 36)),
        Known("AutoModel.from_pretrained.attn_implementation", None, "src/transformers/modeling_utils.py",
              "transformers", (4, 36)),
    ),
    **table(
        "accelerate", "src/accelerate/accelerator.py and utils/dataclasses.py",
        ("Accelerator.gradient_accumulation_steps", "1"),
        ("DistributedDataParallelKwargs.gradient_as_bucket_view", "False"),
    ),
    **table(
        "horovod", "docs/tensor-fusion.rst and horovod/torch/optimizer.py",
        ("HOROVOD_FUSION_THRESHOLD", str(128 << 20)), ("DistributedOptimizer.compression", "Compression.none"),
    ),
    **table(
        "jax", "docs/gpu_memory_allocation.rst and jax/_src/config.py",
        ("XLA_PYTHON_CLIENT_ALLOCATOR", None), ("JAX_COMPILATION_CACHE_DIR", None), ("jax.device_put", None),
        ("jax.distributed.initialize", None),
    ),
}  # fmt: skip
