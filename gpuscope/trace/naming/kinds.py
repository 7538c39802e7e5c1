"""What a name says: which kernels communicate, which runtime calls block, launch or allocate.

Names are matched on the function's own identifier, never anywhere in the text: `hipMemcpyAsync` holds no
collective, and an operator that only mentions one in its template arguments is compute.
"""

from __future__ import annotations

import re
from functools import cache

from gpuscope import when_used
from gpuscope.trace.naming.communication_kernels import communication

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
