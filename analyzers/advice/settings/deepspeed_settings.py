"""DeepSpeed (0.18; deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py)."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import Known, table

_ZERO = "deepspeed/runtime/zero/config.py"

SETTINGS = {
    **table(
        "deepspeed", _ZERO,
        ("zero_optimization.stage", "0"), ("zero_optimization.reduce_bucket_size", "500000000"),
        ("zero_optimization.overlap_comm", None),  # true with stage 3 alone
        ("zero_optimization.stage3_prefetch_bucket_size", "50000000"),
        ("zero_optimization.offload_optimizer.device", "none"),
        Known("zero_optimization.zero_hpz_partition_size", "1", _ZERO, "deepspeed", (0, 10)),
    ),
    **table(
        "deepspeed", "deepspeed/runtime/config.py",
        ("communication_data_type", None), ("gradient_accumulation_steps", None),
        ("train_micro_batch_size_per_gpu", None), ("bf16.enabled", "false"), ("fp16.enabled", "false"),
    ),
}  # fmt: skip
