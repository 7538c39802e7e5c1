"""The CUDA caching allocator's history and snapshots: on out-of-memory, on demand, and at the end."""

from __future__ import annotations

import pickle
from typing import Any

from gpuscope.instrumented_runtime.record.capture.capture import Quiet
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

# Each entry holds a stack; a step of a large model makes some ten thousand.
HISTORY_ENTRIES = 200_000


class MemorySnapshots(Quiet):
    """Writes `memory/rank{r}_{why}.pickle`, which pytorch.org/memory_viz and `gpuscope analyze` read.

    `mode` is `oom` (history without stacks, written on OOM only) or `on` (with Python stacks, also written on
    demand and at the end).
    """

    name = "memory_snapshot"

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._running = self._ended = False
        self._theirs = False
        """The script records a history of its own: it is neither changed nor ended, and snapshots are of it."""

    def start(self, folder: RankFolder) -> None:
        """Start the history when the script initialises CUDA; never before, and not at all where it does not."""
        import torch

        self._folder = folder
        self._record = torch.cuda.memory._record_memory_history
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)
        self._theirs = enabled()
        torch.cuda.memory._record_memory_history = self._by_the_script
        torch.cuda._lazy_call(self._begin)  # type: ignore[no-untyped-call]

    def _by_the_script(self, *args: Any, **kwargs: Any) -> Any:
        self._theirs = True
        return self._record(*args, **kwargs)

    def _begin(self) -> None:
        import torch

        if self._ended:
            return
        if not self._theirs:
            # Stacks cost microseconds per allocation: only if the history itself was requested.
            context = "all" if self._mode == "on" else None
            self._record(context=context, stacks="python", max_entries=HISTORY_ENTRIES)
        torch._C._cuda_attach_out_of_memory_observer(self._on_oom)  # type: ignore[attr-defined]
        self._running = True

    def stop(self) -> None:
        """Take the final snapshot, if requested, and stop the history."""
        import torch

        self._ended = True
        if torch.cuda.memory._record_memory_history == self._by_the_script:
            torch.cuda.memory._record_memory_history = self._record
        if not self._running:
            return
        if self._mode == "on":
            self.dump("end")
        if not self._theirs:
            self._record(enabled=None)
        self._running = False

    def on_demand(self, name: str) -> None:
        """Take a snapshot on demand while the job runs."""
        if self._running and self._mode == "on":
            self.dump(name)

    def dump(self, why: str) -> None:
        """Write a snapshot."""
        import torch

        path = self._folder.file(f"memory/rank{self._folder.part.rank}_{why}.pickle")
        partial = path.with_name(f".{path.name}.partial")
        snapshot: Any = torch.cuda.memory._snapshot()
        with partial.open("wb") as file:
            pickle.dump(snapshot, file)
        partial.replace(path)
        self._folder.add_file(path, self.name, note=why)

    def _on_oom(self, device: int, wanted: int, total: int, free: int) -> None:
        del total
        self._folder.problem(
            "out_of_memory",
            f"device {device} could not give {wanted:,} bytes ({free:,} free)",
            severity="info",
        )
        try:
            self.dump("oom")
        except Exception as error:  # raised here it would reach the script in place of its own OutOfMemoryError
            lost = f"{self.name}: {error!r}"
            self._folder.problem("memory_snapshot_failed", lost, severity="data_loss")
