"""The digest of a rank: a line per step, from gloo's log, Flight Recorder's ring, hooks and CPU timers."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuscope.instrumented_runtime.record.capture.core_time import cores
from gpuscope.instrumented_runtime.record.capture.nvml_samples import COLUMNS, Nvml
from gpuscope.instrumented_runtime.record.digest import step_line
from gpuscope.instrumented_runtime.record.digest.digest_file import DigestFile, encoded
from gpuscope.instrumented_runtime.record.digest.nccl_ring import NcclRing
from gpuscope.instrumented_runtime.record.digest.thread_marks import GC, INPUT, Mark, ThreadMarks
from gpuscope.instrumented_runtime.record.gloo import gloo_trace, last_calls
from gpuscope.instrumented_runtime.record.gloo.collective_capture import with_arguments
from gpuscope.instrumented_runtime.record.gloo.collective_log import LOG, Collective, Issue
from gpuscope.instrumented_runtime.record.run_folder import PARTS, RankFolder

KEPT = 20_000
"""Collectives kept for the trace of a window on demand."""
HELD_NS = 1_000_000_000
"""Steps that end so soon after what was last written wait for the next write: several at once cost much less than each
by itself, whose code and data other work has driven out of the caches meanwhile. A kill loses them."""
MOST_HELD = 64


class _Ended(NamedTuple):
    """A step as it ended; its line is made later."""

    step: int
    marks: list[Mark]
    issues: list[Issue]
    done: list[Collective]
    running: list[Collective]
    on_device: list[Collective] | None
    memory: dict[str, int]
    gpu: list[int | None] | None


class Digest:
    """Writes `digest/rank{r}.digest`."""

    name = "digest"

    def __init__(self, nvml: Nvml | None) -> None:
        self._nvml = nvml
        self._recent: deque[Collective] = deque(maxlen=KEPT)
        self._ring = NcclRing()
        self._held: list[_Ended] = []
        self._issues: list[Issue] = []
        self._written_ns = 0
        self._allocator: Callable[[], dict[str, int]] = dict

    def start(self, folder: RankFolder) -> None:
        """Hook the training thread, and begin the file."""
        import torch

        self._folder, self._rank = folder, folder.part.rank
        os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")  # `gpuscope record` sets it before NCCL is there
        gloo_trace.install()
        self._marks = ThreadMarks()
        self._marks.hook()
        LOG.keep(last_calls.page(folder.path / PARTS, self._rank), self._issues)
        path = folder.file(f"digest/rank{self._rank}.digest")
        header = {
            "rank": self._rank,
            "world_size": folder.part.world_size,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "cores": cores(),
            "threads": torch.get_num_threads(),
        }
        self._file = DigestFile(path, header)
        folder.add_file(path, self.name)

    def step(self, step: int) -> None:
        """Take what the step that has ended left; after a failure nothing stays hooked."""
        try:
            marks, done, issues = self._marks.take(), LOG.drain(), self._issues.copy()
            del self._issues[: len(issues)]
            row = self._nvml.row() if self._nvml is not None else None
            rest = LOG.undrained(), self._ring.take(), self._allocator(), row
            self._held.append(_Ended(step, marks, issues, done, *rest))
            if marks[-1][0] - self._written_ns >= HELD_NS or len(self._held) >= MOST_HELD:
                self._written_ns = marks[-1][0]
                self._write_held()
        except BaseException:
            self.stop()
            raise

    def _write_held(self) -> None:
        import torch

        held, self._held = self._held, []
        if held:
            held[-1].memory["peak_host_bytes"] = peak_host_bytes()
            self._allocator = allocator if torch.cuda.is_initialized() else dict  # type: ignore[no-untyped-call]
        for ended in held:
            self._write(ended)
        self._file.flush()

    def _write(self, ended: _Ended) -> None:
        step, asked, issues, done, running, on_device, memory, row = ended
        own = [one for one in issues if one[2] == self._marks.thread]
        marks = step_line.with_core_time(step_line.with_issues(asked, own))
        self._recent += done
        begin, end = marks[0][0], marks[-1][0]
        phases = step_line.phases(marks)
        off = step_line.blocked(marks, [*done, *running])
        line: dict[str, Any] = {
            "step": step,
            "rank": self._rank,
            "first": step == 0,
            "end_ns": end,
            "step_ns": end - begin,
            "exposed_communication_ns": None if on_device is not None else sum(off.exposed.values()),
            "data_wait_ns": step_line.time_in(INPUT, phases),
            "gc_ns": step_line.time_in(GC, phases),
            "ran_ns": marks[-1][1] - marks[0][1],
            "core_wait_ns": marks[-1][2] - marks[0][2],
            **memory,
            "phases": phases,
            "waits": off.waits,
            "pauses": off.others,
        }
        if row is not None:
            line["gpu"] = dict(zip(COLUMNS[1:], row[1:], strict=True))
        self._file.rotate_if_full()
        lists = {"collectives": done} if on_device is None else {"collectives": done, "on_device": on_device}
        for key, found in lists.items():
            line[f"{key}_in_all"] = step_line.in_all(found, off.exposed if found is done else {})
        self._file.text(self._filled(line, begin, lists))

    def _filled(self, line: dict[str, Any], begin: int, lists: Mapping[str, list[Collective]]) -> str:
        """A step's line with as many of its collectives as there is room for."""
        every = step_line.least_every(sum(map(len, lists.values())))
        while True:
            rows = {
                key: self._rows(step_line.listed(found, line["step"], every), begin) for key, found in lists.items()
            }
            text = encoded({**line, "collectives_every": every, **rows})
            if len(text) < step_line.LIMIT or not any(rows.values()):
                return text
            every *= 2

    def _rows(self, chosen: Iterable[Collective], begin: int) -> list[list[int]]:
        """[kind, number, begin, ns, of a message its ends]: number and begin as differences, which are short."""
        rows, before = [], 0
        for one in chosen:
            number, ends = (one.p2p_seq, [one.src or 0, one.dst or 0]) if one.is_p2p else (one.seq, [])
            took = (one.completed_ns or one.issued_ns) - one.issued_ns
            rows.append([self._file.kind(one), number - before, one.issued_ns - begin, took, *ends])
            before, begin = number, one.issued_ns
        return rows

    def rewrite(self, trace: Path) -> None:
        """Add the logged arguments to the gloo annotations of a window's trace."""
        self._write_held()
        logged = [*self._recent, *LOG.undrained()]
        if logged:
            trace.write_text(with_arguments(trace.read_text(encoding="utf-8"), logged, self._rank), encoding="utf-8")

    def stop(self) -> None:
        """Leave the training thread alone; what is under way at the end is in the hang watch's dumps."""
        LOG.keep(None, None)
        self._marks.unhook()
        self._write_held()
        self._file.close()
        self._folder.add_file(self._file.path, self.name)


def peak_host_bytes() -> int:
    """What the process held at most on the host: asked at each write, as the kernel looks at every thread for it."""
    import resource
    import sys

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def allocator() -> dict[str, int]:
    """What a GPU's allocator holds, whose peaks stay the script's."""
    import torch

    stats = torch.cuda.memory_stats()
    return {name: stats.get(key, 0) for name, key in _ALLOCATOR.items()}


_ALLOCATOR = {
    "allocated_bytes": "allocated_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "allocator_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
