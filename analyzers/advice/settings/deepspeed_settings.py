"""DeepSpeed (0.18)."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import File

_ZERO = File("deepspeed", "deepspeed/runtime/zero/config.py", "config")
STAGE = _ZERO("zero_optimization.stage", "0")
REDUCE_BUCKET_SIZE = _ZERO("zero_optimization.reduce_bucket_size", "500000000")
OVERLAP_COMM = _ZERO("zero_optimization.overlap_comm", "true")  # of stage 3; false below it
PREFETCH_BUCKET_SIZE = _ZERO("zero_optimization.stage3_prefetch_bucket_size", "50000000")
PERSISTENCE_THRESHOLD = _ZERO("zero_optimization.stage3_param_persistence_threshold", "100000")
OFFLOAD_OPTIMIZER = _ZERO("zero_optimization.offload_optimizer.device", "none")
HPZ_PARTITION_SIZE = _ZERO("zero_optimization.zero_hpz_partition_size", "1", (0, 10))

_CONFIG = File("deepspeed", "deepspeed/runtime/config.py", "config")
COMMUNICATION_DATA_TYPE = _CONFIG("communication_data_type")
GRADIENT_ACCUMULATION_STEPS = _CONFIG("gradient_accumulation_steps")
MICRO_BATCH_SIZE = _CONFIG("train_micro_batch_size_per_gpu")
HALF = {half: _CONFIG(f"{half}.enabled", "false") for half in ("bf16", "fp16")}
"""By precision."""
