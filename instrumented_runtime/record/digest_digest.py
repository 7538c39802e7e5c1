"""The digest of a rank: a line per step, from gloo's log, Flight Recorder's ring, hooks and CPU timers."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpuscope.instrumented_runtime.record import gloo_trace, nvml_samples
from gpuscope.instrumented_runtime.record.collective_log import LOG, Collective, Group, Issue
from gpuscope.instrumented_runtime.record.flight_recorder_dumps import collectives_in, has_nccl, recorded
from gpuscope.instrumented_runtime.record.nsys_capture import BLOCKED_NS, GC, HOST, INPUT, MOST, Mark, ThreadMarks
from gpuscope.instrumented_runtime.record.nvml_samples import COLUMNS, Nvml, cores, with_arguments
from gpuscope.instrumented_runtime.record.run_folder import PARTS, RankFolder

# NCCL's collectives as torch's Flight Recorder has timed them, read so seldom that it costs next to nothing.
#
# The recorder's ring has to be copied whole, some milliseconds. So of a job with short steps some steps lack their
# collectives; those that are there are the same on all ranks only by chance, and are compared by their numbers.

SHARE = 0.001
"""Of the time, at most, that reading takes."""
LOOK_S = 1.0


class NcclRing:
    """What was completed since the last look."""

    def __init__(self) -> None:
        self._next = 0.0
        self._there = False
        self._told: dict[str, int] = {}
        self.unseen = 0
        """Collectives that the ring had lost since the last look before anybody saw them; `take` counts anew."""

    def take(self) -> list[Collective] | None:
        """Those that have completed and were timed, in order; None where this process has no NCCL group."""
        now, self.unseen = time.monotonic(), 0
        if now < self._next:
            return [] if self._there else None
        self._there = has_nccl()
        if not self._there:
            self._next = now + LOOK_S
            return None
        dump = recorded(stacks=False)
        self.unseen = unseen(dump, self._told)
        found = timed(dump, self._told)
        self._next = now + max(LOOK_S, (time.monotonic() - now) / SHARE)
        return found


def unseen(dump: Mapping[str, Any], told: Mapping[str, int]) -> int:
    """How many collectives of groups that were told of before are in no dump: the ring has turned over meanwhile."""
    _, entries = collectives_in(dump)
    oldest: dict[str, int] = {}
    for one in entries:
        if not one.is_p2p:
            oldest[one.group.name] = min(one.seq, oldest.get(one.group.name, one.seq))
    return sum(max(seq - told[name] - 1, 0) for name, seq in oldest.items() if name in told)


def timed(dump: Mapping[str, Any], told: dict[str, int]) -> list[Collective]:
    """The collectives of a dump that have a duration on the device and were not told before; `told` is the last number
    of each group."""
    _, entries = collectives_in(dump)
    raw = [entry for entry in dump.get("entries", []) if not entry["profiling_name"].startswith("gloo:")]
    found = []
    for one, entry in zip(entries, raw, strict=True):
        took = entry.get("duration_ms")
        if one.is_p2p or not took or one.seq <= told.get(one.group.name, -1):
            continue
        one.completed_ns = one.issued_ns + round(took * 1e6)
        found.append(one)
    for one in found:
        told[one.group.name] = max(one.seq, told.get(one.group.name, -1))
    return found


# The file of a rank's digest: JSON lines, at most two files of `LIMIT` bytes; a kill cuts the last line at most.

LIMIT = 32 << 20
"""Bytes of a file; then it becomes the older one, and the one that was that is gone: at 1 kB a step the last 30,000 to
60,000 steps stay."""
VERSION = 2
encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class DigestFile:
    """Writes lines; what they refer to by number (kinds of collectives) or name (groups) stands before them."""

    def __init__(self, path: Path, header: dict[str, Any], limit: int = LIMIT) -> None:
        self.path, self.older = path, path.with_name(path.name + ".older")
        self._header = {"gpuscope_digest": VERSION, **header}
        self._limit = limit
        self._written = 0
        self._file: IO[str]
        self._begin()

    def _begin(self) -> None:
        self._file = self.path.open("w", encoding="utf-8")
        self._kinds: dict[tuple[str, str, int], int] = {}
        self._groups: set[str] = set()
        self._written = 0
        self.line(self._header)
        self.flush()

    def line(self, values: dict[str, Any]) -> None:
        """Add a line; `flush` writes it."""
        self.text(encoded(values))

    def text(self, line: str) -> None:
        """Add a line that is encoded already."""
        self._written += self._file.write(line + "\n")

    def flush(self) -> None:
        """Write the lines added, so that a kill takes none of them."""
        self._file.flush()

    def rotate_if_full(self) -> None:
        """Between two steps: what a step refers to stands in its own file."""
        if self._written >= self._limit:
            self._file.close()
            self.path.replace(self.older)
            self._begin()

    def kind(self, one: Collective) -> int:
        """The number of a collective's kind: operation, group, bytes."""
        if one.group.name not in self._groups:
            self._groups.add(one.group.name)
            self._group(one.group)
        key = one.op, one.group.name, one.bytes
        if key not in self._kinds:
            self._kinds[key] = len(self._kinds)
            self.line(
                {
                    "kind": self._kinds[key],
                    "op": one.op,
                    "group": one.group.name,
                    "bytes": one.bytes,
                    "dtype": one.dtype,
                }
            )
        return self._kinds[key]

    def _group(self, group: Group) -> None:
        self.line({"group": group.name, "description": group.description, "ranks": list(group.ranks)})

    def close(self) -> None:
        """No more lines."""
        self._file.close()


