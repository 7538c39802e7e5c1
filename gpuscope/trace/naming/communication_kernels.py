"""Which kernels communicate, and what operation they carry out, by the kernel's own identifier.

Only the identifier and its namespaces are read, never template arguments: an elementwise kernel templated on an
`AllReduceFunctor` computes. Inductor puts the names of the operators around a fused kernel into its name
(`triton_poi_fused_add_all_reduce_0` is an addition), so its kernels are compute whatever they mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal

from gpuscope import when_used
from gpuscope.trace.naming.kernel_names import qualified_name, words

Rule = Literal["name", "namespace", "launcher"]
"""How a kernel is known to communicate."""
_START = r"(?:^|::)"
_FAMILIES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (when_used.pattern(pattern), op)
    for pattern, op in (
        # NCCL `ncclKernel_`, `ncclDevKernel_`, `ncclSymDevKernel_`, `ncclSymkDevKernel_` and, up to 2.7,
        # `ncclAllReduceRingLLKernel_sum_f32` (NVIDIA/nccl src/device/generate.py and src/device/symmetric/generate.py);
        # RCCL has NCCL's names and `mscclKernel_Sum_half_Simple` (ROCm/rccl src/include/msccl/msccl_kernel.h).
        (_START + r"(?:nccl|rccl|msccl)\w*Kernel(?![a-z])", ""),
        # MORI-EP (ROCm/mori src/ops/dispatch_combine), TensorRT-LLM (moeAlltoAllKernels.cu).
        (_START + r"Ep(?:Dispatch|Combine)\w*Kernel\w*$", "all_to_all"),
        (_START + r"moeA2A(?:Dispatch|Combine)Kernel$", "all_to_all"),
        # pplx-kernels and pplx-garden (`a2a_dispatch_send_kernel`).
        (_START + r"a2a_(?:dispatch|combine)\w*$", "all_to_all"),
        # TransformerEngine and TensorRT-LLM userbuffers (NVIDIA/TransformerEngine comm_gemm_overlap/userbuffers.cu).
        (_START + r"k?userbuffers_pushsendrecv\w*$", "send_recv"),
        (_START + r"kuserbuffers_pushsend\w*$", "send"),
        (_START + r"kuserbuffers_pushrecv\w*$", "recv"),
        (_START + r"kuserbuffers_alltoall\w*$", "all_to_all"),
        (_START + r"userbuffers_\w*_ag(?:_\w*)?$", "all_gather"),
        (_START + r"userbuffers_\w*_rs(?:_\w*)?$", "reduce_scatter"),
        (_START + r"userbuffers_fp16_sum_inplace_gpu_\w+$", "all_reduce"),
        (_START + r"k?userbuffers_\w+$", ""),
        # vLLM, SGLang, aiter (csrc/custom_all_reduce.cuh), QuickReduce (quickreduce::allreduce_prototype_twoshot).
        (_START + r"cross_device_reduce_\w+$", "all_reduce"),
        (_START + r"reduce_scatter_cross_device_store\w*$", "reduce_scatter"),
        # FlashInfer's and TensorRT-LLM's multi-node NVLink all-reduce: its norm waits for the peers' data too.
        (r"trtllm_mnnvl_allreduce::\w+$", "all_reduce"),
        # PyTorch symmetric memory (torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory{,Ops}.cu).
        # `multimem_one_shot_reduce_kernel` is what `multimem_one_shot_all_reduce` runs, each rank its own root.
        (_START + r"multimem_(?:all_reduce|one_shot_(?:all_)?reduce)\w*$", "all_reduce"),
        (_START + r"multimem_all_gather\w*$", "all_gather"),
        (_START + r"multimem_\w+$", ""),
        (_START + r"put_signal_kernel$", "send"),
        (_START + r"wait_signal_kernel$", "recv"),
        (_START + r"barrier_kernel$", "barrier"),
        # PyTorch over NVSHMEM (symm_mem/nvshmem_extension.cu).
        (_START + r"(?:allToAllV|exchangeSplitAndOffset)\w*$", "all_to_all"),
        # NVSHMEM, rocSHMEM: kernels of their on-stream calls and of the proxy (nvshmemi_h_to_d_*_defs.cuh).
        (_START + r"(?:nvshmem\w*_|rocshmem\w*_)?(?:barrier|sync)(?:_all)?_on_stream_kernel\w*$", "barrier"),
        (_START + r"(?:roc|nv)shmem\w*_reduce_on_stream_kernel\w*$", "all_reduce"),
        (_START + r"rdxn\w*_on_stream_kernel\w*$", "all_reduce"),
        (_START + r"reducescatter\w*_on_stream_kernel\w*$", "reduce_scatter"),
        (_START + r"f?collect\w*_on_stream_kernel\w*$", "all_gather"),
        (_START + r"alltoall\w*_on_stream_kernel\w*$", "all_to_all"),
        (_START + r"broadcast\w*_on_stream_kernel\w*$", "broadcast"),
        (_START + r"(?:nvshmem|rocshmem)\w*(?:::\w+)*$", ""),
        # MSCCL++ (microsoft/mscclpp src/ext/collectives and src/core/executor): the operation is in the name.
        (r"mscclpp::(?:\w+::)*(?=\w*(?i:allreduce|allgather|alltoall|reducescatter|broadcast))\w+$", ""),
        (r"mscclpp::executionKernel$", ""),
        # Huawei HCCL (`hcom_allReduce__503_0_1`).
        (_START + r"(?:hcom|hccl)_\w+$", ""),
    )
)
_COLLECTIVES = tuple(
    (when_used.pattern(f"_{op.replace('_', '_?')}(v|fusion|kernel)?_"), op)
    for op in ("reduce_scatter", "all_reduce", "all_gather", "all_to_all")
)
_LIBRARIES = when_used.pattern(
    r"(?:^|::)(?P<library>deep_ep|hybrid_ep|dpsk|uccl|mori|(?:\w+_)?ep)::(?:\w+::)*(?P<own>\w+)$"
)
"""Namespaces of libraries that exchange tokens between experts: DeepEP and its like (`deep_ep::intranode`,
`dpsk::ep::internode`, `uccl::internode`), also below others' (`primus_turbo::deep_ep`)."""
_EXCHANGES = (
    (when_used.pattern(r"_(barrier|sync|clean_low_latency_buffer)_"), "barrier"),
    (when_used.pattern(r"_(notify|dispatch|combine)_"), "all_to_all"),
    (when_used.pattern(r"_send_recv_"), "send_recv"),
)
_ONLY_COMMUNICATE = ("uccl", "mori")
"""Libraries whose kernels communicate whatever their name says."""
_LOCAL = when_used.pattern(
    r"_(copy|prepare|preprocess|pack|unpack|permute|layout|setup|init|reset|convert|prologue|epilogue)_"
)
"""Words of kernels that get a collective's data ready and wait for nobody."""
_INDUCTOR = when_used.pattern(r"triton_[a-z]{2,4}_fused|triton_(poi|per|red|for|tem|mm|bmm)_")


