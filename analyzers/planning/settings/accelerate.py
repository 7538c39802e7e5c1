"""Accelerate's configuration file (1.10 to 1.15: `commands/config/config_args.py`, `utils/launch.py`)."""

from __future__ import annotations

from gpuscope.analyzers.planning.layout import CPU, FULL, NO, NVME, RING, ULYSSES, Layout
from gpuscope.analyzers.planning.settings.values import Setup, Values

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
_PARTS = frozenset(("fsdp_config", "deepspeed_config", MESH, "dynamo_config", "fp8_config", "mpirun_config"))


def read(values: Values, gpus: int) -> Setup:
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
    values.unknown(_KNOWN, _PARTS, "contradiction", "is refused: Accelerate takes no keys that it does not know")
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
