"""Keeps torch.compile away from the recorder's own code, which C++ calls between compiled frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def leave_uncompiled(function: Callable[..., Any]) -> None:
    """Have Dynamo skip a function and all that it calls, without importing it as `torch.compiler.disable` does.

    Does nothing in a torch before 2.7, which has no strategies per code object.
    """
    from torch._C import _dynamo

    frames = _dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
