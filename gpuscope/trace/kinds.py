"""What a name says: which kernels communicate, which runtime calls block, launch or allocate.

Names are matched on the function's own identifier, never anywhere in the text: `hipMemcpyAsync` holds no
collective, and an operator that only mentions one in its template arguments is compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal

from gpuscope import when_used
from gpuscope.trace.kernel_categories import qualified_name, words

# Which kernels communicate, and what operation they carry out, by the kernel's own identifier.
#
# Only the identifier and its namespaces are read, never template arguments: an elementwise kernel templated on an
# `AllReduceFunctor` computes. Inductor puts the names of the operators around a fused kernel into its name
# (`triton_poi_fused_add_all_reduce_0` is an addition), so its kernels are compute whatever they mention.

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


_OPS = (
    # Longest first: «reduce_scatter» holds «reduce».
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send_recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("isend", "send"),
    ("irecv", "recv"),
    ("send", "send"),
    ("recv", "recv"),
)

_STANDARD = frozenset(op for _, op in _OPS)
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})

_VERSION = r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$"
_BLOCKING = when_used.pattern(
    r"(cudaDeviceSynchronize|cudaStreamSynchronize|cudaEventSynchronize|cudaThreadSynchronize|cudaMemcpy"
    r"|cudaMemcpy2D|cudaMemcpy3D|cudaMemcpy(To|From)Symbol|cuCtxSynchronize|cuStreamSynchronize"
    r"|cuEventSynchronize|cuMemcpy(HtoD|DtoH|DtoD)?(_v2)?"
    r"|hipDeviceSynchronize|hipStreamSynchronize|hipEventSynchronize|hipMemcpy|hipMemcpyWithStream"
    r"|(AscendCL@)?aclrtSynchronize(Stream|Device|Event)\w*|(AscendCL@)?aclrtMemcpy)" + _VERSION
)
_LAUNCH = when_used.pattern(
    r"(cuda|hip)(Launch|ExtLaunch|GraphLaunch|ModuleLaunch|ExtModuleLaunch|LaunchCooperative)"
    r"|cuLaunch|cuGraphLaunch|(AscendCL@)?aclrtLaunch"
)
_KERNEL_LAUNCH = when_used.pattern(
    r"(cuda|hip)\w*Launch(Cooperative)?Kernel|cuLaunch\w*Kernel|(cuda|cu|hip)GraphLaunch"
)
_WORK = when_used.pattern(r"launch|mem_?(cpy|set)|enqueue|append|execut|submit|copy|fill", re.IGNORECASE)
"""Part of the name of a call that gives a device something to do, whatever the device is called; rather too wide."""
_ALLOCATOR = when_used.pattern(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister|FreeHost|MemPool)"
    r"|cuMem(Alloc|Free|HostAlloc|HostRegister|Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree)"
    r"|(AscendCL@)?aclrt(Malloc|Free)"
)
_DEVICE_WAIT = when_used.pattern(
    r"(event|sem(aphore)?|fence|barrier|stream)[_ ]?wait([_ ]event)?|wait[_ ](for[_ ])?(event|sem(aphore)?|fence)",
    re.IGNORECASE,
)
_DMA = when_used.pattern(
    r"([a-z0-9]+[_ ])*(s|h|e|i|o)?dma([_ ](in|out|copy|read|write|load|store|transfer|[0-9]+))*", re.IGNORECASE
)
_LOADER = when_used.pattern(
    r"enumerate\(DataLoader\)|torch/utils/data/(dataloader|_utils/fetch)\.py|data[ _-]?load(er|ing)?\b"
    r"|\b(next|get|fetch|load)[ _]?batch\b|\bbatch[ _]load|(^|[:./ ])data$|^(input|fetch)[ _]data$",
    re.IGNORECASE,
)
_GARBAGE = when_used.pattern(
    r"^(Python )?GC\b|^garbage[ _]collect|gc\.collect|<built-in method collect|(^|::)gc(\.generation\d)?$",
    re.IGNORECASE,
)
_HOST_OTHER = when_used.pattern(
    r"save_checkpoint|checkpoint[._]save|(^|[:./ ])(checkpoint|logging)$|dcp\.save|torch/serialization\.py.*: save"
    r"|logging/__init__\.py|torch/utils/tensorboard/|\bwandb\b"
    r"|<built-in function print>|^CUDA graph capture$",
    re.IGNORECASE,
)
_COMPILATION = when_used.pattern(
    r"dynamo_timed|_compile\.compile_inner|backend_compile|inductor_compile|entire_frame_compile"
    r"|CachingAutotuner\.(precompile|benchmark|autotune)|max_autotune|triton.*\bcompile\b|\bautotun(e|ing)\b"
    r"|cudnnFind|miopenFind|^(nvrtc|hiprtc)Compile|\bnvrtc::compile|^cu(Module|Library)(Load|Get)|^cuLink|^cuda(Module|Library)Load"
    r"|^hipModuleLoad|^(cu|hip)Init$|^CUDA graph capture$|graph_runner\.py\(\d+\): capture\b|\bcapture_model\b",
    re.IGNORECASE,
)
"""torch.compile and Triton (torch/_dynamo/utils.py `dynamo_timed`), captures of CUDA graphs (`graph_captures.py`;
vLLM's `capture_model`, SGLang's `cuda_graph_runner.py: capture`), cuDNN's and MIOpen's searches, CUDA's lazy loading of
modules and libraries."""
_COMPILED_REGION = when_used.pattern(r"^Torch-Compiled Region: \[?(\d+/\d+)")
_COMPILE_WRAPPER = when_used.pattern(
    # torch/csrc/dynamo/eval_frame.c, torch/_dynamo/utils.py, torch/_functorch/_aot_autograd/runtime_wrappers.py.
    r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime Wrapper)\b"
)
_PHASE = when_used.pattern(
    r"(?<![a-z])(?:(?P<forward>forward|fwd)|(?P<backward>backward|bwd)|(?P<optimizer>optimi[sz]er|optim))(?![a-z])"
    r"|(?P<engine>^autograd::engine::evaluate_function)",
    re.IGNORECASE,
)
_STEP_RANGE = when_used.pattern(
    r"^ProfilerStep\s*#|^(step|iter(ation)?|train(ing)?_step|benchmark_loop)(\b|_?\d+$)", re.IGNORECASE
)
_CHECKPOINT = when_used.pattern(r"save_checkpoint|checkpoint[._]save|(^|[:./ ])checkpoint$|dcp\.save", re.IGNORECASE)
_OS_FILE_OR_NETWORK = when_used.pattern(
    r"(p?p?(read|write)v?|open(at)?|close|f?sync|fdatasync|fopen|fclose|fread|fwrite|fflush|fgets|fputs|lseek"
    r"|stat|fstat|lstat|access|unlink|rename|mkdir|send(to|msg|file)?|recv(from|msg)?|connect|accept|getaddrinfo)"
    r"(64|2|4)?$"
)
_OS_LOCK_OR_SLEEP = when_used.pattern(
    r"pthread_(mutex|rwlock|cond|spin|join|barrier)|sem_(wait|timedwait|clockwait)|futex|nanosleep|clock_nanosleep"
    r"|usleep|sleep|(e?poll|select|pselect|ppoll)(_wait|_pwait)?$|waitpid|wait4"
)


def is_communication_kernel(name: str) -> bool:
    """Whether a kernel is a collective or point-to-point operation."""
    return communication(name) is not None


def is_device_wait(name: str) -> bool:
    """A row of an accelerator that waits for another unit's event, and does no work (MTIA's `event_wait`)."""
    return _DEVICE_WAIT.fullmatch(name) is not None


def is_dma(name: str) -> bool:
    """A row of an accelerator in which its DMA engine moves data."""
    return _DMA.fullmatch(name) is not None


def collective_op(name: str) -> str:
    """The operation in field-standard words (`ncclDevKernel_AllReduce_Sum…` → all_reduce); "" if unknown."""
    if (own := name.removeprefix("gloo:")) in _STANDARD:  # a CPU's, whose name is no kernel's
        return own
    if known := communication(name):
        return known
    plain = re.sub(r"[^a-z]", "", name.lower())
    for needle, op in _OPS:
        if needle in plain:
            return op
    return ""


def is_message_range(name: str) -> bool:
    """A range of gloo's from the post of a send or a receive to the wait for it: whatever the thread does meanwhile, it
    is not in it."""
    return name.startswith("gloo:") and name.removeprefix("gloo:") in POINT_TO_POINT


def is_blocking_call(name: str) -> bool:
    """A runtime call that returns only when the work it names is done."""
    return _BLOCKING.match(name) is not None


def is_launch_call(name: str) -> bool:
    """A runtime call that puts kernels or graphs on a stream."""
    return _LAUNCH.match(name) is not None


def is_kernel_launch(name: str) -> bool:
    """A runtime call that must leave a kernel (or graph) on the device."""
    return _KERNEL_LAUNCH.match(name) is not None


def asks_for_work(name: str) -> bool:
    """A runtime call that may put a kernel, a graph, a copy or a memset on any kind of device."""
    return _WORK.search(name) is not None


def is_allocator_call(name: str) -> bool:
    """A runtime call that allocates or frees device or pinned memory."""
    return _ALLOCATOR.match(name) is not None


def is_loader(name: str) -> bool:
    """A range, operator or Python function in which the thread waits for the data loader."""
    return _LOADER.search(name) is not None


def is_garbage_collection(name: str) -> bool:
    """Python's garbage collector at work."""
    return _GARBAGE.search(name) is not None


