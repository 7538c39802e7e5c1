"""Which framework a job runs and how it is parallelised, from its annotations and process groups."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Literal

from gpuscope import when_used
from gpuscope.when_used import dataclass

_MARKS = (
    # Servers name the ranges around their steps (serving_names.py), their operators, and the files of stacks.
    (
        "sglang",
        ("step[", "sglang", "sgl_kernel", "scheduler."),
        when_used.pattern(r"^step\[[A-Z_]+ bs=|\bsglang(/|::)|\bsgl_kernel\b|^scheduler\.run_batch$", re.MULTILINE),
    ),
    (
        "tensorrt_llm",
        ("[Executor]", "tensorrt_llm"),
        when_used.pattern(r"^\[Executor\] _forward_step|\btensorrt_llm(/|::)", re.MULTILINE),
    ),
    (
        "vllm",
        ("execute_", "vllm", "gpu_model_runner"),
        when_used.pattern(
            r"^execute_(\d+_)?context_\d+\(|^execute_new_\d+_cached_|\bvllm(/|::)|^gpu_model_runner: ", re.MULTILINE
        ),
    ),
    # DeepSpeed wraps its engine's methods in NVTX ranges and record_function (deepspeed/utils/nvtx.py).
    ("deepspeed", ("DeepSpeed", "deepspeed"), when_used.pattern(r"^DeepSpeed\w*\.|\bdeepspeed/", re.MULTILINE)),
    (
        "megatron",
        ("megatron", "Megatron"),
        when_used.pattern(r"\bmegatron/|^megatron\.|^\w*MegatronModule", re.MULTILINE),
    ),
    ("torchtitan", ("torchtitan",), when_used.pattern(r"\btorchtitan/")),
    (
        "lightning",
        ("lightning", "[pl]", "[Strategy]", "[Callback]", "[LightningModule]"),
        when_used.pattern(
            r"\b(pytorch_)?lightning/|^\[pl\]\[|^\[Strategy\]|^\[Callback\]|^\[LightningModule\]", re.MULTILINE
        ),
    ),
    ("transformers", ("transformers",), when_used.pattern(r"\btransformers/trainer")),
    ("accelerate", ("accelerate",), when_used.pattern(r"\baccelerate/")),
    ("horovod", ("horovod", "Horovod"), when_used.pattern(r"\bhorovod/|^Horovod\w+", re.MULTILINE)),
    ("fsdp2", ("FSDP::",), when_used.pattern(r"^FSDP::", re.MULTILINE)),
    ("fsdp", ("FullyShardedDataParallel.",), when_used.pattern(r"^FullyShardedDataParallel\.", re.MULTILINE)),
    ("ddp", ("DistributedDataParallel.",), when_used.pattern(r"^DistributedDataParallel\.", re.MULTILINE)),
)
"""By framework: texts one of which stands in every name that the pattern knows, which are looked for in a hundredth of
its time; the pattern."""

# A process group's description -> the parallelism it serves. Megatron-Core's descriptions
# (parallel_state.py: TENSOR_MODEL_PARALLEL_GROUP…), DeviceMesh's (`mesh_dp_shard`), DeepSpeed's.
_DESCRIPTIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "DATA_PARALLEL_GROUP": "dp",
    "sequence_parallel": "sp",
    "expert_parallel": "ep",
    "model_parallel": "tp",
    "data_parallel": "dp",
}

SERVERS = frozenset({"sglang", "vllm", "tensorrt_llm"})
"""Those that answer requests with a model."""
WRAPPERS = frozenset({"deepspeed", "megatron", "horovod", "ddp", "fsdp", "fsdp2"})
"""Those that reduce gradients for the program."""


_OF_MEGATRON = {"pipeline-timers"}
"""Formats that only jobs of Megatron leave: Primus dumps its stages' times with that backend alone."""
_TIMERS = when_used.pattern(r"^(embedding|layernorm)-grads-all-reduce$|^optimizer-clip-main-grad$", re.MULTILINE)
"""Megatron-LM's timers (megatron/training/training.py), which tables of operations keep. Of other traces gpuscope
itself gives these names to what it finds in them."""


