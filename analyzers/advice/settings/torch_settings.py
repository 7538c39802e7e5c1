"""torch: DDP, FSDP, loader, compiler, allocator and launcher (2.13)."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import Known, table

_FSDP1 = "torch/distributed/fsdp/fully_sharded_data_parallel.py"
_FSDP2 = "torch/distributed/fsdp/_fully_shard/_fully_shard.py"

SETTINGS = {
    **table(
        "torch", "torch/nn/parallel/distributed.py",
        ("DistributedDataParallel.bucket_cap_mb", "None"),
        Known("DistributedDataParallel.bucket_cap_mb_list", None, "torch/nn/parallel/distributed.py", "torch", (2, 13)),
        ("DistributedDataParallel.broadcast_buffers", "None"),
        ("DistributedDataParallel.find_unused_parameters", None),  # proposed off, where the search is seen
        ("DistributedDataParallel.gradient_as_bucket_view", "False"),
        ("DistributedDataParallel.register_comm_hook", None),
        ("DistributedDataParallel.no_sync", None),
        ("torch.nn.parallel.DistributedDataParallel", None),
    ),
    **table(
        "torch", _FSDP1,
        Known("FullyShardedDataParallel.backward_prefetch", "BackwardPrefetch.BACKWARD_PRE", _FSDP1, "torch",
              restores=True),
        ("FullyShardedDataParallel.limit_all_gathers", "True"),
        ("FullyShardedDataParallel.mixed_precision", "None"),
        ("FullyShardedDataParallel.sharding_strategy", "ShardingStrategy.FULL_SHARD"),
    ),
    **table(
        "torch", _FSDP2,
        ("fully_shard", None), ("torch.distributed.fsdp.fully_shard", None),
        ("fully_shard.mesh", "None"), ("fully_shard.reshard_after_forward", "None"),
        ("fully_shard.mp_policy", "MixedPrecisionPolicy()"), ("fully_shard.offload_policy", "OffloadPolicy()"),
        Known("FSDPModule.set_modules_to_forward_prefetch", None, _FSDP2, "torch", (2, 5)),
    ),
    **table(
        "torch", "torch/utils/data/dataloader.py",
        ("DataLoader.num_workers", "0"), ("DataLoader.pin_memory", "False"),
    ),
    **table(
        "torch", "torch/__init__.py",
        ("torch.compile", None), ("torch.compile.mode", "None"), ("torch.compile.dynamic", "None"),
        ("torch.set_float32_matmul_precision", '"highest"'), ("torch.autocast", None), ("torch.no_grad", None),
        ("torch.backends.cudnn.allow_tf32", "True"), ("torch.where", None), ("torch.cuda.Stream", None),
        ("torch.nn.functional.scaled_dot_product_attention", None),
        Known("torch.nn.attention.sdpa_kernel", None, "torch/nn/attention/__init__.py", "torch", (2, 3)),
        ("torch.utils.checkpoint.checkpoint", None), ("torch.profiler.schedule", None),
        Known("torch.utils.checkpoint.checkpoint.use_reentrant", None, "torch/utils/checkpoint.py", "torch", (1, 11)),
        ("torch.profiler.profile.with_stack", "False"), ("torch.profiler.profile.record_shapes", "False"),
        ("torch._dynamo.mark_dynamic", None), ("torch._dynamo.graph_break", None),
        ("torch._dynamo.config.specialize_float", None), ("torch._dynamo.config.ignore_logging_functions", None),
        ("torch._dynamo.config.reorderable_logging_functions", None),
    ),
    **table(
        "torch", "torch/distributed/distributed_c10d.py",
        ("torch.distributed.init_process_group", None), ("torch.distributed.batch_isend_irecv", None),
        ("torch.distributed.pipelining", None), ("torch.distributed.checkpoint.async_save", None),
        ("init_device_mesh.mesh_dim_names", "None"), ("ProcessGroupNCCL.Options.config.min_ctas", None),
        Known("torchrun --numa-binding", None, "torch/distributed/run.py", "torch", (2, 9)),
    ),
    **table(
        "torch", "torch/optim",
        *((f"torch.optim.{name}.fused", "None") for name in ("Adam", "AdamW", "SGD")),
        *((f"torch.optim.{name}.foreach", "None") for name in
          ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")),
    ),
    **table(
        "torch", "c10/cuda/CUDAAllocatorConfig.h",
        ("PYTORCH_CUDA_ALLOC_CONF", ""),
        Known("PYTORCH_ALLOC_CONF", "", "c10/cuda/CUDAAllocatorConfig.h", "torch", (2, 9)),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", None), ("PYTORCH_NO_HIP_MEMORY_CACHING", None),
        ("TORCHINDUCTOR_CACHE_DIR", None),
        Known("torch.cuda.memory.change_current_allocator", None, "torch/cuda/memory.py", "torch", (2, 0)),
    ),
    **table("torchao", "torchao/float8/__init__.py", ("torchao.float8.convert_to_float8_training", None)),
}  # fmt: skip
