"""A watchdog thread that detects a hang while the main thread is stuck, and names the rank and the collective.

Each rank's thread polls its own pending collectives. When one exceeds the limit, the thread writes its state into
`RUN/hang/`; the threads of the other ranks see that folder and write theirs too, so that a rank that never
joined reports where it is instead. The lowest rank that has every report, or has waited long enough for them,
gives the verdict. `touch RUN/dump` makes every rank dump without a hang.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuscope.instrumented_runtime.record.capture.capture import Quiet
from gpuscope.instrumented_runtime.record.gloo.collective_log import LOG, Collective
from gpuscope.instrumented_runtime.record.hang.flight_recorder_dumps import FlightRecorder
from gpuscope.instrumented_runtime.record.hang.hang_verdict import progress, verdict
from gpuscope.instrumented_runtime.record.hang.nccl_progress import collectives_in
from gpuscope.instrumented_runtime.record.hang.torch_recorder import recorded
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

POLL_S = 0.25
NCCL_POLL_S = 5.0
# How long to wait for the other ranks' reports before giving the verdict without them.
PATIENCE_S = 3.0
ON_DEMAND = "dump"


class HangWatch(Quiet):
    """Watches this rank's collectives. With `timeout_s` 0 it only serves dumps on demand."""

    name = "hang_watch"

    def __init__(
        self,
        timeout_s: float,
        recorder: FlightRecorder | None,
        on_demand: Callable[[str], None] | None = None,
    ) -> None:
        self._timeout_ns = int(timeout_s * 1e9)
        self._recorder = recorder
        self._on_demand = on_demand
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported = False
        self._next_nccl = 0.0
        self._demand: float | None = None
        self._demands = 0

    def start(self, folder: RankFolder) -> None:
        """Start the thread."""
        self._folder = folder
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="gpuscope-hang-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it found stays."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=PATIENCE_S + 1)

    @property
    def _hang(self) -> Path:
        return self._folder.files / "hang"

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            try:
                self._poll()
            except Exception as error:
                self._folder.problem("hang_watch_failed", f"hang watch: {error!r}", severity="data_loss")
                return

    def _poll(self) -> None:
        demand = self._folder.path / ON_DEMAND
        with contextlib.suppress(FileNotFoundError):
            touched = demand.stat().st_mtime
            if self._demand != touched:
                self._demand = touched
                self._dump_on_demand()
        if self._reported or not self._timeout_ns:
            return
        overdue = [entry for entry in self._pending() if time.time_ns() - entry.issued_ns > self._timeout_ns]
        if overdue or self._hang.exists():
            self._reported = True
            self._report(overdue[0].issued_ns if overdue else None)

    def _pending(self) -> list[Collective]:
        """gloo's, and every few seconds NCCL's too: reading its recorder costs more."""
        pending = LOG.pending()
        if time.monotonic() >= self._next_nccl:
            self._next_nccl = time.monotonic() + NCCL_POLL_S
            _, active = collectives_in(recorded(stacks=False, only_active=True))
            pending += [entry for entry in active if entry.completed_ns is None]
        return pending

    def _dump_on_demand(self) -> None:
        self._demands += 1
        subfolder = f"demand{self._demands}"
        if self._recorder is not None:
            self._recorder.dump(note="on demand", subfolder=subfolder, final=False)
        self._stacks(f"{subfolder}/stacks_rank{self._folder.part.rank}.txt")
        if self._on_demand is not None:
            self._on_demand(subfolder)

    def _report(self, since_ns: int | None) -> None:
        self._hang.mkdir(exist_ok=True)
        rank = self._folder.part.rank
        # The stacks first: another rank's verdict may end the job.
        self._stacks(f"hang/stacks_rank{rank}.txt")
        groups, collectives = collectives_in(recorded(stacks=False))
        state = progress([*LOG.groups.values(), *groups], [*LOG.latest, *collectives], at=_where(self._main))
        partial = self._hang / f".rank{rank}"
        partial.write_text(json.dumps(state), encoding="utf-8")
        partial.replace(self._hang / f"rank{rank}.json")
        if self._recorder is not None:
            self._recorder.dump(note="on a hang")
        reports = self._wait_for_the_others()
        if rank == min(reports):
            message = verdict(reports, self._folder.part.world_size)
            waited = f" ({(time.time_ns() - since_ns) / 1e9:.1f} s)" if since_ns else ""
            self._folder.problem("hang", message + waited)

    def _wait_for_the_others(self) -> dict[int, dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            files = sorted(self._hang.glob("rank*.json"))
            if len(files) >= self._folder.part.world_size or time.monotonic() > deadline:
                return {int(f.stem.removeprefix("rank")): json.loads(f.read_text()) for f in files}
            time.sleep(POLL_S)

    def _stacks(self, name: str) -> None:
        path = self._folder.file(name)
        with path.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        self._folder.add_file(path, "stacks")


def _where(thread: int) -> str:
    """File, line and function of a thread's innermost frame outside torch."""
    frame = sys._current_frames().get(thread)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_library(filename: str) -> bool:
    return "/torch/" in filename or "instrumented_runtime/gloo_trace" in filename or filename.startswith("<")