@cache
def communication(kernel: str) -> str | None:
    """The operation a kernel carries out; "" where its name leaves that open, None where it does not communicate."""
    name = qualified_name(kernel)
    if _INDUCTOR.match(name):
        return None
    for pattern, op in _FAMILIES:
        if pattern.search(name):
            return op or named_collective(name)
    exchange = _of_library(name)
    return exchange if exchange is not None else named_collective(name.rpartition("::")[2]) or None


def known_by(kernel: str) -> Rule | None:
    """The rule that knows a communication kernel by what it is called itself; None where none does."""
    if communication(kernel) is None:
        return None
    name = qualified_name(kernel)
    by_name = any(pattern.search(name) for pattern, _ in _FAMILIES)
    return "name" if by_name or _of_library(name) is None else "namespace"


def _of_library(name: str) -> str | None:
    """What a kernel in a library's namespace carries out, as `communication` gives it."""
    found = _LIBRARIES.search(name)
    if found is None or _LOCAL.search(own := words(found["own"])):
        return None
    for pattern, op in _EXCHANGES:
        if pattern.search(own):
            return op
    every = found["library"] in _ONLY_COMMUNICATE or (name.endswith("_impl") and "deep_ep::elastic::" in name)
    return named_collective(found["own"]) or ("" if every else None)


