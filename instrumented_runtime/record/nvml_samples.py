"""Power and clocks of a rank's GPU, sampled in a thread; their means by step go into its trace.

Needs the package `nvidia-ml-py` (module `pynvml`) and a driver; without them nothing is recorded.
"""

from __future__ import annotations

import bisect
import json
import mmap
import os
import re
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record import gloo_trace, nsys_capture
from gpuscope.instrumented_runtime.record.collective_log import LAST, LOG, OWN, PAGE, Collective, Group
from gpuscope.instrumented_runtime.record.on_demand import Quiet
from gpuscope.instrumented_runtime.record.run_folder import PARTS, RankFolder
from gpuscope.welch import whole_mean

# torch runs one profiler per process and crashes on a second. The script's own profiler takes precedence.
#
# It also corrupts the heap if it stops while one of gloo's threads finishes a collective (`gloo_threads`).


TRACES = "script_traces"
"""The fact of a rank's part that lists the traces of the script's own profilers."""
MOST_TRACES = 20
"""Of a script that writes one in every so many steps, the first ones are listed."""


class ScriptProfilers(Quiet):
    """Lets the script's own profilers stop safely whatever records, also between windows; `beside_nsys` it says what
    such a profiler lacks."""

    name = "script_profilers"

    def __init__(self, *, beside_nsys: bool) -> None:
        self._untold = beside_nsys
        self._traces: list[str] = []

    def start(self, folder: RankFolder) -> None:
        """Watch every profiler of this process, the recorder's too."""
        from torch.autograd.profiler import profile

        self._folder = folder
        self._guard = guard(lambda _: False, self._begun)
        self._undo_export = self._watch_exports()
        leave: Callable[..., Any] = profile.__exit__
        self._leave = leave

        def settled_leave(self: Any, *error: Any) -> Any:
            if _initialised():
                nsys_capture.settle(LOG.running)
            return leave(self, *error)

        profile.__exit__ = settled_leave  # type: ignore[method-assign]

    def stop(self) -> None:
        """End the watch."""
        from torch.autograd.profiler import profile

        profile.__exit__ = self._leave  # type: ignore[method-assign]
        self._guard.remove()
        self._undo_export()

    def _watch_exports(self) -> Callable[[], None]:
        """Note which traces the script's own profilers write: they can be analysed as well as ours."""
        from torch.profiler import profile

        export: Callable[..., Any] = profile.export_chrome_trace
        inside = os.path.abspath(self._folder.path)

        def noted_export(self_: Any, path: str, *rest: Any, **more: Any) -> Any:
            done = export(self_, path, *rest, **more)
            written = os.path.abspath(path)
            if not written.startswith(inside) and written not in self._traces and len(self._traces) < MOST_TRACES:
                self._traces.append(written)
                self._folder.note(**{TRACES: self._traces})
            return done

        def put_back() -> None:
            if profile.export_chrome_trace is noted_export:
                profile.export_chrome_trace = export  # type: ignore[method-assign]

        vars_of: Any = profile
        vars_of.export_chrome_trace = noted_export
        return put_back

    def _begun(self) -> None:
        if self._untold:
            self._untold = False
            self._folder.problem(
                "script_profiler",
                "the script starts a torch.profiler of its own; beside nsys it gets no kernels, the report is whole",
                severity="info",
            )


class Guard:
    """A watch over the torch profilers of this process."""

    def __init__(self, theirs: set[int], remove: Callable[[], None]) -> None:
        self._theirs, self.remove = theirs, remove

    @property
    def busy(self) -> bool:
        """Whether a profiler of the script's is running."""
        return bool(self._theirs)


