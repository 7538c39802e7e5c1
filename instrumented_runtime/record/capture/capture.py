"""The protocol of a capture: start, step, stop; it writes into one rank's folder."""

from __future__ import annotations

from typing import Protocol

from gpuscope.instrumented_runtime.record.run_folder import RankFolder


class Capture(Protocol):
    """One kind of recording in one rank. A method that raises ends this capture, not the job."""

    name: str

    def start(self, folder: RankFolder) -> None:
        """Begin; called once, in the main thread."""

    def step(self, step: int) -> None:
        """Training step `step` (from 0) has just ended; called in the thread that trains."""

    def stop(self) -> None:
        """Write what is left and list it in the folder; called once, also after an exception."""


class Quiet:
    """A capture that ignores steps: the session does not call it."""

    def step(self, step: int) -> None:
        del step
