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
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpuscope.instrumented_runtime.record.collective_log import LOG, Collective, Group
from gpuscope.instrumented_runtime.record.flight_recorder_dumps import (
    CAPTURES,
    FlightRecorder,
    collectives_in,
    has_nccl,
    recorded,
)
from gpuscope.instrumented_runtime.record.on_demand import Quiet
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

# Ranks that do not answer on a hang: stopped, dead, or with the interpreter's lock held, so that no Python runs.
#
# Each rank's C signal handler (`faulthandler.register`) writes its stacks without that lock, into a file opened before.
# The rank that gives the verdict sends the signal to those of its host, and keeps what the kernel says of them.

PARTS = "manifest.d"
FOLDER = "hang"
# Of the real-time signals, which libraries rarely use.
SIGNAL = signal.SIGRTMAX - 5 if sys.platform == "linux" else None
WRITES_S = 1.0


class SilentRanks:
    """This rank's signal handler, and what it asks of others."""

    def __init__(self, folder: RankFolder) -> None:
        self._folder = folder
        self._file: IO[str] | None = None
        self._path = self._of(folder.part.rank, os.getpid())
        if SIGNAL is not None:
            self._file = self._path.open("w", encoding="utf-8")
            faulthandler.register(SIGNAL, self._file, all_threads=True)

    def _of(self, rank: int, pid: int) -> Path:
        """Its being there says that this process takes the signal."""
        return self._folder.files / f".stacks_rank{rank}.{pid}"

    def close(self) -> None:
        """Take the handler and its file away."""
        if self._file is not None and SIGNAL is not None:
            faulthandler.unregister(SIGNAL)
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._file = None

    def ask(self, ranks: Iterable[int]) -> None:
        """Keep the state and the stacks of ranks on this host."""
        asked: list[tuple[int, Path]] = []
        for rank in ranks:
            with contextlib.suppress(OSError, ValueError, KeyError):
                life = f".restart{self._folder.part.restart}" if self._folder.part.restart else ""
                part = json.loads((self._folder.path / PARTS / f"rank{rank}{life}.json").read_text(encoding="utf-8"))
                if part["host"] != socket.gethostname():
                    continue
                pid, stacks = part["pid"], self._of(rank, part["pid"])
                self._keep(f"status_rank{rank}.txt", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
                if SIGNAL is not None and stacks.exists():
                    os.kill(pid, SIGNAL)
                    asked.append((rank, stacks))
        if asked:
            time.sleep(WRITES_S)
        for rank, stacks in asked:
            with contextlib.suppress(OSError):
                if text := stacks.read_text(encoding="utf-8", errors="replace"):
                    self._keep(f"stacks_rank{rank}.txt", text)

    def _keep(self, name: str, text: str) -> None:
        path = self._folder.file(f"{FOLDER}/{name}")
        if not path.exists():
            path.write_text(text, encoding="utf-8")
            self._folder.add_file(path, "stacks")


# A hang that was reported, and what becomes of it where the ranks go on after all.
#
# Each rank notes in the hang's folder that what it waited in has completed; where all have, the rank that gave the
# verdict withdraws it, and the others see that the folder is gone.

REPORTED_HANG_FOLDER = "hang"
ON_A_HANG = "on a hang"
"""The note of a dump that is of a hang."""
_DUMP = "flight_recorder"


class ReportedHang:
    """One rank's side of a hang. `told` is its verdict, by the rank that gave it."""

    def __init__(self, folder: RankFolder, waits: Sequence[Collective], since_ns: int | None) -> None:
        self._folder, self._waits = folder, list(waits)
        self._since_ns = since_ns
        self._hang = folder.files / REPORTED_HANG_FOLDER
        self._paused = folder.files / _next_pause(folder.files)
        self.over = False
        self.told: str | None = None

    def withdrawn(self, pending: Sequence[Collective]) -> bool:
        """Whether it is no more: `pending` are the operations that this rank has under way now."""
        if self._hang.exists():
            self._note_own_end(pending)
            if self.told is None or not self._tell_if_all_went_on(self.told):
                return False
        self._move_own_files()
        return True

    def _note_own_end(self, pending: Sequence[Collective]) -> None:
        running = {entry.identity for entry in pending}
        if self.over or any(entry.identity in running or entry.error for entry in self._waits):
            return
        completed = [entry.completed_ns for entry in self._waits if entry.completed_ns is not None]
        lasted = max(completed, default=time.time_ns()) - self._since_ns if self._since_ns else 0
        note = self._hang / f".over{self._folder.part.rank}"
        partial = note.with_suffix(".partial")
        partial.write_text(str(lasted), encoding="utf-8")
        partial.replace(note)
        self.over = True

    def _tell_if_all_went_on(self, told: str) -> bool:
        ranks = [path.stem.removeprefix("rank") for path in self._hang.glob("rank*.json")]
        notes = [self._hang / f".over{rank}" for rank in ranks]
        if not all(note.exists() for note in notes):
            return False
        lasted = max(int(note.read_text(encoding="utf-8")) for note in notes) / 1e9
        for note in notes:
            note.unlink()
        self._hang.rename(self._paused)
        rank = self._folder.part.rank
        print(f"gpuscope: rank {rank}: no hang: all ranks went on after {lasted:.1f} s", file=sys.stderr, flush=True)
        self._folder.withdraw("hang")
        self._folder.problem("pause", f"a pause of {lasted:.1f} s; meanwhile: {told}", severity="info")
        return True

    def _move_own_files(self) -> None:
        """Into the pause's folder: the stacks went there with it, this rank's dump of that moment follows."""
        part = self._folder.part
        for entry in [entry for entry in part.files if entry.kind in ("stacks", _DUMP)]:
            old = self._folder.path / entry.path
            if old.parent == self._hang:
                self._folder.replace_file(entry, self._paused / old.name)
            elif entry.kind == _DUMP and entry.note == ON_A_HANG and old.exists():
                old.rename(self._paused / old.name)
                self._folder.replace_file(entry, self._paused / old.name)


def _next_pause(files: Path) -> str:
    number = 1
    while (files / f"pause{number}").exists():
        number += 1
    return f"pause{number}"


# The verdict on a hang: which ranks wait in which collective, and which never joined it.

Progress = Mapping[str, Any]


def progress(groups: Sequence[Group], collectives: Sequence[Collective], *, at: str) -> dict[str, Any]:
    """A rank's progress: per group its members, the last collective issued and those it waits in."""
    state: dict[str, Any] = {"at": at, "groups": {}}
    for group in groups:
        mine = [entry for entry in collectives if entry.group is group]
        issued = [entry for entry in mine if not entry.is_p2p]
        state["groups"][group.name] = {
            "ranks": list(group.ranks),
            "issued": {str(entry.seq): entry.called for entry in issued},
            "last": max((entry.seq for entry in issued), default=0),
            "waits": [
                {"seq": entry.seq, "what": str(entry), "src": entry.src, "dst": entry.dst}
                for entry in mine
                if entry.completed_ns is None
            ],
        }
    return state


@dataclass(frozen=True)
class Complaint:
    """Rank `by` waits in something; `culprits` are the ranks it waits for."""

    by: int
    culprits: tuple[int, ...]
    is_p2p: bool
    sentence: str


def verdict(reports: Mapping[int, Progress], world_size: int) -> str:
    """What hangs, in a sentence or two: who waits in which collective, and who never joined it.

    `reports` maps ranks to their `progress`. A rank that is waited for but itself waits for another is not the root
    cause: complaints about ranks that wait for nobody come first, then those about collectives.
    """
    complaints = [complaint for rank in sorted(reports) for complaint in _complaints(reports, rank)]
    silent = sorted(set(range(world_size)) - set(reports))
    if not complaints:
        return f"no rank that answered waits in a collective; no answer from {_ranks(silent)}"
    idle = {rank for rank in reports if not any(group["waits"] for group in reports[rank]["groups"].values())}
    idle |= set(silent)
    ranked = (
        [complaint for complaint in complaints if set(complaint.culprits) & idle],
        [complaint for complaint in complaints if complaint.culprits and not complaint.is_p2p],
        complaints,
    )
    # A few against many are the likelier culprits; ranks already named as culprits don't count.
    named: set[int] = set()
    sentences = []
    for complaint in sorted(next(filter(None, ranked)), key=lambda complaint: len(complaint.culprits)):
        if complaint.by not in named and not named.issuperset(complaint.culprits or (complaint.by,)):
            named.update(complaint.culprits)
            if complaint.sentence not in sentences:
                sentences.append(complaint.sentence)
    return "; ".join(sentences)


def _complaints(reports: Mapping[int, Progress], rank: int) -> Iterator[Complaint]:
    for name, group in reports[rank]["groups"].items():
        for wait in group["waits"]:
            if wait["seq"]:
                yield _about_collective(reports, rank, name, wait)
            else:
                peer = wait["dst"] if wait["src"] == rank else wait["src"]
                sentence = f"rank {rank} waits in {wait['what']}; rank {peer}: {_location(reports, peer)}"
                yield Complaint(rank, (peer,) if peer is not None else (), True, sentence)


def _about_collective(reports: Mapping[int, Progress], rank: int, name: str, wait: Mapping[str, Any]) -> Complaint:
    seq = str(wait["seq"])
    op = reports[rank]["groups"][name]["issued"][seq]
    waiting, absent, others = [], [], {}
    for member in reports[rank]["groups"][name]["ranks"]:
        group = reports.get(member, {}).get("groups", {}).get(name, {"issued": {}, "last": 0, "waits": []})
        if group["last"] < wait["seq"]:
            absent.append(member)
        elif group["issued"].get(seq, op) != op:
            others[member] = group["issued"][seq]
        elif any(str(entry["seq"]) == seq for entry in group["waits"]):
            waiting.append(member)
    parts = [f"{_ranks(waiting)} {'wait' if len(waiting) > 1 else 'waits'} in {wait['what']}"]
    parts += [f"rank {member} called {what}{_instead(what, op)}" for member, what in others.items()]
    parts += [f"rank {member} has not joined: {_location(reports, member)}" for member in absent]
    return Complaint(rank, (*absent, *others), False, "; ".join(parts))


def _instead(called: str, op: str) -> str:
    """What the others called, where it is the same operation of another size or type."""
    return f", not {op.partition(' of ')[2]}" if called.split()[0] == op.split()[0] else " instead"


def _location(reports: Mapping[int, Progress], rank: int | None) -> str:
    if rank is None:
        return "its sender is unknown"
    if rank not in reports:
        return "no answer"
    return f"it is at {reports[rank]['at']}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks)) or 'none'}"


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
        write_late: Callable[[], None] | None = None,
    ) -> None:
        self._timeout_ns = int(timeout_s * 1e9)
        self._poll_s = min(LONGEST_POLL_S, max(POLL_S, timeout_s / 60 or LONGEST_POLL_S))
        self._recorder = recorder
        self._on_demand = on_demand
        self._write_late = write_late
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
        _watch_captures()
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
        return self._folder.files / REPORTED_HANG_FOLDER

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_s):
            try:
                if self._write_late is not None:
                    self._write_late()
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


def _watch_captures() -> None:
    import torch

    graphs = getattr(torch.cuda, "CUDAGraph", None)
    if graphs is not None and hasattr(graphs, "capture_begin"):
        CAPTURES.watch(graphs)


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