def guard(is_ours: Callable[[Any], bool], release: Callable[[], None]) -> Guard:
    """Watch every torch profiler of this process, until `remove` is called.

    `release` is called before a profiler of the script prepares its trace. While one is running, ours
    can't prepare and raises `InputError`.
    """
    from torch.autograd.profiler import profile

    prepare: Callable[[Any], None] = profile._prepare_trace
    leave: Callable[..., Any] = profile.__exit__
    theirs: set[int] = set()

    def guarded_prepare(self: Any) -> None:
        if not is_ours(self):
            theirs.add(id(self))
            release()
        elif theirs:
            raise InputError("the script runs a torch.profiler of its own", hint="record one thing at a time")
        prepare(self)

    def guarded_leave(self: Any, *error: Any) -> Any:
        theirs.discard(id(self))
        return leave(self, *error)

    def remove() -> None:
        profile._prepare_trace, profile.__exit__ = prepare, leave  # type: ignore[method-assign]

    profile._prepare_trace, profile.__exit__ = guarded_prepare, guarded_leave  # type: ignore[method-assign]
    return Guard(theirs, remove)


def _initialised() -> bool:
    """Whether there are process groups."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


# Time the training thread ran and waited for a core in each step, as Linux counts it.
#
# `/proc/thread-self/schedstat` (Documentation/scheduler/sched-stats.rst): ns on a core, ns runnable without one. On a
# machine whose cores are all busy (gloo's threads, loader workers, other jobs) the second is the cost of that; no
# profiler event shows it.

CORE_TIME_KEY = "gpuscope_cores"
"""Key in the trace's metadata."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass
class CoreTime:
    """Counts the calling thread; empty where the kernel does not count."""

    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, ns on a core, ns waiting for one)."""
    _last: tuple[int, int] | None = None

    def begin(self) -> None:
        """A step begins."""
        self._last = _read()

    def step(self, number: int) -> None:
        """End the step that began last, numbered `step`."""
        before, now = self._last, _read()
        if before is not None and now is not None:
            self.steps.append((number, now[0] - before[0], now[1] - before[1]))

    def metadata(self, threads: int) -> dict[str, object] | None:
        """The metadata for the trace, with the threads that operators take; None if nothing was counted."""
        columns = ("step", "ran_ns", "waited_ns")
        if not self.steps:
            return None
        return {"cores": cores(), "threads": threads, "columns": columns, "steps": self.steps}


def _read() -> tuple[int, int] | None:
    try:
        ran, waited, *_ = map(int, _SCHEDSTAT.read_text().split())
    except (OSError, ValueError):
        return None
    # A kernel that does not count reports 0.
    return (ran, waited) if ran else None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Which collective each rank called last, kept where the rank's death does not take it.
#
# gloo ends a process in which a message of another size arrives, without a word to Python, before anything could be
# dumped. So each rank writes what it calls into a mapped file, and the launcher compares these once the job has failed.

_NAME = "last_call.rank{}"


def page(parts: Path, rank: int) -> mmap.mmap:
    """This rank's file among the parts of the manifest, for `CollectiveLog.keep`: a call overwrites the one before."""
    path = parts / _NAME.format(rank)
    path.write_bytes(b"\0" * PAGE)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), PAGE)


class Mismatch(NamedTuple):
    """What ranks called under one number of one group, by rank, and that in a sentence."""

    calls: dict[int, Collective]
    told: str


def mismatch(parts: Path) -> Mismatch | None:
    """The first number of a group at which ranks stopped with different calls; None where there is none. The files are
    removed."""
    last: dict[tuple[str, int], dict[int, Collective]] = {}
    for path in parts.glob(_NAME.format("*")):
        with suppress(OSError, ValueError, TypeError, struct.error):
            kept = path.read_bytes()
            place, *own = LAST.unpack_from(kept)
            (name, description, ranks), fields = json.loads(kept[place : kept.index(b"\0", place)])
            fields |= zip(OWN, own, strict=True)
            call = Collective(group=Group(name, description, tuple(ranks)), **fields)
            last.setdefault((name, call.seq), {})[int(path.name.rpartition("rank")[2])] = call
        with suppress(OSError):
            path.unlink()
    for (_, seq), calls in sorted(last.items()):
        by_call: dict[str, list[int]] = {}
        for rank, call in sorted(calls.items()):
            by_call.setdefault(call.called, []).append(rank)
        if len(by_call) > 1:
            told = ", ".join(f"{_ranks(ranks)} called {called}" for called, ranks in by_call.items())
            group = next(iter(calls.values())).group.title
            return Mismatch(calls, f"the ranks called different things as number {seq} of group {group}: {told}")
    return None


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


