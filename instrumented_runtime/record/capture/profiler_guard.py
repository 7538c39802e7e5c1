"""torch runs one profiler per process and crashes on a second. The script's own profiler takes precedence.

It also corrupts the heap if it stops while one of gloo's threads finishes a collective (`gloo_threads`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.capture.capture import Quiet
from gpuscope.instrumented_runtime.record.gloo import gloo_threads
from gpuscope.instrumented_runtime.record.gloo.collective_log import LOG
from gpuscope.instrumented_runtime.record.run_folder import RankFolder


class ScriptProfilers(Quiet):
    """Lets the script's own profilers stop safely whatever records, also between windows; `beside_nsys` it says what
    such a profiler lacks."""

    name = "script_profilers"

    def __init__(self, *, beside_nsys: bool) -> None:
        self._untold = beside_nsys

    def start(self, folder: RankFolder) -> None:
        """Watch every profiler of this process, the recorder's too."""
        from torch.autograd.profiler import profile

        self._folder = folder
        self._unguard = guard(lambda _: False, self._begun)
        leave: Callable[..., Any] = profile.__exit__
        self._leave = leave

        def settled_leave(self: Any, *error: Any) -> Any:
            if _initialised():
                gloo_threads.settle(LOG.running)
            return leave(self, *error)

        profile.__exit__ = settled_leave  # type: ignore[method-assign]

    def stop(self) -> None:
        """End the watch."""
        from torch.autograd.profiler import profile

        profile.__exit__ = self._leave  # type: ignore[method-assign]
        self._unguard()

    def _begun(self) -> None:
        if self._untold:
            self._untold = False
            self._folder.problem(
                "script_profiler",
                "the script starts a torch.profiler of its own; beside nsys it gets no kernels, the report is whole",
                severity="info",
            )


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
        return leave(self, *error)

    def remove() -> None:
        profile._prepare_trace, profile.__exit__ = prepare, leave  # type: ignore[method-assign]

    profile._prepare_trace, profile.__exit__ = guarded_prepare, guarded_leave  # type: ignore[method-assign]
    return remove


def _initialised() -> bool:
    """Whether there are process groups."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()
