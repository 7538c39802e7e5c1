"""Frameworks of a few settings each: torchtitan, Transformers, Accelerate, Horovod, JAX, torchao, OpenMP."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.analyzers.advice.settings.known import File, Known

# DeepSpeed (0.18).

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


# Megatron-LM (megatron/training/arguments.py, megatron-core 0.15).
#
# A version is the first published megatron-core whose configuration has the field that the argument sets; 0.4 was not
# looked at. An argument that sets no field of megatron-core has none.

_ARGUMENTS = File("megatron-core", "megatron/training/arguments.py", "config")
MEGATRON_SETTINGS_MICRO_BATCH_SIZE = _ARGUMENTS("--micro-batch-size")
TENSOR_PARALLEL = _ARGUMENTS("--tensor-model-parallel-size", "1")
NUM_WORKERS = _ARGUMENTS("--num-workers", "2")
# Switches: off unless given.
DISTRIBUTED_OPTIMIZER = _ARGUMENTS("--use-distributed-optimizer")
OVERLAP_GRAD_REDUCE = _ARGUMENTS("--overlap-grad-reduce")
OVERLAP_PARAM_GATHER = _ARGUMENTS("--overlap-param-gather")
GRAD_REDUCE_IN_BF16 = _ARGUMENTS("--grad-reduce-in-bf16")
MEGATRON_SETTINGS_HALF = {half: _ARGUMENTS(f"--{half}") for half in ("bf16", "fp16")}
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


# SGLang: options of `sglang.launch_server`, read in releases 0.4.6 to 0.5.23.

_SGLANG_SETTINGS_ARGUMENTS = File("sglang", "python/sglang/srt/server_args.py", "config")
MAX_CAPTURED = _SGLANG_SETTINGS_ARGUMENTS("sglang.launch_server --cuda-graph-max-bs-decode", None, (0, 5, 14))
OLDER_MAX_CAPTURED = _SGLANG_SETTINGS_ARGUMENTS("sglang.launch_server --cuda-graph-max-bs")
CHUNK = _SGLANG_SETTINGS_ARGUMENTS(
    "sglang.launch_server --chunked-prefill-size"
)  # by the device's memory: 2048 to 16384
NUMA_NODE = _SGLANG_SETTINGS_ARGUMENTS("sglang.launch_server --numa-node", None, (0, 5, 5))
FUSE_ALL_REDUCE = _SGLANG_SETTINGS_ARGUMENTS(
    "sglang.launch_server --flashinfer-allreduce-fusion-backend", None, (0, 5, 14)
)
OLDER_FUSION = _SGLANG_SETTINGS_ARGUMENTS(
    "sglang.launch_server --enable-flashinfer-allreduce-fusion", "false", (0, 5, 5)
)
SGLANG_SETTINGS_TENSOR_PARALLEL = _SGLANG_SETTINGS_ARGUMENTS("sglang.launch_server --tensor-parallel-size")

# What a server has by default, where its trace shows that it is off.
DISABLE_GRAPHS = _SGLANG_SETTINGS_ARGUMENTS("sglang.launch_server --disable-cuda-graph", "false", restores=True)
DISABLE_OVERLAP = _SGLANG_SETTINGS_ARGUMENTS("sglang.launch_server --disable-overlap-schedule", "false", restores=True)


# vLLM: options of `vllm serve`, read in releases 0.11.0 to 0.33.0.

_VLLM_SETTINGS_ARGUMENTS = File("vllm", "vllm/engine/arg_utils.py", "config")
VLLM_SETTINGS_MAX_CAPTURED = _VLLM_SETTINGS_ARGUMENTS("vllm serve --max-cudagraph-capture-size", None, (0, 11, 1))
OLDER_SIZES = _VLLM_SETTINGS_ARGUMENTS("vllm serve --cuda-graph-sizes")  # up to 0.13
NUMA_BIND = _VLLM_SETTINGS_ARGUMENTS("vllm serve --numa-bind", "false", (0, 22))

# What a server has by default, where its trace shows that it is off.
ENFORCE_EAGER = File("vllm", "vllm/config/model.py", "config")("vllm serve --enforce-eager", "false", restores=True)

_SCHEDULER = File("vllm", "vllm/config/scheduler.py", "config")
BATCHED_TOKENS = _SCHEDULER("vllm serve --max-num-batched-tokens")  # by device and use: 2048 to 16384
# Off, where the trace shows steps that wait for the scheduler; on by default where it can be.
ASYNC_SCHEDULING = _SCHEDULER("vllm serve --async-scheduling", "true", (0, 10), restores=True, default_since=(0, 14))

_PASSES = File("vllm", "vllm/config/compilation.py", "config")
VLLM_SETTINGS_FUSE_ALL_REDUCE = _PASSES("vllm serve --compilation-config.pass_config.fuse_allreduce_rms", None, (0, 12))
VLLM_SETTINGS_OLDER_FUSION = _PASSES("vllm serve --compilation-config.pass_config.enable_fi_allreduce_fusion", "false")

VLLM_SETTINGS_TENSOR_PARALLEL = File("vllm", "vllm/config/parallel.py", "config")("vllm serve --tensor-parallel-size")


# Trainers for reinforcement learning: placement of the roles, asynchronous rollouts, limits on responses.

_VERL = File("verl", "verl/trainer/config/ppo_trainer.yaml", "config")
_VERL_ROLLOUT = File("verl", "verl/workers/config/rollout.py", "config")
_OPENRLHF = File("openrlhf", "openrlhf/cli/train_ppo_ray.py", "config")
_NEMO = File("nemo-rl", "examples/configs/grpo_math_1B.yaml", "config")
_SLIME = File("slime", "slime/utils/arguments.py", "config")
_TRL = File("trl", "trl/trainer/grpo_config.py", "python")

ROLLOUT_GPUS: dict[str, Known] = {
    "verl": File("verl", "verl/experimental/one_step_off_policy/config/one_step_off_ppo_trainer.yaml", "config")(
        "rollout.n_gpus_per_node"
    ),
    "openrlhf": _OPENRLHF("--vllm.num_engines"),
    "nemo-rl": _NEMO("policy.generation.colocated.resources.gpus_per_node"),
    "slime": _SLIME("--rollout-num-gpus"),
}
"""GPUs of the rollout alone, by framework."""
TRAINER_GPUS = {
    "verl": "trainer.n_gpus_per_node",
    "openrlhf": "--actor.num_gpus_per_node",
    "nemo-rl": "cluster.gpus_per_node",
    "slime": "--actor-num-gpus-per-node",
}
"""Besides it, those of the trainer (of NeMo-RL, of both)."""
ONE_STEP_OFF: dict[str, Known] = {
    "verl": File("verl", "verl/experimental/one_step_off_policy/main_ppo.py", "config")(
        "python3 -m verl.experimental.one_step_off_policy.main_ppo"
    ),
    "openrlhf": _OPENRLHF("--train.async_enable"),
    "nemo-rl": _NEMO("grpo.async_grpo.enabled", "false"),
    "slime": File("slime", "train_async.py", "config")("train_async.py"),
}
"""The rollout beside the training."""
FULLY_ASYNC: dict[str, Known] = {
    "verl": File("verl", "verl/experimental/fully_async_policy/config/fully_async_ppo_trainer.yaml", "config")(
        "async_training.staleness_threshold"
    ),
    "openrlhf": _OPENRLHF("--train.partial_rollout_enable"),
    "nemo-rl": _NEMO("grpo.async_grpo.max_trajectory_age_steps", "1"),
}
"""No rollout waits for its last response."""
LONGEST_RESPONSE: dict[str, Known] = {
    "verl": _VERL("data.max_response_length"),
    "openrlhf": _OPENRLHF("--rollout.max_new_tokens"),
    "nemo-rl": _NEMO("policy.generation.max_new_tokens"),
    "slime": _SLIME("--rollout-max-response-len"),
    "trl": _TRL("GRPOConfig.max_completion_length", "256"),
}
REWARD_BESIDE: dict[str, Known] = {"verl": _VERL("reward_model.launch_reward_fn_async", "False")}
WEIGHT_TRANSFER: dict[str, Known] = {
    "verl": _VERL_ROLLOUT("actor_rollout_ref.rollout.checkpoint_engine.backend", "naive")
}
WEIGHT_BUCKETS = _VERL_ROLLOUT("actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes", "2048")


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
