"""What the training thread is in, by hooks, and how long it was off its core meanwhile.

Each mark is the wall clock, the thread's own CPU time and the time it was ready and had no core; between two marks,
wall time less both others is time in which it was blocked.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

FORWARD, BACKWARD, OPTIMIZER, INPUT, HOST, GC = "forward", "backward", "optimizer", "input", "host", "gc"
"""Phases. `host` is a checkpoint; what is none of the others is `forward`, whatever the script computes there."""
MOST = 10_000
"""Marks of one step: of a long evaluation between two steps the later ones are left out, and the last phase goes on."""
BLOCKED_NS = 50_000
"""A shorter time off the core is no wait: locks, page faults."""
LEAST_GC_NS = 100_000
"""A shorter collection is part of what it interrupts."""
Mark = tuple[int, int, int | None, str]
"""Wall clock (ns since the epoch), CPU time, time without a core where the kernel was asked, and the phase that begins
there."""


class ThreadMarks:
    """Marks of the thread that made it, between `hook` and `unhook`."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._phase = FORWARD
        self._within: list[str] = []
        self._collecting: tuple[int, int, int] | None = None
        self._undo: list[Callable[[], None]] = []
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1
        self._last = 0, 0, 0
        self.marks: list[Mark] = [(*self._now(), FORWARD)]

    def hook(self) -> None:
        """Put the marks where torch enters and leaves its loader, backward pass, optimizer and checkpoints."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        from torch.utils.data import dataloader

        self._wrap(dataloader._BaseDataLoaderIter, "__next__", INPUT)
        self._wrap(torch, "save", HOST)
        for module in (torch.autograd, torch.autograd.graph):
            if hasattr(module, "_engine_run_backward"):
                self._wrap(module, "_engine_run_backward", BACKWARD)
        before = register_optimizer_step_pre_hook(lambda *_: self._enter(OPTIMIZER))
        after = register_optimizer_step_post_hook(lambda *_: self._leave(OPTIMIZER))
        self._undo += [before.remove, after.remove]
        gc.callbacks.append(self._on_collection)
        self._undo.append(lambda: gc.callbacks.remove(self._on_collection))

    def unhook(self) -> None:
        """Undo `hook`."""
        while self._undo:
            self._undo.pop()()
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1

    def take(self) -> list[Mark]:
        """The marks since the last call, from its end to now: a step ends, whatever the thread is in."""
        self._phase = FORWARD
        self._within.clear()
        self._last = 0, 0, self._last[2]  # at a step's ends all is read
        self.marks.append((*self._now(), FORWARD))
        taken, self.marks = self.marks, self.marks[-1:]
        return taken

    def _goes_on_in(self, phase: str) -> None:
        """Without a mark where one optimizer calls another."""
        if phase != self._phase:
            self._phase = phase
            if len(self.marks) < MOST:
                self.marks.append((*self._now(), phase))

    def _now(self) -> tuple[int, int, int]:
        """What the kernel is asked costs the most: only where the thread was off its core since the last mark."""
        wall, cpu = time.time_ns(), time.thread_time_ns()
        before, ran, waited = self._last
        if wall - before - (cpu - ran) >= BLOCKED_NS and self._schedstat >= 0:
            waited = int(os.pread(self._schedstat, 64, 0).split()[1])
        self._last = wall, cpu, waited
        return self._last

    def _enter(self, phase: str) -> None:
        if threading.get_ident() == self.thread:
            self._within.append(self._phase)
            self._goes_on_in(phase)

    def _leave(self, phase: str) -> None:
        if threading.get_ident() == self.thread and self._phase == phase:
            self._goes_on_in(self._within.pop())

    def _wrap(self, holder: Any, name: str, phase: str) -> None:
        inner = getattr(holder, name)
        enter, leave = self._enter, self._leave

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            enter(phase)
            try:
                return inner(*args, **kwargs)
            finally:
                leave(phase)

        def put_back() -> None:
            if getattr(holder, name) is wrapped:
                setattr(holder, name, inner)

        setattr(holder, name, wrapped)
        self._undo.append(put_back)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if (
            info["generation"] == 0 or threading.get_ident() != self.thread
        ):  # of the youngest, several a step, all short
            return
        if phase == "start":
            self._collecting = self._now()
        elif self._collecting is not None:
            began, self._collecting = self._collecting, None
            if time.time_ns() - began[0] >= LEAST_GC_NS:
                self.marks += [(*began, GC), (*self._now(), self._phase)]