def is_host_other(name: str) -> bool:
    """A checkpoint or logging, by the name of its range or Python function."""
    return _HOST_OTHER.search(name) is not None


def is_compilation(name: str) -> bool:
    """Compiling, loading modules or autotuning: what a job does once, in its first steps."""
    return _COMPILATION.search(name) is not None


def is_frame_compilation(name: str) -> bool:
    """An operator that stands for torch.compile at work on a frame, with all that it runs meanwhile."""
    return name == "dynamo" or name.startswith("entire_frame_compile") or "(dynamo_timed)" in name


def compiled_region(name: str) -> str:
    """The compile id (`0/1`) of an operator around a frame that torch.compile compiled; "" for any other name."""
    found = _COMPILED_REGION.match(name)
    return found[1] if found else ""


def is_compiled_graph(name: str) -> bool:
    """An operator that runs a graph which Inductor compiled."""
    return name.startswith("## Call CompiledFxGraph")


def is_compile_wrapper(name: str) -> bool:
    """An operator of torch.compile that computes nothing: around a compiled frame, or on the way to its graph."""
    return _COMPILE_WRAPPER.match(name) is not None


def is_step_range(name: str) -> bool:
    """A range around a whole step: `ProfilerStep#3`, `step 12`, `iteration_7`."""
    return _STEP_RANGE.search(name) is not None


@cache
def phase(name: str) -> str:
    """The phase of a training step that a range or operator names: data, forward, backward, optimizer, checkpoint;
    "" for any other and for one that names several (`forward-backward`)."""
    if is_loader(name):
        return "data"
    if _CHECKPOINT.search(name):
        return "checkpoint"
    found = {kind for match in _PHASE.finditer(name) for kind, text in match.groupdict().items() if text}
    found = {"backward"} if "engine" in found else found
    return found.pop() if len(found) == 1 else ""


def is_file_or_network_call(name: str) -> bool:
    """An operating-system call on a file or a socket."""
    return _OS_FILE_OR_NETWORK.match(name) is not None


WAITS_FOR_GIL = "waiting for Python's GIL"
"""Name of the times in which a thread waited for the interpreter's lock, however they were recorded."""


def is_lock_or_sleep_call(name: str) -> bool:
    """An operating-system call that waits for another thread or for time to pass."""
    return name == WAITS_FOR_GIL or _OS_LOCK_OR_SLEEP.match(name) is not None