# From the marks and collectives of one step to the line of it (docs/formats.md: «Digests»).

WholeMark = tuple[int, int, int, str]
"""A mark whose time without a core is known."""
STEP_LINE_LIMIT = 3_000
"""Bytes of a line, which it stays under: of collectives it lists as many as there is room for beside…"""
MOST_WAITS, MOST_PAUSES, MOST_PHASES, MOST_SERIES = 36, 6, 20, 8
"""… so many of everything else."""
LEAST_ROW = 13
"""Bytes of a listed collective, at least."""


def with_issues(marks: Sequence[Mark], issues: Sequence[Issue]) -> list[Mark]:
    """The marks, and one within its phase at each call of the thread between them, where the kernel was not asked: that
    would have been a third of its cost."""
    begin, end = marks[0][0], marks[-1][0]
    within: list[Mark] = [(one[0], one[1], None, "") for one in issues if begin < one[0] < end]
    found: list[Mark] = []
    for wall, cpu, core, phase in sorted([*marks, *within[:MOST]], key=itemgetter(0)):
        found.append((wall, cpu, core, phase or found[-1][3]))
    return found


def with_core_time(marks: Sequence[Mark]) -> list[WholeMark]:
    """The marks with the time without a core at each: between two at which the kernel was asked, it is shared out by
    the time off the core."""
    found: list[WholeMark] = []
    held: list[Mark] = []
    for mark in marks:
        held.append(mark)
        if mark[2] is not None:
            found += _shared_out(held, found[-1] if found else None, mark[2])
            held = []
    return found


