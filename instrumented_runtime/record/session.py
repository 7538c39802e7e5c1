"""Recording from inside any training script, in three lines:

>>> import gpuscope
>>> with gpuscope.session("runs/first") as session:
...     for batch in loader:
...         train(batch)
...         session.step()

The session starts the captures, counts the steps and closes the run folder, also after an exception. A
capture that fails is dropped and noted in the manifest; the script goes on. Under `gpuscope record` the
launcher's folder and options are used instead of the script's.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from io import FileIO
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any, NoReturn

from gpuscope.errors import GpuscopeError, MissingExtraError, UsageError
from gpuscope.instrumented_runtime.record.applied.rank import Observed
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions, options_from
from gpuscope.instrumented_runtime.record.digest_digest import Digest
from gpuscope.instrumented_runtime.record.environment import Environment, TorchProfiler
from gpuscope.instrumented_runtime.record.flight_recorder_dumps import FlightRecorder
from gpuscope.instrumented_runtime.record.hang_watch import HangWatch
from gpuscope.instrumented_runtime.record.nsys_capture import NsysRange
from gpuscope.instrumented_runtime.record.nvml_samples import Collectives, Nvml, ScriptProfilers
from gpuscope.instrumented_runtime.record.on_demand import Capture, MemorySnapshots, OnDemand, Quiet
from gpuscope.instrumented_runtime.record.ranges import Span, launched_rank, listening, span
from gpuscope.instrumented_runtime.record.run_folder import ENV_FOLDER, RankFolder

# When each step ended, a line at once: for `gpuscope watch` while the job runs.

MOST = 100_000
"""Steps that are written: ten megabytes."""


class StepTimes:
    """Writes `steps/rank{r}.jsonl`. A step is from one's end to the next one's; of the first the begin is unknown."""

    name = "steps"

    def start(self, folder: RankFolder) -> None:
        """Open the file; unbuffered, so that of a job that stands still every step is there."""
        self._rank, self._before = folder.part.rank, time.perf_counter_ns()
        self._folder, self._path = folder, folder.file(f"steps/rank{self._rank}.jsonl")
        self._file = FileIO(self._path, "w")
        folder.add_file(self._path, self.name)  # listed now, in case this rank is killed

    def step(self, step: int) -> None:
        """Write its line."""
        if step >= MOST:
            return
        now = time.perf_counter_ns()
        line = {"step": step, "rank": self._rank, "end_ns": time.time_ns(), "step_ns": now - self._before}
        self._file.write(json.dumps(line | {"first": step == 0}).encode() + b"\n")
        self._before = now

    def stop(self) -> None:
        """Close the file."""
        self._file.close()
        self._folder.add_file(self._path, self.name)


# Python's garbage collections as ranges (`gc`), so that a trace distinguishes them from other host work.


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


# The captures that the options select, in the order they start (and, reversed, stop).

DIGEST_NVML_MS = 1_000
"""How often NVML is asked for a digest."""


def captures_for(options: RecordOptions) -> list[Capture]:
    """The captures of one rank. The profiler starts last and stops first: it need not see the others."""
    captures: list[Capture] = [Observed()] if options.always else [Observed(), StepTimes()]
    if options.environment:
        captures.append(Environment())
    keeps_history = options.memory == "on" if options.always else options.memory != "off"
    memory = MemorySnapshots(options.memory) if keeps_history else None
    if memory is not None:
        captures.append(memory)
    nvml = _nvml(options)
    if nvml is not None:
        captures.append(nvml)
    recorder = FlightRecorder(options.flight_recorder) if options.flight_recorder else None
    if recorder is not None:
        captures.append(recorder)
    digest = Digest(nvml) if options.always else None
    on_demand = memory.on_demand if memory else None
    captures.append(HangWatch(options.hang_timeout_s, recorder, on_demand, digest.write_late if digest else None))
    if options.gc:
        captures.append(GcRanges())
    collectives: Collectives | Digest | None = digest
    if digest is None and options.collectives:
        collectives = Collectives()
    if collectives is not None:
        captures.append(collectives)
    captures.append(ScriptProfilers(beside_nsys=options.profiler == "nsys"))
    if options.profiler != "none":
        make = _on_demand if options.on_request else _profiler
        captures.append(make(options, collectives, nvml))
    return captures


def _nvml(options: RecordOptions) -> Nvml | None:
    if options.always:
        return Nvml(options.nvml_interval_ms or DIGEST_NVML_MS)
    return Nvml(options.nvml_interval_ms) if options.nvml_interval_ms and options.profiler == "torch" else None


def _on_demand(options: RecordOptions, collectives: Collectives | Digest | None, nvml: Nvml | None) -> OnDemand:
    """Windows of the profiler that is asked for. An nsys that was started for one capture range takes no second one."""

    def make(first: int, active: int) -> Capture:
        return _profiler(replace(options, wait=first, active=active), collectives, nvml)

    return OnDemand(make, warmup=options.warmup, active=options.active, once=options.profiler == "nsys")


def _profiler(options: RecordOptions, collectives: Collectives | Digest | None, nvml: Nvml | None) -> Capture:
    """What records kernels and operators."""
    if options.profiler == "nsys":
        return NsysRange(wait=options.wait, warmup=options.warmup, active=options.active, whole=options.whole)
    return TorchProfiler(
        wait=options.wait,
        warmup=options.warmup,
        active=options.active,
        whole=options.whole,
        record_shapes=options.record_shapes,
        with_stack=options.with_stack,
        profile_memory=options.profile_memory,
        rewrite=collectives.rewrite if collectives is not None else None,
        nvml=nvml,
    )


# Set by a recording rank, so that processes it starts (data loader workers) do not record.
ENV_RECORDER = "GPUSCOPE_RECORDER_PID"

_active: Session | None = None


def gpuscope_session(
    folder: str | os.PathLike[str] | None = None,
    *,
    auto_step: bool = False,
    metadata: Mapping[str, Any] | None = None,
    **options: Any,
) -> Session:
    """A context manager that records this rank into `folder`: `gpuscope.session`.

    `options` are the fields of `RecordOptions`; docs/recording.md has a table of them. Open it before
    `init_process_group`, so that gloo's collectives are seen too, and call `step()` on it at the end of each step;
    `auto_step` takes an `optimizer.step()` for that instead. `metadata` goes into the run folder's manifest.

    Raises `UsageError` on wrong options, a second session, or another run's folder, and
    `MissingExtraError` (a `UsageError` and an `ImportError`) without torch.
    """
    if find_spec("torch") is None:
        raise MissingExtraError("torch")
    chosen = options_from(**options)
    path = os.environ.get(ENV_FOLDER) or folder
    if path is None:
        raise UsageError("a session needs a folder", hint="gpuscope.session('runs/first')")
    return Session(path, chosen, auto_step=auto_step, metadata=metadata)


def active_session() -> Session | None:
    """The session that is open in this process, if any."""
    return _active


class Session:
    """A recording in one rank; use `gpuscope.session` to make one."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: RecordOptions,
        *,
        auto_step: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.options = path, options
        self.steps = 0
        self.closing = False
        self.at_exit: tuple[str, str | None] | None = None
        """How the script announced its end, since its last step: status and error."""
        self._auto_step = auto_step
        self._stepped_by_script = self._stepped_by_optimizer = False
        self._metadata = dict(metadata or {})
        self._captures: list[Capture] = []
        self._folder: RankFolder | None = None
        self._unhook: Any = None
        self._process = os.getpid()

    @property
    def folder(self) -> RankFolder:
        """This rank's part of the run folder. Raises `UsageError` before the session is open."""
        if self._folder is None:
            raise UsageError("the session is not open", hint="use it in a with statement")
        return self._folder

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(*status_of(error))

    def open(self) -> Session:
        """Join the folder and start the captures; returns the active session.

        If `gpuscope record` has opened one in this process, that one is returned, and it outlives the block.
        """
        global _active
        if _active is not None and _active is not self and os.environ.get(ENV_FOLDER):
            _active.folder.note(**self._metadata)
            return _active
        if _active is not None:
            raise UsageError(f"this process already records into {_active.path}", hint="open one session at a time")
        self._folder = _join(self.path)
        self._process = os.getpid()
        _active = self
        os.environ[ENV_RECORDER] = str(os.getpid())
        if self._metadata:
            self._folder.note(**self._metadata)
        for capture in captures_for(self.options.of_rank(self._folder.part.rank)):
            if self._attempt(capture, "start", self._folder):
                self._captures.append(capture)
        if self._auto_step:
            from gpuscope.instrumented_runtime.record.nsys_capture import on_optimizer_step

            self._unhook = on_optimizer_step(self.optimizer_stepped)
        return self

    def step(self) -> None:
        """A training step has ended. From the first call on, optimizer steps no longer count as steps."""
        counted_already = self._stepped_by_optimizer and not self._stepped_by_script
        self._stepped_by_script = True
        if not counted_already:
            self._advance()

    def optimizer_stepped(self) -> None:
        """An optimizer has stepped: the end of a step, unless the script calls `step()` itself."""
        if not self._stepped_by_script:
            self._stepped_by_optimizer = True
            self._advance()

    def _advance(self) -> None:
        for capture in list(self._captures):
            if not isinstance(capture, Quiet) and not self._attempt(capture, "step", self.steps):
                self._captures.remove(capture)
        self.steps += 1
        self.at_exit = None
        if self.steps == self.options.stop_after:
            self.close()
            raise SystemExit(0)  # so that the script's own clean-up runs

    def close_at_exit(self) -> None:
        """Close with the end the script announced; `completed` where it announced none."""
        self.close(*(self.at_exit or ("completed",)))

    def close(self, status: str = "completed", error: str | None = None) -> None:
        """Stop the captures and close this rank's part; a second call does nothing."""
        global _active
        if self._folder is None or _active is not self or self.closing or self._process != os.getpid():
            return
        self.closing = True
        if self._unhook is not None:
            self._unhook()
        for capture in reversed(self._captures):
            self._attempt(capture, "stop")
        self._captures.clear()
        self._folder.note(steps=self.steps)
        self._folder.finish(status, error=error)
        self.closing = False
        _active = None
        os.environ.pop(ENV_RECORDER, None)

    def _attempt(self, capture: Capture, action: str, *args: Any) -> bool:
        """Run a capture's method; on failure record it in the manifest, return False and let the script go on."""
        try:
            getattr(capture, action)(*args)
        except Exception as error:
            reason = str(error).replace("\nHint: ", "; ") if isinstance(error, GpuscopeError | OSError) else repr(error)
            self.folder.problem(f"{capture.name}_failed", f"{capture.name}: {reason}", severity="data_loss")
            return False
        return True


