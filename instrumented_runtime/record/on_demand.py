"""Windows recorded when somebody asks, while the job goes on: `touch RUN/record`, or SIGUSR2.

All ranks must record the same steps. Rank 0 sees the request, names a step far enough ahead for every rank to learn of
it, and writes it into the run folder; each rank reads that file between steps. It is written in place and opened anew
each time, since on NFS that is what shows other hosts the change (close-to-open consistency).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from gpuscope.instrumented_runtime.record.run_folder import PARTS, RankFolder
from gpuscope.sources.run_manifest import REQUEST, window_request

# The protocol of a capture: start, step, stop; it writes into one rank's folder.


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


# The CUDA caching allocator's history and snapshots: on out-of-memory, on demand, and at the end.

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
        """Called as CUDA begins: what is raised here would reach the script as an error of its own."""
        try:
            self._begin_history()
        except Exception as error:  # an allocator without history (CUDAPluggableAllocator), another torch
            with contextlib.suppress(Exception):
                self._folder.problem("memory_snapshot_failed", f"{self.name}: {error!r}", severity="data_loss")

    def _begin_history(self) -> None:
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


SIGNAL = "SIGUSR2"
_WINDOW = "window.json"
_NO_WINDOW = b"{}"  # an empty file would be taken for a broken trace
POLL_S = 0.5
"""Steps shorter than this don't look for a request each time: the run folder may be on shared storage."""
AHEAD_S = 2.0
"""How far ahead of the request its window begins, so that every rank has looked for it by then."""

TIMED = 3
"""Steps to time before a window can be placed."""


@dataclass(frozen=True)
class Window:
    """What all ranks record: the `number`-th window, its profiler warming up from step `first` on."""

    number: int
    first: int
    active: int
    ranks: tuple[int, ...] = ()
    """Those that record; empty: all."""


class OnDemand:
    """Starts a capture for each window that is asked for, into a folder of its own.

    `make(first, active)` gives the capture that warms up from step `first` on and then records; `last(first, active)`
    is its last step. With `once` only the first request counts.
    """

    name = "on_demand"

    def __init__(self, make: Callable[[int, int], Capture], *, warmup: int, active: int, once: bool = False) -> None:
        self._make, self._warmup, self._active, self._once = make, warmup, active, once
        self._capture: Capture | None = None
        self._until = -1
        self._seen = 0
        self._looked = 0.0
        self._first_end: float | None = None
        self._steps = 0
        self._told = _NO_WINDOW

    def start(self, folder: RankFolder) -> None:
        """Listen for the file and the signal; nothing is recorded yet."""
        self._folder = folder
        self._leads = folder.part.rank == 0
        self._request, self._window_file = str(folder.path / REQUEST), str(folder.path / PARTS / _WINDOW)
        if self._leads:
            Path(self._window_file).write_bytes(_NO_WINDOW)
        if not listen(folder.path):
            folder.problem(
                "signal_taken",
                f"{SIGNAL} has a handler of the script's own: `touch RUN/{REQUEST}` instead",
                severity="info",
            )

    def step(self, step: int) -> None:
        """Go on with an open window; else look for a request."""
        now = time.monotonic()
        if self._first_end is None:
            self._first_end = now
        else:
            self._steps += 1
        if self._capture is not None:
            self._advance(self._capture, step)
            return
        if now - self._looked < POLL_S or (self._once and self._seen):
            return
        self._looked = now
        if self._leads:
            self._announce(step, now)
        window = self._announced()
        if window is not None and window.number > self._seen:
            self._open(window, step)

    def _advance(self, capture: Capture, step: int) -> None:
        try:
            capture.step(step)
        except BaseException:
            self._capture = None
            raise
        if step >= self._until:
            self._capture = None
            capture.stop()

    def stop(self) -> None:
        """Close an open window; a request that led to none is told."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.stop()
        elif (self._folder.path / REQUEST).exists():
            self._unanswered()

    def _unanswered(self) -> None:
        """Say why a request led to no window."""
        if self._leads:
            self._folder.problem(
                "window_too_late", f"the script ended before the window that {REQUEST} asked for", severity="data_loss"
            )
        elif not (self._folder.path / PARTS / "rank0.json").exists() and self._folder.part.local_rank == 0:
            self._folder.problem(
                "window_not_shared",
                "no window: rank 0, which names its steps, records into another folder; windows "
                "on demand need one run folder for all ranks",
                severity="data_loss",
            )

    def _announce(self, step: int, now: float) -> None:
        """Turn a request into a window, once it is known how long a step takes."""
        if self._steps < TIMED:
            return
        try:
            with open(self._request, encoding="utf-8", errors="replace") as file:
                text = file.read().strip()
            os.unlink(self._request)
        except OSError:
            return
        per_step = (now - (self._first_end or now)) / self._steps
        ahead = max(2, math.ceil((AHEAD_S + POLL_S) / max(per_step, 1e-6)))
        asked = window_request(text)
        window = Window(self._seen + 1, step + 1 + ahead, asked.steps or self._active, asked.ranks)
        Path(self._window_file).write_text(json.dumps(asdict(window)), encoding="utf-8")

    def _announced(self) -> Window | None:
        """The window that rank 0 named last; None where none was, it was returned, or it is just being written."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            with open(self._window_file, "rb", buffering=0) as file:
                told = file.read()
            if told != self._told:
                window, self._told = Window(**json.loads(told)), told
                return window
        return None

    def _open(self, window: Window, step: int) -> None:
        self._seen = window.number
        if window.ranks and self._folder.part.rank not in window.ranks:
            return
        self._until = window.first + self._warmup + window.active - 1
        first = max(window.first, step + 1)
        active = self._until - first - self._warmup + 1
        if active < window.active:
            self._folder.problem(
                "window_late",
                f"window {window.number} begins with step {window.first}, this rank saw it in step "
                f"{step}: it records {max(active, 0)} of {window.active} steps",
                severity="data_loss",
            )
        if active < 1:
            return
        capture = self._make(first, active)
        capture.start(self._folder.below(f"window{window.number}"))
        self._capture = capture


def listen(folder: Path) -> bool:
    """Have SIGUSR2 ask for a window in this process; False where the script has a handler of its own."""
    number = getattr(signal, SIGNAL, None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return True
    before = signal.getsignal(number)
    if getattr(before, "gpuscope", False):
        return True
    if before is not signal.SIG_DFL:
        return False

    def ask(_number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.close(os.open(folder / REQUEST, os.O_CREAT | os.O_WRONLY, 0o644))

    ask.gpuscope = True  # type: ignore[attr-defined]
    signal.signal(number, ask)
    return True
