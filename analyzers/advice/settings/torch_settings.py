"""torch: DDP, FSDP, loader, compiler, optimizers, allocator and launcher (2.13)."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import File
from gpuscope.analyzers.allocator.allocator_settings import ANY, FROM_2_9

_DDP = File("torch", "torch/nn/parallel/distributed.py", "python")
DDP = _DDP("torch.nn.parallel.DistributedDataParallel")
BUCKET_CAP_MB = _DDP("DistributedDataParallel.bucket_cap_mb", "None", same=("25",))
BUCKET_CAP_MB_LIST = _DDP("DistributedDataParallel.bucket_cap_mb_list", None, (2, 13))
BROADCAST_BUFFERS = _DDP("DistributedDataParallel.broadcast_buffers", "None", same=("True",))
FIND_UNUSED_PARAMETERS = _DDP("DistributedDataParallel.find_unused_parameters", "False", restores=True)
GRADIENT_AS_BUCKET_VIEW = _DDP("DistributedDataParallel.gradient_as_bucket_view", "False")
COMM_HOOK = _DDP("DistributedDataParallel.register_comm_hook")
NO_SYNC = _DDP("DistributedDataParallel.no_sync")

_FSDP1 = File("torch", "torch/distributed/fsdp/fully_sharded_data_parallel.py", "python")
BACKWARD_PREFETCH = _FSDP1("FullyShardedDataParallel.backward_prefetch", "BackwardPrefetch.BACKWARD_PRE", restores=True)
FORWARD_PREFETCH_1 = _FSDP1("FullyShardedDataParallel.forward_prefetch", "False")
LIMIT_ALL_GATHERS = _FSDP1("FullyShardedDataParallel.limit_all_gathers", "True")
MIXED_PRECISION = _FSDP1("FullyShardedDataParallel.mixed_precision", "None")
SHARDING_STRATEGY = _FSDP1("FullyShardedDataParallel.sharding_strategy", "ShardingStrategy.FULL_SHARD")
AUTO_WRAP_POLICY = _FSDP1("FullyShardedDataParallel.auto_wrap_policy", "None")
FSDP1_NO_SYNC = _FSDP1("FullyShardedDataParallel.no_sync")

_FSDP2 = File("torch", "torch/distributed/fsdp/_fully_shard/_fully_shard.py", "python")
FULLY_SHARD = _FSDP2("torch.distributed.fsdp.fully_shard")
SHARD_MESH = _FSDP2("fully_shard.mesh", "None")
RESHARD_AFTER_FORWARD = _FSDP2("fully_shard.reshard_after_forward", "None", same=("True",))
MP_POLICY = _FSDP2("fully_shard.mp_policy", "MixedPrecisionPolicy()")
OFFLOAD_POLICY = _FSDP2("fully_shard.offload_policy", "OffloadPolicy()")
FORWARD_PREFETCH = _FSDP2("FSDPModule.set_modules_to_forward_prefetch", None, (2, 5))
GRADIENT_SYNC = _FSDP2("FSDPModule.set_requires_gradient_sync", None, (2, 4))

_LOADER = File("torch", "torch/utils/data/dataloader.py", "python")
NUM_WORKERS, PIN_MEMORY = _LOADER("DataLoader.num_workers", "0"), _LOADER("DataLoader.pin_memory", "False")

_TORCH = File("torch", "torch/__init__.py", "python")
COMPILE = _TORCH("torch.compile")
COMPILE_MODE, COMPILE_DYNAMIC = _TORCH("torch.compile.mode", "None"), _TORCH("torch.compile.dynamic", "None")
MATMUL_PRECISION = _TORCH("torch.set_float32_matmul_precision", '"highest"')
CUDNN_TF32 = _TORCH("torch.backends.cudnn.allow_tf32", "True", restores=True)
CUDNN_BENCHMARK = _TORCH("torch.backends.cudnn.benchmark", "False")
TUNABLE_OP = File("torch", "aten/src/ATen/cuda/tunable/README.md", "env")("PYTORCH_TUNABLEOP_ENABLED", "0", (2, 3))
AUTOCAST, NO_GRAD, WHERE = _TORCH("torch.autocast"), _TORCH("torch.no_grad"), _TORCH("torch.where")
STREAM, EMPTY_CACHE = _TORCH("torch.cuda.Stream"), _TORCH("torch.cuda.empty_cache()")
TENSOR_TO, MODULE_TO = _TORCH("Tensor.to"), _TORCH("Module.to")
ATTENTION = _TORCH("torch.nn.functional.scaled_dot_product_attention")
SDPA_KERNEL = File("torch", "torch/nn/attention/__init__.py", "python")("torch.nn.attention.sdpa_kernel", None, (2, 3))
_CHECKPOINT = File("torch", "torch/utils/checkpoint.py", "python")
CHECKPOINT = _CHECKPOINT("torch.utils.checkpoint.checkpoint")
USE_REENTRANT = _CHECKPOINT("torch.utils.checkpoint.checkpoint.use_reentrant", None, (1, 11))
_PROFILER = File("torch", "torch/profiler/profiler.py", "python")
PROFILER_SCHEDULE = _PROFILER("torch.profiler.schedule")
WITH_STACK = _PROFILER("torch.profiler.profile.with_stack", "False")
RECORD_SHAPES = _PROFILER("torch.profiler.profile.record_shapes", "False")

_DYNAMO = File("torch", "torch/_dynamo/decorators.py", "python")
MARK_DYNAMIC, GRAPH_BREAK = _DYNAMO("torch._dynamo.mark_dynamic"), _DYNAMO("torch._dynamo.graph_break")
_DYNAMO_CONFIG = File("torch", "torch/_dynamo/config.py", "python")
SPECIALIZE_FLOAT = _DYNAMO_CONFIG("torch._dynamo.config.specialize_float", "False", restores=True)
IGNORE_LOGGING = _DYNAMO_CONFIG("torch._dynamo.config.ignore_logging_functions")
REORDER_LOGGING = _DYNAMO_CONFIG("torch._dynamo.config.reorderable_logging_functions")
INDUCTOR_CACHE_DIR = File("torch", "torch/_inductor/runtime/cache_dir_utils.py", "env")("TORCHINDUCTOR_CACHE_DIR")

_C10D = File("torch", "torch/distributed/distributed_c10d.py", "python")
INIT_PROCESS_GROUP = _C10D("torch.distributed.init_process_group")
ALL_REDUCE = _C10D("torch.distributed.all_reduce")
BATCH_ISEND_IRECV = _C10D("torch.distributed.batch_isend_irecv")
DISTRIBUTED_DEBUG = File("torch", "torch/csrc/distributed/c10d/debug.cpp", "env")("TORCH_DISTRIBUTED_DEBUG")
MIN_CTAS = _C10D("ProcessGroupNCCL.Options.config.min_ctas")
MESH_DIM_NAMES = File("torch", "torch/distributed/device_mesh.py", "python")("init_device_mesh.mesh_dim_names", "None")
PIPELINING = File("torch", "torch/distributed/pipelining/schedules.py", "python")("torch.distributed.pipelining")
ASYNC_SAVE = File("torch", "torch/distributed/checkpoint/state_dict_saver.py", "python")(
    "torch.distributed.checkpoint.async_save", None, (2, 3)
)
NUMA_BINDING = File("torch", "torch/distributed/run.py", "config")("torchrun --numa-binding", None, (2, 9))

_OPTIM = File("torch", "torch/optim", "python")
FUSED = {
    name: _OPTIM(f"torch.optim.{name}.fused", "None", since)
    for name, since in (("Adam", (1, 13)), ("AdamW", (2, 0)), ("SGD", (2, 3)))
}
"""By class, since the torch that has it on CUDA and ROCm. Adagrad's was for CPUs alone up to 2.11 at least."""
FUSED_ON_CPU_SINCE = (2, 4)
FUSED_ON_CPU = FUSED | {"Adagrad": _OPTIM("torch.optim.Adagrad.fused", "None", FUSED_ON_CPU_SINCE)}
FOREACH = {
    name: _OPTIM(f"torch.optim.{name}.foreach", "None")
    for name in ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
}

_ALLOCATOR = File("torch", "c10/cuda/CUDAAllocatorConfig.h", "env")
CUDA_ALLOC_CONF, ALLOC_CONF = _ALLOCATOR(ANY, ""), _ALLOCATOR(FROM_2_9, "", (2, 9))
_CACHING = File("torch", "c10/cuda/CUDACachingAllocator.cpp", "env")
NO_CACHING = {device: _CACHING(f"PYTORCH_NO_{device}_MEMORY_CACHING") for device in ("CUDA", "HIP")}
CURRENT_ALLOCATOR = File("torch", "torch/cuda/memory.py", "python")(
    "torch.cuda.memory.change_current_allocator", None, (2, 0)
)