def frameworks(
    names: Iterable[str],
    descriptions: Iterable[str] = (),
    formats: Collection[str] = (),
    among: Collection[str] | None = None,
) -> list[str]:
    """The frameworks, of all or `among` these, that left a mark among the names of a trace's events or of its process
    groups, or its files."""
    lines = "\n".join(names)  # searched as one text: a trace may have 100,000 names
    megatron = (
        _OF_MEGATRON.intersection(formats)
        or any(description.endswith("MODEL_PARALLEL_GROUP") for description in descriptions)
        or ("operations" in formats and _TIMERS.search(lines))
    )
    marks = _MARKS if among is None else [one for one in _MARKS if one[0] in among]
    return [
        mark
        for mark, parts, pattern in marks
        if (any(part in lines for part in parts) and pattern.search(lines)) or (mark == "megatron" and megatron)
    ]


def parallelism(groups: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Degree per kind of parallelism, from (description, size) of each process group.

    Only kinds of more than one rank; a mesh dimension counts under its own name (`mesh_tp` → tp).
    """
    degrees: dict[str, int] = {}
    for description, size in groups:
        kind = parallelism_of(description)
        if kind is not None and size > 1:
            degrees.setdefault(kind, size)
    return degrees


def parallelism_of(description: str) -> str | None:
    """The kind of parallelism that a process group of this description serves; None where it does not say."""
    if description.startswith("mesh_"):
        return description.removeprefix("mesh_")
    return _DESCRIPTIONS.get(description)


# What kind of program a trace is of: it decides which advice applies and in whose words.

Program = Literal["pytorch", "jax", "native", "server"]
"""`native` is a program that calls CUDA or HIP itself, in C++ or another language; `server` answers requests with a
model and trains nothing."""

_PYTORCH = when_used.pattern(
    # Operators, ATen's kernels, autograd, Inductor's and nvFuser's kernels, files of a recorded stack.
    r"\b(aten|c10d|c10)::|\bat::(native|cuda)::|\btorch(::|\.|/)|^ProfilerStep#|^autograd::engine|^Optimizer\.(step|zero_grad)#"
    r"|^triton_(poi|per|red|tem|for)_fused|\bnvfuser|\bCUDACachingAllocator\b|^enumerate\(DataLoader\)"
)
_JAX = when_used.pattern(
    # XLA's NVTX domain and module ranges, its traces of host functions, what jit names, JAX's own kernels.
    r"^XlaModule\b|^XlaOp\b|^TSL:|\bjit[_(]\w+|\bpjit\b|\bjax(::|/|\.)|\bxla::|^PjRt|^PjitFunction"
)
_TRAINS = when_used.pattern(r"^Optimizer\.(step|zero_grad)#|^autograd::engine|Backward\d*$|_backward\b")
"""Of a job that does both (reinforcement learning) the training part decides."""
_PYTORCH_FORMATS = frozenset({"kineto", "ascend", "flight-recorder", "allocator-snapshot"})
"""Formats that only PyTorch (or its Ascend build) writes."""


def program(names: Iterable[str], formats: Collection[str], any_events: bool) -> Program | None:
    """The kind of program that recorded these names in files of these formats (`trace.sources[].format`).

    Servers are told by their steps and operators, PyTorch's and XLA's names by whole identifiers. XLA goes before
    PyTorch: JAX jobs may use torch to load data. Without any, a program with events is `native`; None where nothing was
    recorded that could tell.
    """
    texts = list(names)
    if frameworks(texts, among=SERVERS) and not any(_TRAINS.search(name) for name in texts):
        return "server"
    if formats and set(formats) & _PYTORCH_FORMATS:
        return "pytorch"
    if any(_JAX.search(name) for name in texts):
        return "jax"
    if frameworks(texts) or any(_PYTORCH.search(name) for name in texts):
        return "pytorch"
    return "native" if any_events else None


# What inference servers call their steps: the phase, and how many requests and tokens are in the batch.
#
# Each server names the range around a step after its batch: vLLM (`vllm/v1/worker/gpu_worker.py`, and `capture_…` in
# `gpu_model_runner.py`), SGLang from 0.5.12 on (`build_step_span_name`), TensorRT-LLM (`pyexecutor/py_executor.py`,
# NVTX)
# and AMD's ATOM.

Phase = Literal["prefill", "decode", "mixed", "capture"]


@dataclass(frozen=True)
class Batch:
    """What one step works on; None where its name does not tell."""

    phase: Phase | None
    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    decode_requests: int | None = None
    decode_tokens: int | None = None
    """Of a capture, the size that is captured."""


def _counts(prefills: int, prefill_tokens: int | None, decodes: int, decode_tokens: int | None) -> Batch:
    phase: Phase | None = ("mixed" if decodes else "prefill") if prefills else "decode" if decodes else None
    return Batch(phase, prefills, prefill_tokens if prefills else 0, decodes, decode_tokens if decodes else 0)


def _vllm(found: re.Match[str]) -> Batch:
    return _counts(*(int(text) for text in found.groups()))


def _older_vllm(found: re.Match[str]) -> Batch:
    # A later chunk of a prompt counts as cached too: such a step looks like decode.
    return _counts(int(found[1]), None, int(found[2]), int(found[2]) or None)


def _sglang(found: re.Match[str]) -> Batch | None:
    mode, size, tokens = found[1], int(found[2]), found[3]
    told = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", found[4])}
    if mode in ("EXTEND", "SPLIT_PREFILL"):
        return Batch("prefill", size, int(tokens) if tokens else told.get("c_sq"), 0, 0)
    if mode == "DECODE":
        return Batch("decode", 0, 0, size, told.get("g_sq", size))
    if mode in ("VERIFY", "TARGET_VERIFY"):  # how many of the drafted tokens it accepts is not told
        return Batch("decode", 0, 0, size)
    if mode == "MIXED":
        return Batch("mixed", told.get("c"), told.get("c_sq"), told.get("g"), told.get("g_sq"))
    return Batch(None) if mode == "IDLE" else None  # drafts are parts of a step


def _tensorrt_llm(found: re.Match[str]) -> Batch:
    return _counts(int(found[1]), int(found[2]) if found[2] else None, int(found[3]), int(found[3]))


def _atom(found: re.Match[str]) -> Batch:
    told = {name: int(number) for name, number in re.findall(r"\b(p|d|bs|tok)=(\d+)", found[2])}
    size, tokens = told.get("bs", 0), told.get("tok")
    if found[1] == "prefill":
        return Batch("prefill", size, tokens, 0, 0)
    if told.get("p"):
        return Batch("mixed", told["p"], None, told.get("d"), told.get("d"))
    return Batch("decode", 0, 0, size, tokens)


_NAMES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], Batch | None]], ...] = (
    # execute_context_1(512)_generation_32(32); with detailed_trace_annotation
    # execute_8192_context_9(sq8155sk8430sqsq…sqsk…)_generation_37(sq37sk34489…)
    (
        "vLLM",
        when_used.pattern(
            r"execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)$"
        ),
        _vllm,
    ),
    ("vLLM", when_used.pattern(r"execute_new_(\d+)_cached_(\d+)$"), _older_vllm),  # 0.11.1 to 0.13
    (
        "vLLM",
        when_used.pattern(r"capture_(\d+)_(?:FULL|PIECEWISE|\w*(?:decode|prefill))$"),
        lambda found: Batch("capture", decode_tokens=int(found[1])),
    ),
    ("SGLang", when_used.pattern(r"step\[([A-Z]+(?:_[A-Z0-9]+)*) bs=(\d+)(?: toks=(\d+))?([^\]]*)\]$"), _sglang),
    (
        "TensorRT-LLM",
        when_used.pattern(
            r"\[Executor\] _forward_step(?: \d+)?: (\d+) ctx reqs, (?:(\d+) ctx tokens, )?(\d+) gen reqs"
        ),
        _tensorrt_llm,
    ),
    ("ATOM", when_used.pattern(r"(prefill|decode)\[(bs=\d+.*)\]$"), _atom),
)


_BEGIN = ("execute_", "capture_", "step[", "[Executor] ", "prefill[", "decode[")
"""How each of these names begins, which few others do."""
_DIGITS = 18
"""Of an integer that fits a column."""


def batch_of(name: str) -> Batch | None:
    """The batch of the step that a range of this name is; None where it is no server's step.

    >>> batch_of("execute_context_1(512)_generation_32(32)")
    Batch(phase='mixed', prefill_requests=1, prefill_tokens=512, decode_requests=32, decode_tokens=32)
    """
    for _, pattern, read in _NAMES if name.startswith(_BEGIN) else ():
        if found := pattern.match(name):
            fits = all(len(digits) <= _DIGITS for digits in re.findall(r"\d+", name))
            return read(found) if fits else None
    return None


def server_of(name: str) -> str:
    """The server that names its steps so; empty for other names."""
    return next((server for server, pattern, _ in _NAMES if pattern.match(name)), "")


def is_server_step(name: str) -> bool:
    """Whether a range is a step of a server."""
    return batch_of(name) is not None


# Attention over a cache in pages, which training has none of, and the kernels that write it.
_CACHED = when_used.pattern(
    r"paged|kv_?cache|reshape_and_cache|batch_?(decode|prefill)|unified_attention|mla_decode"
    r"|masked_multihead|flash_?mla|decode_attention|extend_attention",
    re.IGNORECASE,
)
_DECODES = when_used.pattern(r"decode|paged_attention|masked_multihead|splitkv_combine|attention_3d", re.IGNORECASE)
_PREFILLS = when_used.pattern(r"prefill|extend_attention|context", re.IGNORECASE)


def works_on_a_cache(kernel: str) -> bool:
    """Whether a kernel reads or writes the key-value cache of a server.

    >>> works_on_a_cache("kernel_unified_attention_2d")
    True
    """
    return _CACHED.search(kernel) is not None


def attention_phase(kernel: str) -> Phase | None:
    """The phase that a kernel of attention is made for, where its name says so. FlashInfer's prefill kernels run
    decode too where the batch is captured: ask for graphs first."""
    if _DECODES.search(kernel):
        return "decode"
    return "prefill" if _PREFILLS.search(kernel) else None


# What the frames of a recorded stack mean: which are the user's own, and what kind of work allocated there.
#
# A frame is one line of text, `name (file:line)`; a stack is its frames, innermost first.

FRAMES = 24
"""Frames kept of a stack, from the innermost outwards; the user's own and autograd's node are kept beyond."""
OWN_FRAMES = 8
"""The user's own frames that are kept beyond."""
FRAME_TEXT = 1000
"""Characters kept of a frame's name, and of its file's: C++ templates are long, and say little after that."""

_LIBRARY = when_used.pattern(
    # Installed packages; the standard library; code without a file of its own; what torch.compile generated.
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3(\.\d+)?[/\\]|[/\\]python3\d*\.zip[/\\]|^<frozen "
    r"|^<eval_with_key>|[/\\]torchinductor_|^\?\?$|^$|^(runpy|threading|contextlib|functools)\.py$"
    # torch where it was built from source: known parts of its package.
    r"|(^|[/\\])torch(_npu)?[/\\](_\w+|amp|autograd|cuda|distributed|fx|jit|nn|npu|optim|profiler|utils)[/\\]"
    r"|(^|[/\\])torch(_npu)?[/\\](_\w+|functional|overrides|random|serialization)\.py$"
)
_TORCH = when_used.pattern(r"(^|[/\\])(torch|torch_npu)[/\\]")
_ALLOCATOR = when_used.pattern(
    r"unwind|CapturedTraceback|gather|CachingAllocator|empty_generic|empty_cuda|empty_strided_cuda"
)
"""Frames of the allocator and of the recording itself: every stack begins with them."""
_NODE = when_used.pattern(
    r"\b(\w+Backward\d*|AccumulateGrad)(?:::apply|_apply_functional|::accumulateGrad|_apply_impl)"
)
"""Autograd's node that ran, in C++ stacks of the thread of the backward pass."""
_PLACE = when_used.pattern(r" \((.*):[^:]*\)$", re.DOTALL)


class StackKind(Enum):
    """What allocated, as its stack shows; exactly one per stack."""

    FORWARD = "forward"
    ATTENTION_SCORES = "attention scores"
    CHECKPOINTED = "forward under activation checkpointing"
    BACKWARD = "backward"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    OPTIMIZER_TEMPORARIES = "optimizer temporaries"
    LOADING = "data loading"
    SETUP = "model set-up"
    OTHER = "other"
    NO_STACK = "no stack recorded"
    BEFORE = "before the recording"


ACTIVATIONS = (StackKind.FORWARD, StackKind.ATTENTION_SCORES)
"""What the forward pass allocates, recomputed on no account."""


def frame_text(name: str, file: str, line: object) -> tuple[str, bool]:
    """A frame as text, and whether its name or file had to be cut for it."""
    return f"{_cut(name)} ({_cut(file)}:{str(line)[:20]})", len(name) > FRAME_TEXT or len(file) > FRAME_TEXT


def _cut(text: str) -> str:
    """The end goes of what is too long; «…» stands for it."""
    return text if len(text) <= FRAME_TEXT else text[: FRAME_TEXT - 1] + "…"


def informative(frames: Iterable[tuple[str, str, object]]) -> list[tuple[str, str, object]]:
    """Of the frames of a stack (name, file, line) those worth keeping: Python's where there are any (C++'s are many and
    say less; a softmax that Python called directly, torch.softmax, shows in them alone), without the allocator's; the
    innermost, then the user's own that lie further out."""
    every = list(frames)
    python = [frame for frame in every if frame[1].endswith(".py") or frame[1].startswith("<")]
    if python and not any("softmax" in frame[0] for frame in python):
        called = (frame[0] for frame in every if "softmax" in frame[0][:FRAME_TEXT])
        python = [*((name, "??", 0) for name in islice(called, 1)), *python]
    chosen = python or [frame for frame in every if not _ALLOCATOR.search(frame[0][:FRAME_TEXT])] or every
    beyond = [f for f in chosen[FRAMES:] if not _LIBRARY.search(f[1][:FRAME_TEXT]) or _NODE.search(f[0][:FRAME_TEXT])]
    return chosen[:FRAMES] + beyond[:OWN_FRAMES]


def file_of(frame: str) -> str:
    """The file that a frame names; empty where it names none."""
    found = _PLACE.search(frame)
    return found[1] if found else ""


def own_frames(frames: Sequence[str]) -> list[str]:
    """The user's own frames: neither of the standard library, nor of an installed package, nor of torch. Where there
    are none, those of installed packages but torch; where there are none of these either, all."""
    own = [frame for frame in frames if not _LIBRARY.search(file_of(frame))]
    if own:
        return own
    packages = [f for f in frames if re.search(r"[/\\](site|dist)-packages[/\\]", f) and not _TORCH.search(file_of(f))]
    return packages or list(frames)


def own_line(frames: Sequence[str]) -> str:
    """Where the user's code asked for memory: the innermost frame of their own; in the thread of the backward pass,
    which has none, autograd's node. Empty without frames."""
    if node := backward_node(frames):
        return node
    return next(iter(own_frames(frames)), "")


def backward_node(frames: Sequence[str]) -> str:
    """The node of autograd that a stack of C++ frames ran in (`MulBackward0`); empty for other stacks."""
    if any(file_of(frame).endswith(".py") for frame in frames):
        return ""
    return next((found[1] for frame in frames if (found := _NODE.search(frame))), "")


def kind_of(frames: Sequence[str]) -> StackKind:
    """What allocated, by the names of functions and the files of torch that a stack goes through."""
    if not frames:
        return StackKind.NO_STACK
    if node := backward_node(frames):
        return StackKind.GRADIENTS if node == "AccumulateGrad" else StackKind.BACKWARD
    names = [frame.partition(" (")[0] for frame in frames]
    files = [file_of(frame).replace("\\", "/") for frame in frames]
    if any("/optim/" in file or file.endswith("optimizer.py") for file in files):
        temporary = any(name.startswith("_multi_tensor_") for name in names)
        return StackKind.OPTIMIZER_TEMPORARIES if temporary else StackKind.OPTIMIZER
    if any(file.endswith("torch/utils/checkpoint.py") for file in files):
        return StackKind.CHECKPOINTED
    if "backward" in names or any("torch/autograd/" in file for file in files) or "autograd::Engine" in "".join(names):
        return StackKind.BACKWARD
    if any("/utils/data/" in file for file in files):
        return StackKind.LOADING
    if any(name in ("forward", "_call_impl") for name in names):
        return StackKind.ATTENTION_SCORES if _scores(names, files) else StackKind.FORWARD
    if any(
        name in ("_apply", "load_state_dict", "reset_parameters") or file.endswith("/nn/init.py")
        for name, file in zip(names, files, strict=True)
    ):
        return StackKind.SETUP
    return StackKind.OTHER


def _scores(names: Sequence[str], files: Sequence[str]) -> bool:
    """Whether a softmax within attention allocated: the matrix of scores, quadratic in the length of the sequence."""
    return any("softmax" in name for name in names) and _attends(names, files)


def within_attention(frames: Sequence[str]) -> bool:
    """Whether a stack goes through a function or file of attention."""
    return _attends([frame.partition(" (")[0] for frame in frames], [file_of(frame) for frame in frames])


def _attends(names: Sequence[str], files: Sequence[str]) -> bool:
    words = [*names, *(file.replace("\\", "/").rpartition("/")[2] for file in files)]
    return any("attention" in word.lower() or "attn" in word.lower() for word in words)


_PYTHON_FRAME = when_used.pattern(r"^(?P<file>.+\.py)\(\d+\): ")


def is_own_frame(name: str) -> bool:
    """Whether a Python frame as torch.profiler writes it (`train.py(12): step`, the file below one of `sys.path`) is
    neither of the standard library, nor of torch, nor of an installed package whose path is there whole."""
    found = _PYTHON_FRAME.match(name)
    if found is None:
        return False
    file = found["file"]
    first = re.split(r"[/\\]", file)[0].removesuffix(".py")
    return first not in sys.stdlib_module_names and first != "torch" and not _LIBRARY.search(file)


OFF_CORE = "not on a core"
"""Name of the time that a thread was off its core within no call: another one ran there, or it waited unrecorded."""

_LIBRARY_FILE = when_used.pattern(
    # What the system, a package or a module of a cluster installs; the interpreter, the kernel, the profiler.
    r"^/(usr|lib\w*|opt|proc|snap|nix|gnu)/|[/\\](site|dist)-packages[/\\]|(^|/)(python\d*(\.\d+)?|ld-linux[-.\w]*)$|^\["
    r"|nsight|(^|/)lib(python|cuda|cudart|cupti|nccl|mpi|stdc\+\+|gcc_s|c|m|pthread|dl|rt|gomp)[-.\d]\S*$",
    re.IGNORECASE,
)


def function_text(name: str, file: str) -> str:
    """A native function that a sampled stack names: with its file in brackets (`memcpy [libc.so.6]`) where that is a
    library, not the program itself."""
    library = bool(file) and _LIBRARY_FILE.search(file)
    return f"{name} [{file.rpartition('/')[2].strip('[]')}]" if library else name


def is_own_function(name: str) -> bool:
    """Whether a function that a sampled stack names (`function_text`) is the user's own: a Python frame of theirs, or a
    function of the program itself."""
    if _PYTHON_FRAME.match(name):
        return is_own_frame(name)
    return " [" not in name and name not in ("_start", OFF_CORE)
