"""DeepSpeed's `ds_config.json` (0.19: `runtime/config.py`, `runtime/zero/config.py`)."""

from __future__ import annotations

from gpuscope.analyzers.planning.layout import CPU, NO, NVME, ULYSSES, Layout
from gpuscope.analyzers.planning.settings.values import Setup, Values

BATCH, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
ZERO = "zero_optimization"
CONTEXT, TENSOR, PIPELINE = "sequence_parallel_size", "tensor_parallel.autotp_size", "pipeline.stages"
SECONDARY, LOSSY = "zero_hpz_partition_size", ("zero_quantized_weights", "zero_quantized_gradients")
OVERLAP, OPTIMIZER = "overlap_comm", "offload_optimizer"
SENT, _SUMMED = "communication_data_type", "data_types.grad_accum_dtype"
MARKS = (ZERO, BATCH, MICRO, "bf16", "fp16")
"""Keys that tell such a file."""
_BUCKETS = ("reduce_bucket_size", "contiguous_gradients", "reduce_scatter", OVERLAP)
_LIGHT = ("allgather_bucket_size", "allgather_partitions", "round_robin_gradients", "use_multi_rank_bucket_allreduce")
"""Of ZeRO-1 and 2 alone."""
_WHOLE = (
    "offload_param.device",
    SECONDARY,
    *LOSSY,
    "zero_quantized_nontrainable_weights",
    "sub_group_size",
    *(
        f"stage3_{key}"
        for key in (
            "prefetch_bucket_size",
            "param_persistence_threshold",
            "model_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
            "gather_16bit_weights_on_model_save",
            "module_granularity_threshold",
            "use_all_reduce_for_fetch_params",
            "allgather_sequential",
        )
    ),
)
"""Of ZeRO-3 alone."""
_OTHERS = (
    "stage",
    "offload_optimizer.device",
    "load_from_fp32_weights",
    "elastic_checkpoint",
    "ignore_unused_parameters",
    "legacy_stage1",
    "parameter_alignment",
    "compute_grad_norm",
    "memory_efficient_linear",
    "override_module_apply",
    "pipeline_loading_checkpoint",
    "log_trace_cache_warnings",
    "enable_sanity_checks",
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_use_pin_memory",
    "stage3_gather_fp16_weights_on_model_save",
    "save_muon_momentum_buffer_in_memory",
    "mics_shard_size",
    "mics_hierarchical_params_gather",
    *(
        f"offload_{what}.{key}"
        for what in ("param", "optimizer")
        for key in (
            "pin_memory",
            "nvme_path",
            "buffer_count",
            "buffer_size",
            "max_in_cpu",
            "pipeline_read",
            "pipeline_write",
            "fast_init",
            "ratio",
            "pipeline",
        )
    ),
)
SETTINGS = frozenset(
    (
        BATCH,
        MICRO,
        ACCUMULATION,
        CONTEXT,
        ZERO,
        "gradient_clipping",
        "prescale_gradients",
        "gradient_predivide_factor",
        "steps_per_print",
        "wall_clock_breakdown",
        "memory_breakdown",
        SENT,
        "dump_state",
        "seq_parallel_communication_data_type",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "disable_allgather",
        "disable_python_gc",
        "managed_gradient_accumulation",
        "gradient_allreduce_op",
        "sparse_gradients",
        "dataloader_drop_last",
        "log_level",
        "vocabulary_size",
        "use_data_before_expert_parallelism",
        *(f"{ZERO}.{key}" for key in (*_BUCKETS, *_LIGHT, *_WHOLE, *_OTHERS)),
        *(
            f"activation_checkpointing.{key}"
            for key in (
                "partition_activations",
                "number_checkpoints",
                "contiguous_memory_optimization",
                "cpu_checkpointing",
                "profile",
                "synchronize_checkpoint_boundary",
            )
        ),
    )
)
_PARTS = frozenset(
    (
        "optimizer",
        "scheduler",
        "fp16",
        "bf16",
        "amp",
        "aio",
        "flops_profiler",
        "tensorboard",
        "wandb",
        "csv_monitor",
        "comet",
        "comms_logger",
        "autotuning",
        "data_efficiency",
        "data_types",
        "checkpoint",
        "compression_training",
        "pipeline",
        "tensor_parallel",
        "expert_parallel",
        "torch_autocast",
        "compile",
        "timers",
        "hybrid_engine",
        "weight_quantization",
        "datastates",
    )
)


