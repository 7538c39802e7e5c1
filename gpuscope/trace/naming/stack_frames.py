"""What the frames of a recorded stack mean: which are the user's own, and what kind of work allocated there.

A frame is one line of text, `name (file:line)`; a stack is its frames, innermost first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice

from gpuscope import when_used

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