# gloo's collectives of a rank, as JSON lines, and as arguments of the trace's `gloo:` annotations.
#
# The lines are of two types: `group` (name, description, ranks) and `collective` (the fields of
# `collective_log.Collective` and the rank). In the trace each annotation gets the arguments that NCCL's
# have: «Collective name», «In msg nelems», «Process Group Name», «Seq»…


class Collectives:
    """Writes the log as it fills, so that a killed rank leaves all but its last step."""

    name = "collectives"

    def __init__(self) -> None:
        self.seen: list[Collective] = []
        self._file: IO[str] | None = None
        self._groups: set[str] = set()

    def start(self, folder: RankFolder) -> None:
        """No file is created before the first collective."""
        import torch.distributed as dist

        self._folder = folder
        late = dist.is_available() and dist.is_initialized() and not gloo_trace.installed()
        if late and dist.get_backend() == "gloo":
            folder.problem(
                "collectives_unseen",
                "gloo's collectives are not logged: the session was opened after init_process_group",
                severity="info",
            )
        gloo_trace.install()
        LOG.keep(page(folder.path / PARTS, folder.part.rank), None)

    def step(self, step: int) -> None:
        """Write what has completed."""
        del step
        self._write(LOG.drain())

    def stop(self) -> None:
        """Write the rest, including unfinished ones."""
        LOG.keep(None, None)
        self._write(LOG.drain() + LOG.pending())
        if self._file is not None:
            self._file.close()
            self._folder.add_file(self._path, self.name)

    def rewrite(self, trace: Path) -> None:
        """Add the logged arguments to a trace's gloo annotations."""
        self._write(LOG.drain())
        # The last one's end may not be logged yet; without it all others would be taken for their neighbours.
        logged = self.seen + LOG.undrained()
        if logged:
            text = trace.read_text(encoding="utf-8")
            trace.write_text(with_arguments(text, logged, self._folder.part.rank), encoding="utf-8")

    @property
    def _path(self) -> Path:
        return self._folder.file(f"collectives/rank{self._folder.part.rank}.jsonl")

    def _write(self, collectives: Sequence[Collective]) -> None:
        if not collectives:
            return
        self.seen += collectives
        if self._file is None:
            self._file = self._path.open("w", encoding="utf-8")
            self._folder.add_file(self._path, self.name)  # listed now, in case this rank is killed
        for entry in collectives:
            if entry.group.name not in self._groups:
                self._groups.add(entry.group.name)
                self._line(type="group", **_fields(entry.group))
            fields = _fields(entry) | {"group": entry.group.name, "bytes": entry.bytes}
            self._line(type="collective", rank=self._folder.part.rank, **fields)
        self._file.flush()

    def _line(self, **values: Any) -> None:
        assert self._file is not None
        self._file.write(json.dumps(values, separators=(",", ":")) + "\n")


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


# gloo's name of the operation that implements another one.
TITLES = {"reduce_scatter": "all_reduce"}

_ANNOTATION = re.compile(
    r'"name": "gloo:(?P<title>\w+)"[^{}]*?"ts": (?P<ts>[\d.]+),\s*"dur": (?P<dur>[\d.]+)\s*,\s*"args": \{'
    r"(?P<args>[^{}]*)\}"
)
_BASE = re.compile(r'"baseTimeNanoseconds": (\d+)')
_DIMS = re.compile(r'"Input Dims": (\[.*?\])(?:, "|\s*$)', re.DOTALL)


