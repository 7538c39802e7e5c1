"""vLLM: options of `vllm serve`, read in releases 0.11.0 to 0.33.0."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import File

_ARGUMENTS = File("vllm", "vllm/engine/arg_utils.py", "config")
MAX_CAPTURED = _ARGUMENTS("vllm serve --max-cudagraph-capture-size", None, (0, 11, 1))
OLDER_SIZES = _ARGUMENTS("vllm serve --cuda-graph-sizes")  # up to 0.13
NUMA_BIND = _ARGUMENTS("vllm serve --numa-bind", "false", (0, 22))

# What a server has by default, where its trace shows that it is off.
ENFORCE_EAGER = File("vllm", "vllm/config/model.py", "config")("vllm serve --enforce-eager", "false", restores=True)

_SCHEDULER = File("vllm", "vllm/config/scheduler.py", "config")
BATCHED_TOKENS = _SCHEDULER("vllm serve --max-num-batched-tokens")  # by device and use: 2048 to 16384
# Off, where the trace shows steps that wait for the scheduler; on by default where it can be.
ASYNC_SCHEDULING = _SCHEDULER("vllm serve --async-scheduling", "true", (0, 10), restores=True, default_since=(0, 14))

_PASSES = File("vllm", "vllm/config/compilation.py", "config")
FUSE_ALL_REDUCE = _PASSES("vllm serve --compilation-config.pass_config.fuse_allreduce_rms", None, (0, 12))
OLDER_FUSION = _PASSES("vllm serve --compilation-config.pass_config.enable_fi_allreduce_fusion", "false")

TENSOR_PARALLEL = File("vllm", "vllm/config/parallel.py", "config")("vllm serve --tensor-parallel-size")
