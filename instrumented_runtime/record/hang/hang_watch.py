"""A watchdog thread that detects a hang while the main thread is stuck, and names the rank and the collective.

Each rank's thread polls its own pending collectives. When one exceeds the limit, the thread writes its state into
`RUN/hang/`; the threads of the other ranks see that folder and write theirs too, so that a rank that never
joined reports where it is instead. The lowest rank that has every report, or has waited long enough for them,
gives the verdict. Of ranks on its host that did not answer it asks the kernel and their C signal handlers
(`silent_ranks`). `touch RUN/dump` makes every rank dump without a hang.

Where all that waited goes on after all, it was a pause: the verdict is withdrawn, told as a pause with its length, and
what was written moves to `RUN/pause1/`; the next hang is reported like the first.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuscope.instrumented_runtime.record.capture.capture import Quiet
from gpuscope.instrumented_runtime.record.gloo.collective_log import LOG, Collective
from gpuscope.instrumented_runtime.record.hang.flight_recorder_dumps import FlightRecorder
from gpuscope.instrumented_runtime.record.hang.hang_verdict import progress, verdict
from gpuscope.instrumented_runtime.record.hang.nccl_progress import collectives_in
from gpuscope.instrumented_runtime.record.hang.reported_hang import FOLDER, ON_A_HANG, ReportedHang
from gpuscope.instrumented_runtime.record.hang.silent_ranks import SilentRanks
from gpuscope.instrumented_runtime.record.hang.torch_recorder import has_nccl, recorded
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

POLL_S, LONGEST_POLL_S = 0.25, 1.0
"""A look takes the GIL from the training thread: the longer the limit, the rarer."""
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
        self._poll_s = min(LONGEST_POLL_S, max(POLL_S, timeout_s / 60 or LONGEST_POLL_S))
        self._recorder = recorder
        self._on_demand = on_demand
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: ReportedHang | None = None
        self._heads: dict[str, tuple[Collective, int]] = {}
        self._nccl: list[Collective] = []
        self._next_nccl = 0.0
        self._demand: float | None = None
        self._demands = 0

    def start(self, folder: RankFolder) -> None:
        """Start the thread."""
        self._folder, self._dump_request = folder, str(folder.path / ON_DEMAND)
        self._dumps = str(self._hang)
        self._main = threading.get_ident()
        self._silent = SilentRanks(folder)
        self._thread = threading.Thread(target=self._watch, name="gpuscope-hang-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a hang that it found stays, unless all ranks went on since."""
        self._stopped.set()
        self._silent.close()
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join(timeout=PATIENCE_S + 1)
        deadline = time.monotonic() + PATIENCE_S
        self._next_nccl = 0.0
        while self._reported is not None and not self._withdrawn(self._pending()) and time.monotonic() < deadline:
            if not self._reported.over:
                return
            time.sleep(POLL_S)

    @property
    def _hang(self) -> Path:
        return self._folder.files / FOLDER

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_s):
            try:
                self._poll()
            except Exception as error:
                self._folder.problem("hang_watch_failed", f"hang watch: {error!r}", severity="data_loss")
                return

    def _poll(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            touched = os.stat(self._dump_request).st_mtime
            if self._demand != touched:
                self._demand = touched
                self._dump_on_demand()
        if not self._timeout_ns:
            return
        pending = self._pending()
        if self._reported is not None:
            self._withdrawn(pending)
            return
        overdue = [since for since in self._waiting_since(pending) if time.time_ns() - since > self._timeout_ns]
        if overdue or os.path.exists(self._dumps):
            self._report(pending, min(overdue) if overdue else None)

    def _pending(self) -> list[Collective]:
        """gloo's, and NCCL's as of a few seconds ago: reading its recorder costs more."""
        if time.monotonic() >= self._next_nccl:
            self._next_nccl = time.monotonic() + NCCL_POLL_S
            _, active = collectives_in(recorded(stacks=False, only_active=True) if has_nccl() else {})
            self._nccl = [entry for entry in active if entry.completed_ns is None]
        return LOG.pending() + self._nccl

    def _waiting_since(self, pending: list[Collective]) -> list[int]:
        """Of each group's first pending operation: when the device began it, if that is recorded, else when it became
        the first. A host may enqueue long before the device gets there, and what is behind waits for that one."""
        heads: dict[str, tuple[Collective, int]] = {}
        for entry in pending:
            heads.setdefault(entry.group.name, (entry, time.time_ns()))
        for name, (entry, now) in heads.items():
            before = self._heads.get(name)
            if before is None:
                heads[name] = (entry, entry.issued_ns)
            else:
                heads[name] = (entry, before[1] if before[0].identity == entry.identity else now)
        self._heads = heads
        return [entry.started_ns or since for entry, since in heads.values()]

    def _withdrawn(self, pending: list[Collective]) -> bool:
        """Whether the hang that was reported is no more."""
        if self._reported is None or not self._reported.withdrawn(pending):
            return False
        self._reported, self._heads = None, {}
        if self._recorder is not None:
            self._recorder.may_dump_again()
        return True

    def _dump_on_demand(self) -> None:
        self._demands += 1
        subfolder = f"demand{self._demands}"
        if self._recorder is not None:
            self._recorder.dump(note="on demand", subfolder=subfolder, final=False)
        self._stacks(f"{subfolder}/stacks_rank{self._folder.part.rank}.txt")
        if self._on_demand is not None:
            self._on_demand(subfolder)

    def _report(self, pending: list[Collective], since_ns: int | None) -> None:
        self._hang.mkdir(exist_ok=True)
        self._reported = ReportedHang(self._folder, pending, since_ns)
        rank = self._folder.part.rank
        # The stacks first: another rank's verdict may end the job.
        self._stacks(f"hang/stacks_rank{rank}.txt")
        groups, collectives = collectives_in(recorded(stacks=False))
        state = progress([*LOG.groups.values(), *groups], [*LOG.recent(), *collectives], at=_where(self._main))
        partial = self._hang / f".rank{rank}"
        partial.write_text(json.dumps(state), encoding="utf-8")
        partial.replace(self._hang / f"rank{rank}.json")
        if self._recorder is not None:
            self._recorder.dump(note=ON_A_HANG)
        reports = self._wait_for_the_others()
        if rank == min(reports):
            self._silent.ask(set(range(self._folder.part.world_size)) - reports.keys())
            told = verdict(reports, self._folder.part.world_size)
            waited = f" ({(time.time_ns() - since_ns) / 1e9:.1f} s)" if since_ns else ""
            self._folder.problem("hang", f"hang: {told}{waited}")
            self._reported.told = told

    def _wait_for_the_others(self) -> dict[int, dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            files = sorted(self._hang.glob("rank*.json"))
            if len(files) >= self._folder.part.world_size or time.monotonic() > deadline:
                return {int(f.stem.removeprefix("rank")): json.loads(f.read_text()) for f in files}
            time.sleep(POLL_S)

    def _stacks(self, name: str) -> None:
        path = self._folder.file(name)
        if path.exists():  # another rank asked for them, when this one did not answer: they are of the hang
            return
        with path.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.flush()
            file.write(_with_code(self._main))  # reads the script, which may be what hangs
        self._folder.add_file(path, "stacks")


def _with_code(thread: int) -> str:
    """A thread's stack in faulthandler's form, with each line's code: a call into C has no frame of its own."""
    frame = sys._current_frames().get(thread)
    told = [f"\nThread 0x{thread:016x} (most recent call first):"]
    for one in reversed(traceback.extract_stack(frame)) if frame is not None else ():
        told += [
            f'  File "{one.filename}", line {one.lineno} in {one.name}',
            *([f"    {one.line}"] if one.line else []),
        ]
    return "\n".join(told) + "\n"


def _where(thread: int) -> str:
    """File, line and function of a thread's innermost frame outside torch."""
    frame = sys._current_frames().get(thread)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_library(filename: str) -> bool:
    return "/torch/" in filename or "/instrumented_runtime/record/" in filename or filename.startswith("<")