def with_arguments(text: str, collectives: Sequence[Collective], rank: int) -> str:
    """The trace's text with arguments in its gloo annotations, otherwise unchanged.

    gloo starts operations of one kind in order of issue, so those in the trace are consecutive in the log.
    Where they begin is found from the times; an annotation whose recorded size differs from the log's stays
    unchanged.
    """
    base = _BASE.search(text)
    offset_ns = int(base.group(1)) if base else 0
    titles: dict[str, list[re.Match[str]]] = {}
    for match in _ANNOTATION.finditer(text):
        titles.setdefault(match["title"], []).append(match)
    inserts: list[tuple[int, str]] = []
    for title, matches in titles.items():
        logged = [entry for entry in collectives if TITLES.get(entry.op, entry.op) == title]
        matches.sort(key=lambda match: _nanoseconds(match["ts"]))
        starts = [offset_ns + _nanoseconds(match["ts"]) for match in matches]
        ends = [start + _nanoseconds(match["dur"]) for start, match in zip(starts, matches, strict=True)]
        run = logged[_first_of_run(starts, ends, logged) :]
        for match in matches:
            entry = next((entry for entry in run[:8] if _same_size(match["args"], entry)), None)
            if entry is not None:
                run.remove(entry)
                inserts.append((match.start("args"), _arguments(entry, rank)))
    return _inserted(text, inserts)


def _nanoseconds(microseconds: str) -> int:
    """Parsed from the text: a float would lose the last digits of an epoch timestamp."""
    whole, _, fraction = microseconds.partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def _first_of_run(starts: Sequence[int], ends: Sequence[int], logged: Sequence[Collective]) -> int:
    """Index in `logged` at which the annotations fit best between issue and completion.

    Ends missing from the log, or whole collectives missing at its end, must not shift the others: judged by the mean
    over those that have a partner, at least half of them.
    """
    near = bisect.bisect_left([entry.issued_ns for entry in logged], starts[0])
    candidates = range(max(0, near - 16), min(len(logged), near + 16))

    def misfit(first: int) -> tuple[bool, float]:
        pairs = list(zip(starts, ends, logged[first:], strict=False))
        outside = sum(
            max(0, entry.issued_ns - start) + max(0, end - (entry.completed_ns or end)) for start, end, entry in pairs
        )
        return 2 * len(pairs) < len(starts), outside / len(pairs)

    return min(candidates, key=misfit, default=0)


def _same_size(args: str, entry: Collective) -> bool:
    """Whether the recorded input shapes, if any, hold as many elements as were logged."""
    found = _DIMS.search(args)
    if found is None or entry.is_p2p:
        return True
    elements = 0
    for dims in json.loads(found.group(1)):
        size = 1
        for length in dims if isinstance(dims, list) else [dims]:
            size *= length
        elements += size if dims else 0
    return elements in (0, entry.elements_in, entry.elements_out)


def _arguments(entry: Collective, rank: int) -> str:
    values: dict[str, Any] = {
        "Collective name": entry.op,
        "In msg nelems": entry.elements_in,
        "Out msg nelems": entry.elements_out,
        "dtype": entry.dtype,
        "Group size": len(entry.group.ranks),
        "Process Group Name": entry.group.name,
        "Process Group Description": entry.group.description,
        "Process Group Ranks": str(list(entry.group.ranks)),
        "Seq": entry.p2p_seq if entry.is_p2p else entry.seq,
        "Rank": rank,
        "Issued ns": entry.issued_ns,
    }
    if entry.is_p2p:
        values |= {"Src Rank": entry.src, "Dst Rank": entry.dst}
    return json.dumps(values)[1:-1] + ", "


def _inserted(text: str, inserts: list[tuple[int, str]]) -> str:
    pieces, last = [], 0
    for position, addition in sorted(inserts):
        pieces += [text[last:position], addition]
        last = position
    return "".join([*pieces, text[last:]])