def status_of(error: BaseException | None) -> tuple[str, str | None]:
    """Status of a run that ended with `error`, and the error in one line."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "completed", None
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    text = str(error).strip()
    return status, f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def announced(rank: int, world_size: int) -> Iterator[bool]:
    """While inside, the arguments of `init_process_group` tell the rank; yields whether it is known at all."""
    global _announced
    _announced = (rank, world_size) if isinstance(rank, int) and rank >= 0 else None
    try:
        yield _announced is not None or launched_rank() is not None
    finally:
        _announced = None


_announced: tuple[int, int] | None = None


def rank_and_world_size() -> tuple[int, int] | None:
    """From torch.distributed where it is initialised, else by what initialises it now, else the launcher's variables;
    None in a process that has no rank."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    launched = launched_rank()
    if _announced is not None:
        return _announced[0], max(_announced[1], launched.world_size if launched else 1)
    return launched[:2] if launched is not None else None


def _join(path: str | os.PathLike[str]) -> RankFolder:
    """This rank's folder. Processes without a rank are numbered in order of arrival under `gpuscope record`, which may
    start several."""
    known = rank_and_world_size()
    if known is not None:
        return RankFolder.join(path, rank=known[0], world_size=known[1])
    if ENV_FOLDER not in os.environ:
        return RankFolder.join(path, rank=0, world_size=1)
    return RankFolder.join_next(path)


