"""Python's garbage collections as ranges (`gc`), so that a trace distinguishes them from other host work."""

from __future__ import annotations

import gc
from typing import Any

from gpuscope.instrumented_runtime.record.capture.capture import Quiet
from gpuscope.instrumented_runtime.record.ranges import Span, listening, span
from gpuscope.instrumented_runtime.record.run_folder import RankFolder


class GcRanges(Quiet):
    """Opens a range when a collection starts and closes it when that collection stops."""

    name = "gc"

    def __init__(self) -> None:
        self._open: Span | None = None

    def start(self, folder: RankFolder) -> None:
        """Subscribe to collections."""
        del folder
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Unsubscribe."""
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        # The collector itself runs under a lock: one collection at a time.
        if phase == "start" and listening():
            self._open = span(f"gc.generation{info['generation']}").__enter__()
        elif phase == "stop" and self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