PREFIXES = ("GPU-", "MIG-")
"""Of a device's UUID as NVML takes it."""
KEY = "gpuscope_gpu"
"""Key in the trace's metadata."""
HELD = {
    "power_cap": 0x04,  # SwPowerCap
    "thermal": 0x20 | 0x40,  # SwThermalSlowdown, HwThermalSlowdown
    "power_brake": 0x80,  # HwPowerBrakeSlowdown: the power supply asks for it
    "set_clocks": 0x02,  # ApplicationsClocksSetting: somebody has set them
}
"""What holds clocks down, with its bits of nvml.h's nvmlClocksEventReasons."""
COLUMNS = ("step", "samples", "sm_mhz", "power_mw", *HELD)
"""Of a step's samples: how many, the mean clock of the multiprocessors (MHz) and board power (mW), null where not
reported, and in how many each reason held the clocks down."""
Sample = tuple[int | None, int | None, int]
"""Clock in MHz, power in mW, NVML's bit mask."""


class Nvml:
    """Samples every `interval_ms` from the end of the first step on: by then the training thread has chosen its
    device. The profiler asks for the steps that it records."""

    name = "nvml"

    def __init__(self, interval_ms: int, device: Callable[[], Any] | None = None) -> None:
        self._interval_s = interval_ms / 1000
        self._device = device or current_device
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._taken: list[Sample] = []
        self._row: list[int | None] | None = None
        self._lost: Exception | None = None
        """What ended the thread, to be told by the one that trains."""

    def start(self, folder: RankFolder) -> None:
        """Nothing yet: the device is not known."""
        self._folder = folder

    def step(self, step: int) -> None:
        """Start sampling after the first step, if it used a GPU; after every other sum up what was sampled."""
        if self._lost is not None:
            lost, self._lost = self._lost, None
            self._folder.problem("nvml_failed", f"{self.name}: sampling ended: {lost!r}", severity="data_loss")
        if step == 0:
            self._begin()
            return
        taken, self._taken = self._taken, []
        self._row = summed(step, taken) if taken else None

    def row(self) -> list[int | None] | None:
        """`COLUMNS` of the step that ended last; None where nothing was sampled in it."""
        return self._row

    def _begin(self) -> None:
        found = self._device()
        if found is not None:
            self._nvml, self._handle = found
            self._thread = threading.Thread(target=self._sample, name="gpuscope-nvml", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join(timeout=5)

    def _sample(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._taken.append(sample(self._nvml, self._handle))
            except Exception as error:
                self._lost = error
                return


def summed(step: int, taken: Sequence[Sample]) -> list[int | None]:
    """One row of `COLUMNS`."""
    held = [sum(bool(mask & bits) for *_, mask in taken) for bits in HELD.values()]
    clocks, powers = [clock for clock, *_ in taken], [power for _, power, _ in taken]
    return [step, len(taken), whole_mean(clocks), whole_mean(powers), *held]


def current_device() -> tuple[Any, Any] | None:
    """NVML and its handle of the calling thread's CUDA device; None if either is missing, or CUDA is not in use.

    The device is found by its UUID: CUDA_VISIBLE_DEVICES renumbers. torch writes it without prefix; it is a GPU's, or
    that of an instance of a divided one (MIG). Raises `InputError` where NVML knows neither.
    """
    try:
        import pynvml
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    names = [uuid] if uuid.startswith(PREFIXES) else [f"{prefix}{uuid}" for prefix in PREFIXES]
    for name in names:
        with suppress(pynvml.NVMLError):
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(name)
    raise InputError(f"NVML knows no device {' or '.join(names)}", hint="power and clocks are not recorded")


def sample(nvml: Any, handle: Any) -> Sample:
    """One sample; None (reasons: none) for what this GPU does not report."""

    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except nvml.NVMLError:
            return None

    return (
        ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
        ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0,
    )