def read(values: Values, gpus: int) -> Setup:
    """What a file of DeepSpeed asks for on so many GPUs."""
    whole = values.flag(ZERO) if ZERO in values else False  # `"zero_optimization": true`, as it was once written
    stage = values.count(f"{ZERO}.stage", int(whole), 0, 3)
    sizes = {
        TENSOR: max(values.count(TENSOR, 1, 0), 1),
        PIPELINE: values.count(PIPELINE),
        CONTEXT: values.count(CONTEXT),
    }
    data = values.left(gpus, sizes)
    batch, micro = _batch(values, data) if data else (None, 1)
    _zero(values, stage, sizes)
    _activations(values, sizes[TENSOR])
    for key in ("mics_shard_size", "mics_hierarchical_params_gather"):
        if f"{ZERO}.{key}" in values:
            values.say("contradiction", f"{ZERO}.{key}", "DeepSpeed refuses it since 0.19: MiCS was removed")
    bf16, fp16 = values.flag("bf16.enabled"), values.flag("fp16.enabled")
    if bf16 and fp16:
        values.say("contradiction", "fp16.enabled", "bf16.enabled is on too: DeepSpeed refuses both")
    if not bf16 and not fp16 and "bf16.enabled" not in values.automatic and "fp16.enabled" not in values.automatic:
        values.say("slow", "bf16.enabled", "is off: all is computed in fp32; estimated in bf16")
    values.unknown(SETTINGS, _PARTS)
    layout = _layout(values, stage, data, micro, sizes) if data else None
    return Setup("deepspeed", layout, batch, "bf16", None, False, values.remarks)


def _layout(values: Values, stage: int, data: int, micro: int, sizes: dict[str, int]) -> Layout:
    place = values.word(f"{ZERO}.{OPTIMIZER}.device", NO, (NO, CPU, NVME))
    shard = values.count(f"{ZERO}.mics_shard_size", 0, -1) if stage == 3 else 0
    replicas = data * sizes[CONTEXT]
    second = values.count(f"{ZERO}.{SECONDARY}", 1) if stage == 3 else 1
    lossy = second > 1 and all(values.flag(f"{ZERO}.{key}") for key in LOSSY)
    if "offload_param.device" in values:
        values.say("assumed", f"{ZERO}.offload_param", "weights are estimated on the GPU")
    return Layout(
        data,
        sizes[TENSOR],
        sizes[PIPELINE],
        sizes[CONTEXT],
        zero=stage if replicas > 1 else 0,
        micro_batch=micro,
        exchange=ULYSSES,
        shard=shard if 0 < shard < replicas and replicas % shard == 0 else 0,
        secondary=second if lossy else 0,
        offload=place if stage else NO,
        gradients=4 if values.word(_SUMMED) == "fp32" else 2,  # `get_data_types`: else those of the weights
    )


def _batch(values: Values, data: int) -> tuple[int | None, int]:
    """Sequences of a step and of a micro-batch; of three settings two give the third
    (`_set_batch_related_parameters`)."""
    batch, micro, steps = (values.given(key) for key in (BATCH, MICRO, ACCUMULATION))
    for key in (BATCH, MICRO, ACCUMULATION):
        if key in values.automatic:
            values.say("assumed", key, "is left to Transformers' Trainer")
    if batch is None and micro is None:
        if not {BATCH, MICRO} & {*values.automatic}:
            values.say("contradiction", BATCH, f"neither it nor {MICRO} is given: DeepSpeed refuses that")
        return None, 1
    if micro is None:
        micro = max((batch or 1) // (data * (steps or 1)), 1)
    if steps is None:
        steps = max(batch // (micro * data), 1) if batch else 1
    made = micro * steps * data
    if batch is not None and batch != made:
        values.say(
            "contradiction",
            BATCH,
            f"{batch} is not micro-batch {micro} x accumulation {steps} x {data} data-parallel ranks = {made}; "
            f"estimated with {made}",
        )
    return made, micro


def _zero(values: Values, stage: int, sizes: dict[str, int]) -> None:
    def named(keys: tuple[str, ...]) -> list[str]:
        return [f"{ZERO}.{key}" for key in keys]

    if sizes[PIPELINE] > 1 and stage > 1:
        values.say("contradiction", f"{ZERO}.stage", "DeepSpeed's pipelines refuse ZeRO-2 and ZeRO-3")
    if stage == 0:
        values.idle(named((*_BUCKETS, *_LIGHT, *_WHOLE, "offload_optimizer.device")), "without ZeRO")
    elif stage < 3:
        values.idle(named(_WHOLE), f"with ZeRO-{stage}: it is one of ZeRO-3")
    else:
        values.idle(named(_LIGHT), "with ZeRO-3")
    if stage and not values.flag(f"{ZERO}.{OVERLAP}", stage == 3):
        # `overlap_comm_valid`: where absent, it is on with ZeRO-3 alone.
        values.say(
            "slow",
            f"{ZERO}.{OVERLAP}",
            "is off: gradients are sent between, not beside, backward passes; estimated as if it were on",
        )
    if stage and not values.flag(f"{ZERO}.contiguous_gradients", True):
        values.say("slow", f"{ZERO}.contiguous_gradients", "is off: gradients fragment the memory")


def _activations(values: Values, tensor: int) -> None:
    part = "activation_checkpointing"
    if tensor == 1:
        values.idle([f"{part}.partition_activations"], "without model parallelism: nothing to divide over")
    if not values.flag(f"{part}.partition_activations") and values.flag(f"{part}.contiguous_memory_optimization"):
        values.say("contradiction", f"{part}.contiguous_memory_optimization", "it needs partition_activations")
    if values.flag(f"{part}.contiguous_memory_optimization") and f"{part}.number_checkpoints" not in values:
        values.say("contradiction", f"{part}.number_checkpoints", "contiguous_memory_optimization needs it")
    values.say("assumed", part, "what is recomputed is the model's choice: estimated with the least that fits")
