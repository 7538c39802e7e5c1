"""Python's garbage collector: run every N steps on request, and timed whatever starts it."""

from __future__ import annotations

import gc
import time
from typing import Any


class GarbageCollector:
    """Times collections; with `every` > 0 it also takes them over, so that they come between steps and
    at the same step on all ranks: one rank's collection is every other rank's wait."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.collected_ns = 0
        self._started_ns = 0

    def start(self) -> None:
        """Start timing, and take over collections if configured."""
        gc.callbacks.append(self._on_collection)
        if self.every:
            gc.collect()
            gc.freeze()  # objects that survive set-up are not scanned again
            gc.disable()

    def stop(self) -> None:
        """Restore Python's own collector."""
        gc.callbacks.remove(self._on_collection)
        if self.every:
            gc.enable()
            gc.unfreeze()

    def after_step(self, step: int) -> None:
        """Collect, if due. The session records the range, as for any other collection."""
        if self.every and (step + 1) % self.every == 0:
            gc.collect(1)

    def take(self) -> int:
        """Nanoseconds spent in collections since the last call."""
        taken, self.collected_ns = self.collected_ns, 0
        return taken

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:  # noqa: ARG002
        if phase == "start":
            self._started_ns = time.perf_counter_ns()
        else:
            self.collected_ns += time.perf_counter_ns() - self._started_ns
