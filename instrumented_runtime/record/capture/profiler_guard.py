"""torch runs one profiler per process and crashes on a second. The script's own profiler takes precedence.

It also corrupts the heap if it stops while one of gloo's threads finishes a collective (`gloo_threads`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.gloo import gloo_threads
from gpuscope.instrumented_runtime.record.gloo.collective_log import LOG


def guard(is_ours: Callable[[Any], bool], release: Callable[[], None]) -> Callable[[], None]:
    """Watch every torch profiler of this process; returns a function that ends the watch.

    `release` is called before a profiler of the script prepares its trace. While one is running, ours
    can't prepare and raises `InputError`.
    """
    from torch.autograd.profiler import profile

    prepare: Callable[[Any], None] = profile._prepare_trace
    leave: Callable[..., Any] = profile.__exit__
    theirs: set[int] = set()

    def guarded_prepare(self: Any) -> None:
        if not is_ours(self):
            theirs.add(id(self))
            release()
        elif theirs:
            raise InputError("the script runs a torch.profiler of its own", hint="record one thing at a time")
        prepare(self)

    def guarded_leave(self: Any, *error: Any) -> Any:
        theirs.discard(id(self))
        if _initialised():
            gloo_threads.settle(LOG.running)
        return leave(self, *error)

    def remove() -> None:
        profile._prepare_trace, profile.__exit__ = prepare, leave  # type: ignore[method-assign]

    profile._prepare_trace, profile.__exit__ = guarded_prepare, guarded_leave  # type: ignore[method-assign]
    return remove


def _initialised() -> bool:
    """Whether there are process groups."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()
