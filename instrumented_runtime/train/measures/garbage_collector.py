"""Python's garbage collector: by hand every so many steps, and timed whoever starts it."""

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
        """Begin to listen, and to control."""
        gc.callbacks.append(self._hear)
        if self.every:
            gc.collect()
            gc.freeze()  # what lives through set-up is not looked at again
            gc.disable()

    def stop(self) -> None:
        """Give Python its collector back."""
        gc.callbacks.remove(self._hear)
        if self.every:
            gc.enable()
            gc.unfreeze()

    def after_step(self, step: int) -> None:
        """Collect, if it is time. The range is drawn by the session, as for any other collection."""
        if self.every and (step + 1) % self.every == 0:
            gc.collect(1)

    def take(self) -> int:
        """Nanoseconds spent in collections since the last call."""
        taken, self.collected_ns = self.collected_ns, 0
        return taken

    def _hear(self, phase: str, info: dict[str, Any]) -> None:  # noqa: ARG002
        if phase == "start":
            self._started_ns = time.perf_counter_ns()
        else:
            self.collected_ns += time.perf_counter_ns() - self._started_ns