def note_failure(error: BaseException) -> None:
    """Have the manifest tell how a rank failed that never opened its session."""
    known, path = rank_and_world_size(), os.environ.get(ENV_FOLDER)
    if known is None or path is None or _active is not None:
        return
    status, text = status_of(error)
    with suppress(GpuscopeError, OSError):
        folder = RankFolder.join(path, rank=known[0], world_size=known[1])
        folder.finish(status, error=f"{text} (before its first step)" if text else None)


def disown() -> bool:
    """In a forked child: forget the session, which is the parent's; whether there was one."""
    global _active
    had, _active = _active is not None, None
    return had


# Closing a session when the script ends without doing so: at exit, by an exception, by SIGTERM.


def _watch_exit(session: Session) -> None:
    """Have `sys.exit(n)` count as a failure: it bypasses excepthook, and atexit does not get n.

    Undone if the script catches it and goes on to another step.
    """
    leave = sys.exit

    def exit_noted(code: str | int | None = None, /) -> NoReturn:
        status, error = status_of(SystemExit(code))
        session.at_exit = None if status == "completed" else (status, error)
        leave(code)

    sys.exit = exit_noted


def _watch_immediate_exit(session: Session) -> None:
    """`os._exit` bypasses everything: close before it, unless another thread than the main one calls it."""
    leave = os._exit

    def exit_closed(status: int) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            with suppress(Exception):
                session.close(*status_of(SystemExit(status)))
        leave(status)

    os._exit = exit_closed


def close_at_the_end(session: Session) -> None:
    """Close `session` however this process ends, short of SIGKILL, without changing how it ends."""
    atexit.register(session.close_at_exit)
    # Processes forked by multiprocessing run this instead of atexit.
    Finalize(None, session.close_at_exit, exitpriority=100)
    excepthook = sys.excepthook

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        excepthook(kind, error, trace)
        session.close(*status_of(error))

    sys.excepthook = on_exception
    _watch_exit(session)
    _watch_immediate_exit(session)

    def on_terminate(number: int, frame: object) -> None:
        del frame
        if session.closing:  # torchrun terminates the other ranks when one fails: let this one finish writing
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises as a loader's workers are terminated too
        session.close("interrupted", "terminated by SIGTERM")
        # As it would have ended without us. An exception would be lost in a callback of the garbage collector's.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, on_terminate)
