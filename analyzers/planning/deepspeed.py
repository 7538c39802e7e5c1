"""DeepSpeed's `ds_config.json` (0.19: `runtime/config.py`, `runtime/zero/config.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from gpuscope.analyzers.planning.plan_memory import CPU, FULL, NO, NVME, RING, ULYSSES, Layout
from gpuscope.errors import InputError
from gpuscope.schema.plan_document import PlanRemark

# The settings of a framework's file by dotted key, and what is to be said of them.

Kind = Literal["contradiction", "no_effect", "slow", "renamed", "unknown", "assumed"]
AUTO = "auto"
"""Of DeepSpeed's files: Transformers' Trainer fills it in."""


@dataclass(frozen=True)
class Setup:
    """What a file asks for."""

    framework: str
    layout: Layout | None
    """None where its sizes do not make the cluster."""
    batch: int | None
    """Sequences of a step; None where the file leaves it open."""
    precision: str
    sequence: int | None
    recomputes: bool
    """Whether the file says what is recomputed; else the least that fits is taken."""
    remarks: list[PlanRemark]


class Values:
    """The settings of a file. A value of a wrong type is an `InputError` that names it."""

    def __init__(self, path: Path, nested: Mapping[str, Any]) -> None:
        self.path = path
        flat = dict(_flat(nested))
        self.automatic = [key for key, value in flat.items() if value == AUTO]
        self._flat = {key: value for key, value in flat.items() if value != AUTO and value is not None}
        self.remarks: list[PlanRemark] = []

    def __contains__(self, key: str) -> bool:
        return key in self._flat

    @property
    def parts(self) -> set[str]:
        """Its settings of the outermost level."""
        return {key.partition(".")[0] for key in (*self._flat, *self.automatic)}

    def move(self, renamed: Mapping[str, str]) -> None:
        """Give settings the names that they have today, and say so."""
        for old, new in renamed.items():
            if old in self._flat:
                self.say("renamed", old, f"is called {new} today" if new else "is no longer there")
                value = self._flat.pop(old)
                if new:
                    self._flat.setdefault(new, value)

    def count(self, key: str, default: int = 1, least: int = 1, most: int = 1 << 40) -> int:
        """A whole number within bounds."""
        value = self._flat.get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least}" + (f" to {most}" if most < 1 << 40 else ""))
        return value

    def given(self, key: str) -> int | None:
        """A whole number of 1 or more, None where absent."""
        return self.count(key) if key in self else None

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._flat.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def word(self, key: str, default: str = "", known: Collection[str] = ()) -> str:
        """A string, one of `known` where these are named."""
        value = self._flat.get(key, default)
        if not isinstance(value, str) or (known and value not in known):
            raise self._wrong(key, f"one of {', '.join(known)}" if known else "a string")
        return value

    def words(self, key: str) -> list[str]:
        """A list of strings."""
        value = self._flat.get(key, [])
        value = value.split(",") if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._wrong(key, "a list of strings")
        return value

    def say(self, kind: Kind, key: str, message: str) -> None:
        """A remark of one setting."""
        self.remarks.append({"key": key, "kind": kind, "message": message})

    def idle(self, keys: Collection[str], where: str) -> None:
        """Say of each setting that is there that it has no effect."""
        for key in keys:
            if key in self and self._flat[key] not in (False, 0):
                self.say("no_effect", key, f"has no effect {where}")

    def idle_part(self, part: str, where: str) -> None:
        """The same of all that is in a part of the file."""
        if part in self.parts:
            self.say("no_effect", part, f"has no effect {where}")

    def left(self, gpus: int, sizes: Mapping[str, int]) -> int:
        """Ranks for data parallelism beside these sizes; 0, and a remark, where they do not divide the GPUs."""
        others = prod(sizes.values())
        if gpus % others == 0:
            return gpus // others
        key = max(sizes, key=lambda one: sizes[one])
        self.say("contradiction", key, f"{' x '.join(map(str, sizes.values()))} does not divide {gpus} GPUs")
        return 0

    def unknown(
        self,
        known: Collection[str],
        parts: Collection[str],
        kind: Kind = "unknown",
        message: str = "is not known here; it was left out of the estimate",
    ) -> None:
        """Name what is neither known nor in one of the `parts` of a file that are not looked into."""
        for key in self._flat:
            if key not in known and key.partition(".")[0] not in parts:
                self.say(kind, key, message)

    def _wrong(self, key: str, wanted: str) -> InputError:
        return InputError(f"{self.path}: {key} = {self._flat[key]!r} is not {wanted}")


def _flat(nested: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


# Accelerate's configuration file (1.10 to 1.15: `commands/config/config_args.py`, `utils/launch.py`).

KIND, PRECISION, PROCESSES = "distributed_type", "mixed_precision", "num_processes"
VERSION = "fsdp_version"
RESHARD, CHECKPOINTING = "fsdp_reshard_after_forward", "fsdp_activation_checkpointing"
MESH = "parallelism_config"
REPLICATE, SHARD = f"{MESH}_dp_replicate_size", f"{MESH}_dp_shard_size"
_TENSOR, _CONTEXT, _SEQUENCE = f"{MESH}_tp_size", f"{MESH}_cp_size", f"{MESH}_sp_size"
_STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
_KINDS = ("FSDP", "DEEPSPEED", "MULTI_GPU", "NO")
_KNOWN = frozenset(
    (
        KIND,
        PRECISION,
        PROCESSES,
        "compute_environment",
        "num_machines",
        "machine_rank",
        "gpu_ids",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "rdzv_backend",
        "same_network",
        "use_cpu",
        "debug",
        "downcast_bf16",
        "enable_cpu_affinity",
        "tpu_env",
        "tpu_use_cluster",
        "tpu_use_sudo",
    )
)
_ACCELERATE_PARTS = frozenset(("fsdp_config", "deepspeed_config", MESH, "dynamo_config", "fp8_config", "mpirun_config"))


def accelerate_read(values: Values, gpus: int) -> Setup:
    """What a file of Accelerate asks for on so many GPUs; the batch is the script's."""
    kind = values.word(KIND, "NO", _KINDS)
    processes = values.count(PROCESSES, gpus, -1)
    if processes not in (-1, gpus):
        values.say("contradiction", PROCESSES, f"{processes} processes for {gpus} GPUs; estimated for all of these")
    sizes = {f"{MESH}.{key}": values.count(f"{MESH}.{key}") for key in (REPLICATE, _TENSOR, _CONTEXT, _SEQUENCE)}
    replicate, tensor, context, ulysses = sizes.values()
    shard = values.left(gpus, sizes)
    given = values.count(f"{MESH}.{SHARD}", shard or 1)
    if shard and MESH in values.parts and given != shard:
        values.say("contradiction", f"{MESH}.{SHARD}", f"{given} with the other sizes is not {gpus} GPUs")
        shard = 0
    for other, name in (("FSDP", "fsdp_config"), ("DEEPSPEED", "deepspeed_config")):
        if kind != other:
            values.idle_part(name, f"with {KIND} {kind}")
    zero, recompute, offload = _sharding(values, kind)
    data = replicate * shard
    values.say("assumed", "batch", "is the script's: estimated with micro-batches of one sequence")
    values.unknown(
        _KNOWN, _ACCELERATE_PARTS, "contradiction", "is refused: Accelerate takes no keys that it does not know"
    )
    layout = None
    if data:
        layout = Layout(
            data,
            tensor,
            1,
            context * ulysses,
            zero=zero if gpus > 1 else 0,
            recompute=FULL if recompute else NO,
            shard=shard * context * ulysses if zero and replicate > 1 else 0,
            offload=offload,
            exchange=ULYSSES if ulysses > 1 else RING,
        )
    precision = values.word(PRECISION, "no", ("no", "fp16", "bf16", "fp8"))
    if precision == "no":
        values.say("slow", PRECISION, "all is computed in fp32; estimated in bf16")
    return Setup(
        "accelerate",
        layout,
        None,
        "fp8" if precision == "fp8" else "bf16",
        None,
        kind == "FSDP",
        values.remarks,
    )


def _sharding(values: Values, kind: str) -> tuple[int, bool, str]:
    """The stage of ZeRO, whether layers are recomputed, and where the optimizer is."""
    if kind == "DEEPSPEED":
        if "deepspeed_config.deepspeed_config_file" in values:
            values.say("assumed", "deepspeed_config.deepspeed_config_file", "give that file to --config")
        device = values.word("deepspeed_config.offload_optimizer_device", NO, (NO, CPU, NVME))
        return values.count("deepspeed_config.zero_stage", 2, 0, 3), False, device
    if kind != "FSDP":
        return 0, False, NO
    version = values.count(f"fsdp_config.{VERSION}", 1)
    strategy = f"fsdp_config.fsdp_{'sharding_strategy' if version == 1 else 'reshard_after_forward'}"
    if version == 1:
        zero = _STRATEGIES[values.word(strategy, "FULL_SHARD", _STRATEGIES)]
    else:
        values.idle(["fsdp_config.fsdp_sharding_strategy"], "with fsdp_version 2")
        zero = 3 if values.flag(strategy, True) else 2
    recompute = values.flag(f"fsdp_config.{CHECKPOINTING}")
    return zero, recompute, CPU if values.flag("fsdp_config.fsdp_offload_params") else NO


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
