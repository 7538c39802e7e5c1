"""SGLang: options of `sglang.launch_server`, read in releases 0.4.6 to 0.5.23."""

from __future__ import annotations

from gpuscope.analyzers.advice.settings.known import File

_ARGUMENTS = File("sglang", "python/sglang/srt/server_args.py", "config")
MAX_CAPTURED = _ARGUMENTS("sglang.launch_server --cuda-graph-max-bs-decode", None, (0, 5, 14))
OLDER_MAX_CAPTURED = _ARGUMENTS("sglang.launch_server --cuda-graph-max-bs")
CHUNK = _ARGUMENTS("sglang.launch_server --chunked-prefill-size")  # by the device's memory: 2048 to 16384
NUMA_NODE = _ARGUMENTS("sglang.launch_server --numa-node", None, (0, 5, 5))
FUSE_ALL_REDUCE = _ARGUMENTS("sglang.launch_server --flashinfer-allreduce-fusion-backend", None, (0, 5, 14))
OLDER_FUSION = _ARGUMENTS("sglang.launch_server --enable-flashinfer-allreduce-fusion", "false", (0, 5, 5))
TENSOR_PARALLEL = _ARGUMENTS("sglang.launch_server --tensor-parallel-size")

# What a server has by default, where its trace shows that it is off.
DISABLE_GRAPHS = _ARGUMENTS("sglang.launch_server --disable-cuda-graph", "false", restores=True)
DISABLE_OVERLAP = _ARGUMENTS("sglang.launch_server --disable-overlap-schedule", "false", restores=True)