def _shared_out(marks: Sequence[Mark], before: WholeMark | None, core: int) -> list[WholeMark]:
    if before is None or len(marks) == 1 or core == before[2]:
        return [(wall, cpu, core, phase) for wall, cpu, _, phase in marks]
    spans = pairwise([before, *marks])
    off = [*accumulate(max(0, after[0] - one[0] - after[1] + one[1]) for one, after in spans)]
    waited = core - before[2]
    return [
        (wall, cpu, before[2] + waited * so_far // max(1, off[-1]) if place < len(off) - 1 else core, phase)
        for place, ((wall, cpu, _, phase), so_far) in enumerate(zip(marks, off, strict=True))
    ]


def step_line_phases(marks: Sequence[WholeMark]) -> list[list[Any]]:
    """[phase, ns] one after the other, which tile the step. Of very many the shortest count to the one before."""
    spans = [(phase, after[0] - wall) for (wall, _, _, phase), after in pairwise(marks)]
    found = _joined(spans)
    if len(found) <= MOST_PHASES:
        return found
    kept = set(sorted(range(1, len(found)), key=lambda place: -found[place][1])[: MOST_PHASES - 1])
    for place in range(1, len(found)):
        if place not in kept:
            found[place][0] = found[place - 1][0]
    return _joined(found)


def _joined(spans: Iterable[Sequence[Any]]) -> list[list[Any]]:
    present = [span for span in spans if span[1]]
    return [[phase, sum(ns for _, ns in own)] for phase, own in groupby(present, key=lambda one: one[0])]


@dataclass(frozen=True)
class Blocked:
    """Where the thread was blocked, [offset, ns] from the first mark: on collectives, and on something else."""

    waits: list[list[int]]
    others: list[list[int]]
    exposed: Mapping[str, int]
    """ns of the waits by operation and group of what they waited for."""


def blocked(marks: Sequence[WholeMark], collectives: Sequence[Collective]) -> Blocked:
    """What the thread waited for.

    Blocked time between two marks is put before the last end of a collective between them: nothing else wakes the
    thread there so late.
    """
    ended = sorted((one for one in collectives if one.completed_ns), key=_end)
    ends = [*map(_end, ended)]
    begin = marks[0][0]
    waits: list[list[int]] = []
    others: list[list[int]] = []
    exposed: Counter[str] = Counter()
    for (wall, cpu, core, phase), (until, cpu_after, core_after, _) in pairwise(marks):
        off = until - wall - (cpu_after - cpu) - (core_after - core)
        if off < BLOCKED_NS or phase in (INPUT, GC):
            continue
        last = bisect_right(ends, until) - 1
        if phase != HOST and last >= 0 and ends[last] > wall:
            issued = min(one.issued_ns for one in ended[bisect_right(ends, wall) : last + 1])
            start = max(wall, issued, ends[last] - off)
            waits.append([start - begin, ends[last] - start])
            exposed[series(ended[last])] += ends[last] - start
            off -= ends[last] - start
        if off >= BLOCKED_NS:
            others.append([wall - begin, off])
    return Blocked(_longest(waits, MOST_WAITS), _longest(others, MOST_PAUSES), exposed)


_end = attrgetter("completed_ns")


def series(one: Collective) -> str:
    """Operation and group."""
    return f"{one.op} {one.group.name}"


def in_all(collectives: Sequence[Collective], exposed: Mapping[str, int]) -> dict[str, list[int]]:
    """By operation and group: count, bytes, ns from issue to end, ns exposed; of many those that took longest."""
    sums: dict[str, list[int]] = {}
    for one in collectives:
        name = series(one)
        own = sums.get(name) or sums.setdefault(name, [0, 0, 0, exposed.get(name, 0)])
        own[0] += 1
        own[1] += one.bytes
        own[2] += (one.completed_ns or one.issued_ns) - one.issued_ns
    return dict(sorted(sums.items(), key=lambda item: -item[1][2])[:MOST_SERIES])


def _longest(spans: list[list[int]], most: int) -> list[list[int]]:
    """The longest of them, in their order."""
    if len(spans) <= most:
        return spans
    least = sorted(ns for _, ns in spans)[-most]
    return [span for span in spans if span[1] >= least][:most]


def listed(collectives: Sequence[Collective], step: int, every: int) -> list[Collective]:
    """One in so many of them, to list one by one: by number, so that a rank lists what another with as much room or
    more does, and others in the next step, so that none is never listed where each step has as many."""
    return [one for one in collectives if ((one.p2p_seq if one.is_p2p else one.seq) + step) % every == 0]


def least_every(count: int) -> int:
    """Of so many collectives one in at least how many is listed, a power of two: then all in the coarser list of two
    ranks are in the finer one, too."""
    every = 1
    while count * LEAST_ROW > every * STEP_LINE_LIMIT:
        every *= 2
    return every


def time_in(phase: str, found: Sequence[Sequence[Any]]) -> int:
    """ns of a step's phases that are of this kind."""
    return sum(ns for name, ns in found if name == phase)


KEPT = 20_000
"""Collectives kept for the trace of a window on demand."""
HELD_NS = 1_000_000_000
"""Steps that end so soon after what was last written wait for the next write: several at once cost much less than each
by itself, whose code and data other work has driven out of the caches meanwhile. A kill loses them; where the next step
is later than that, the hang watch's thread has them written."""
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
    unseen: int


class Digest:
    """Writes `digest/rank{r}.digest`."""

    name = "digest"

    def __init__(self, nvml: Nvml | None) -> None:
        self._nvml = nvml
        self._recent: deque[Collective] = deque(maxlen=KEPT)
        self._ring = NcclRing()
        self._held: list[_Ended] = []
        self._writes = threading.Lock()
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
        LOG.keep(nvml_samples.page(folder.path / PARTS, self._rank), self._issues)
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
            on_device = self._ring.take()
            rest = LOG.undrained(), on_device, self._allocator(), row, self._ring.unseen
            with self._writes:
                self._held.append(_Ended(step, marks, issues, done, *rest))
                if marks[-1][0] - self._written_ns >= HELD_NS or len(self._held) >= MOST_HELD:
                    self._written_ns = marks[-1][0]
                    self._write_held()
        except BaseException:
            self.stop()
            raise

    def write_late(self) -> None:
        """Write what is held where the next step is late: in a hang it never ends, and who looks at the digest has to
        see the last one that did. Called by the hang watch's thread."""
        with self._writes:
            if self._held and time.time_ns() - self._held[-1].marks[-1][0] >= HELD_NS:
                self._write_held()

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
        step, asked, issues, done, running, on_device, memory, row, unseen = ended
        own = [one for one in issues if one[2] == self._marks.thread]
        marks = with_core_time(with_issues(asked, own))
        self._recent += done
        begin, end = marks[0][0], marks[-1][0]
        phases = step_line_phases(marks)
        off = blocked(marks, [*done, *running])
        line: dict[str, Any] = {
            "step": step,
            "rank": self._rank,
            "first": step == 0,
            "end_ns": end,
            "step_ns": end - begin,
            "exposed_communication_ns": None if on_device is not None else sum(off.exposed.values()),
            "data_wait_ns": time_in(INPUT, phases),
            "gc_ns": time_in(GC, phases),
            "ran_ns": marks[-1][1] - marks[0][1],
            "core_wait_ns": marks[-1][2] - marks[0][2],
            **memory,
            "phases": phases,
            "waits": off.waits,
            "pauses": off.others,
        }
        if unseen:
            line["unseen"] = unseen
        if row is not None:
            line["gpu"] = dict(zip(COLUMNS[1:], row[1:], strict=True))
        self._file.rotate_if_full()
        lists = {"collectives": done} if on_device is None else {"collectives": done, "on_device": on_device}
        for key, found in lists.items():
            line[f"{key}_in_all"] = in_all(found, off.exposed if found is done else {})
        self._file.text(self._filled(line, begin, lists))

    def _filled(self, line: dict[str, Any], begin: int, lists: Mapping[str, list[Collective]]) -> str:
        """A step's line with as many of its collectives as there is room for."""
        every = least_every(sum(map(len, lists.values())))
        while True:
            rows = {key: self._rows(listed(found, line["step"], every), begin) for key, found in lists.items()}
            text = encoded({**line, "collectives_every": every, **rows})
            if len(text) < STEP_LINE_LIMIT or not any(rows.values()):
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
        with self._writes:
            self._write_held()
        logged = [*self._recent, *LOG.undrained()]
        if logged:
            trace.write_text(with_arguments(trace.read_text(encoding="utf-8"), logged, self._rank), encoding="utf-8")

    def stop(self) -> None:
        """Leave the training thread alone; what is under way at the end is in the hang watch's dumps."""
        LOG.keep(None, None)
        self._marks.unhook()
        with self._writes:
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