def named_collective(identifier: str) -> str:
    """The collective whose name is among the words of an identifier (`twoShotAllReduceKernel` → all_reduce).

    So one-shot and two-shot kernels are found under whatever name their library gives them:
    `one_shot_all_reduce_kernel`, `oneShotAllReduceKernel`, `allreduce_fusion_kernel_oneshot_lamport`,
    `all_reduce_one_shot_push_kernel`, `allgather_lastdim`.
    """
    text = words(identifier)
    if _LOCAL.search(text):
        return ""
    return next((op for pattern, op in _COLLECTIVES if pattern.search(text)), "")


_CHOICE = when_used.pattern(
    r"(?i)_(TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)_(LL128|LL|SIMPLE)(?:_|$)"
)
_EXACT = when_used.pattern(
    r"(?i)_(?:TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)_(?:LL128|SIMPLE)(?:_|$)"
)
_SENDS = "SendRecv"
"""The kernel of point-to-point operations, which have no algorithm; its name has one all the same."""


def kernel_algorithm(kernel: str, op: str, exact: bool = False) -> tuple[str | None, str | None]:
    """NCCL's algorithm and protocol as far as a kernel's name says them; None for what it leaves open.

    NCCL builds few kernels, and each of them runs any algorithm: `best_kernel` of NVIDIA/nccl src/device/generate.py
    gives every all-reduce, reduce and reduce-scatter `…_TREE_LL` if it is a tree and `…_RING_LL` if not, whatever its
    protocol, and every all-gather and broadcast `…_RING_LL`. So «LL» alone says nothing, «TREE» says tree, and «RING»
    that it is no tree: a ring, where no switch reduces, which the caller must know. Only a library built with exact
    names has other protocols in them, and then (`exact`) all are meant.
    """
    match = _CHOICE.search(qualified_name(kernel))
    if match is None or _SENDS in kernel:
        return None, None
    algorithm, protocol = match[1].lower(), match[2].lower()
    if exact or protocol != "ll":
        return algorithm, protocol
    return (None if op in ("all_gather", "broadcast") else algorithm), None


def exact_names(kernels: Iterable[str]) -> bool:
    """Whether a library of NCCL with exact kernel names was used: some name has a protocol besides LL. The one kernel
    of sends is `…SendRecv_RING_SIMPLE…` in all of them."""
    return any(_EXACT.search(name) for name in kernels if "ernel" in name and _SENDS not in name)


_ELEMENT = when_used.pattern(
    r"(?i)_(?:Sum|Prod|Min|Max|MinMax|Avg|PreMulSum|SumPostDiv)_"
    r"(?:__nv_|rccl_|hip_)?(?:(?P<named>double|float|half|bfloat16)|(?:bf|f|u?int|u|i)(?P<bits>8|16|32|64))(?![a-z0-9])"
)
_NAMED = {"double": 8, "float": 4, "half": 2, "bfloat16": 2}


@cache
def kernel_item_bytes(kernel: str) -> int | None:
    """Bytes of an element that a reduction's kernel adds up, by its name (`…_Sum_f32_RING_LL`, `…_RING_LL_Sum_half`);
    None where the name does not say."""
    match = _ELEMENT.search(kernel.partition("(")[0] + "_")
    if match is None:
        return None
    return _NAMED[match["named"].lower()] if match["named"] else int(match["bits"]) // 8
