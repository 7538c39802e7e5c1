"""Nsight Systems around each rank: one report per rank, opened and closed by cudaProfilerStart/Stop.

A rank that starts outside nsys re-executes itself inside it, so any launcher works and no torchrun command
line has to be parsed. Light to import: see `unchanged_script`.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.capture_options import options_from
from gpuscope.instrumented_runtime.record.ranges import launched_rank

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.record.run_folder import RankFolder


# Steps of an unmodified script: what is between two updates of the weights that a backward pass separates.
#
# - `optimizer.step()` ends a step. Several calls without a backward pass between them are one (ZeRO steps once per
#   group of parameters).
# - With several optimizers (a GAN's two, an agent's three, one per stage or parameter) the first one seen leads;
# another
#   takes over if the leader is gone, or has been idle for long.
# - One that steps once for several steps of the leader (a generator behind its critic's three, a policy behind its
#   values' two) leads from then on: that is once per iteration of the loop. Its first iteration counts as the several.
# - An update that a `GradScaler` skips ends a step as well.
# - An update that only makes the optimizer's state, as a distributed checkpoint is loaded, ends none.
# - Under DeepSpeed its engine's count of global steps is what counts.

IDLE_STEPS = 32
"""After so many steps of another optimizer the leader has finished its part of the script."""
DEEPSPEED = "deepspeed.runtime.engine"
MAKES_STATE = "_init_optim_state"
"""torch.distributed.checkpoint: steps with zero gradients, so that there is a state to load into."""


class _Steps:
    """Decides which calls end a step."""

    def __init__(self, stepped: Callable[[], None]) -> None:
        self._stepped = stepped
        self._leader: weakref.ref[Any] | None = None
        self._fresh = True  # a backward pass has run since the last step ended
        self._others = 0
        self._alone = 0
        """Steps of the leader since another optimizer stepped."""
        self._patience = IDLE_STEPS
        self.backward_seen = self.by_engine = self.watches_engine = False

    def backward(self) -> None:
        """A backward pass begins."""
        self.backward_seen = self._fresh = True
        if not self.watches_engine and DEEPSPEED in sys.modules:
            _watch_deepspeed(self)

    def optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped, or its step was skipped."""
        if self.by_engine:
            return
        leader = self._leader() if self._leader is not None else None
        if leader is None or self._others >= self._patience:
            self._leader, leader, self._patience, self._alone = weakref.ref(optimizer), optimizer, IDLE_STEPS, 0
        if leader is not optimizer:
            self._others += 1
            if self.backward_seen and 1 < self._alone <= IDLE_STEPS:
                self._leader, self._others, self._patience = weakref.ref(optimizer), 0, IDLE_STEPS + 2 * self._alone
            self._alone = 0
            return
        if self._fresh or not self.backward_seen:
            self.end()

    def end(self) -> None:
        """A step has ended."""
        self._fresh, self._others, self._alone = False, 0, self._alone + 1
        self._stepped()


def on_optimizer_step(stepped: Callable[[], None]) -> Callable[[], None]:
    """Call `stepped` at the end of each training step of this process; returns a function that undoes this."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = _Steps(stepped)
    last: list[Any] = []

    def after(optimizer: Any, args: object, kwargs: object) -> None:
        del args, kwargs
        last[:] = [weakref.ref(optimizer)]
        if not steps.backward_seen and _makes_state():
            return
        steps.optimizer(optimizer)

    handle = register_optimizer_step_post_hook(after)
    undo = [handle.remove, _watch_backward(steps), _watch_scaler(steps, last)]

    def remove() -> None:
        for each in undo:
            each()
        steps.end = lambda: None  # type: ignore[method-assign]

    return remove


def _makes_state() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != MAKES_STATE:
        frame = frame.f_back
    return frame is not None


def _watch_backward(steps: _Steps) -> Callable[[], None]:
    """torch.autograd calls its engine through one Python function, which both of these modules hold."""
    import torch.autograd
    import torch.autograd.graph

    name = "_engine_run_backward"
    run = getattr(torch.autograd.graph, name, None)
    holders = [module for module in (torch.autograd, torch.autograd.graph) if hasattr(module, name)]
    if run is None:  # an older torch: every step of the leader counts
        return lambda: None

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        steps.backward()
        return run(*args, **kwargs)

    def put_back() -> None:
        for holder in holders:
            if getattr(holder, name) is run_backward:
                setattr(holder, name, run)

    for holder in holders:
        setattr(holder, name, run_backward)
    return put_back


def _watch_scaler(steps: _Steps, last: list[Any]) -> Callable[[], None]:
    """`GradScaler.step` does not call the optimizer where gradients overflowed."""
    try:
        from torch.amp.grad_scaler import GradScaler
    except ImportError:
        return lambda: None
    step = GradScaler.step

    def scaled_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        last.clear()
        result = step(self, optimizer, *args, **kwargs)
        if not last:
            steps.optimizer(getattr(optimizer, "optimizer", optimizer))
        return result

    GradScaler.step = scaled_step  # type: ignore[method-assign]

    def put_back() -> None:
        if GradScaler.step is scaled_step:
            GradScaler.step = step  # type: ignore[method-assign]

    return put_back


def _watch_deepspeed(steps: _Steps) -> None:
    """Once its engine is there: it ends a step once for all its groups, and where it skips the update."""
    engine = getattr(sys.modules.get(DEEPSPEED), "DeepSpeedEngine", None)
    take = getattr(engine, "_take_model_step", None)
    if engine is None or take is None:
        return
    steps.watches_engine = True

    def take_model_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.by_engine = True
        result = take(self, *args, **kwargs)
        steps.end()
        return result

    engine._take_model_step = take_model_step


# gloo's worker threads, which must be idle before a group is destroyed, a profiler stops, or Python exits.
#
# A gloo thread releases a collective shortly after its waiter resumes, and needs the GIL for that: to free tensors
# that Python created, to run a future's callback. Meanwhile (torch 2.13, Python 3.11)
#
# - the destructor of the group, which holds the GIL, joins the thread: deadlock;
# - Python exits: taking the GIL then unwinds the thread through a destructor, and the process aborts with
#   «terminate called without an active exception» (pytorch issue 38228). Groups that a DeviceMesh or a DDP module
#   still refers to outlive `destroy_process_group`, so that alone is not enough;
# - a profiler stops: gloo's thread writes the end of its annotation after it has woken the waiter and run the
#   callbacks of the future. The profiler has freed that memory by then, and the process dies later of a corrupted
#   heap («malloc(): unsorted double linked list corrupted»). Happens without gpuscope as well.

THREAD = "pt_gloo_runloop"
"""ProcessGroupGloo's thread name, truncated to 15 characters by the kernel."""
LONGEST_S = 5.0
"""A thread still busy after so long is in a running collective: don't wait for it."""
PATIENCE_S = 1.0
"""How long a profiler's end waits for a collective that the script left running: it may need the next step."""
BLIND_S = 0.05
"""Used where the kernel does not list threads: many times what a thread needs on a machine that is not overloaded."""


def settle(unfinished: Callable[[], bool]) -> None:
    """`rest`, and up to `PATIENCE_S` for collectives that are `unfinished` because a peer is late."""
    end = time.monotonic() + PATIENCE_S
    while unfinished() and time.monotonic() < end:
        time.sleep(0.001)
    rest()


def rest() -> None:
    """Return when gloo's threads are idle or wait for another process; call with the GIL released.

    A thread is idle if it sleeps and has not woken up for four of Python's switch intervals: one that
    waits for the GIL wakes once in each, and one that was preempted does not sleep.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        time.sleep(BLIND_S)
        return
    end = time.monotonic() + LONGEST_S
    before = None
    while (now := _sleeping(tasks)) is None or now != before:
        if time.monotonic() > end:
            return
        before = now  # none at all must be seen twice, too: a thread that has just begun has no name yet
        time.sleep(min(4 * sys.getswitchinterval(), BLIND_S))


def _sleeping(tasks: Path) -> dict[str, str] | None:
    """How often each gloo thread has been switched away from, by thread; None if one of them is not asleep."""
    found: dict[str, str] = {}
    for task in tasks.iterdir():
        try:
            if (task / "comm").read_text().strip() != THREAD[:15]:
                continue
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        except OSError:  # it ended meanwhile
            continue
        if status["State"].split()[0] != "S":
            return None
        found[task.name] = status["voluntary_ctxt_switches"] + status["nonvoluntary_ctxt_switches"]
    return found


# PowerSGD on gloo: bucket after bucket.
#
# Its collectives are issued, and waited for, by callbacks, which gloo runs in its own two threads: with several buckets
# under way their order differs between ranks, and both threads may wait for each other. NCCL's order is that of a
# stream.


def power_sgd_hook(backend: str) -> Callable[[Any, Any], Any]:
    """DDP's communication hook for this backend."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

    @functools.wraps(powerSGD_hook)
    def one_by_one(state: Any, bucket: Any) -> Any:
        future = powerSGD_hook(state, bucket)
        future.wait()
        return future

    return one_by_one if backend == "gloo" else powerSGD_hook


# What the training thread is in, by hooks, and how long it was off its core meanwhile.
#
# Each mark is the wall clock, the thread's own CPU time and the time it was ready and had no core; between two marks,
# wall time less both others is time in which it was blocked.

FORWARD, BACKWARD, OPTIMIZER, INPUT, HOST, GC = "forward", "backward", "optimizer", "input", "host", "gc"
"""Phases. `host` is a checkpoint; what is none of the others is `forward`, whatever the script computes there."""
MOST = 10_000
"""Marks of one step: of a long evaluation between two steps the later ones are left out, and the last phase goes on."""
BLOCKED_NS = 50_000
"""A shorter time off the core is no wait: locks, page faults."""
LEAST_GC_NS = 100_000
"""A shorter collection is part of what it interrupts."""
Mark = tuple[int, int, int | None, str]
"""Wall clock (ns since the epoch), CPU time, time without a core where the kernel was asked, and the phase that begins
there."""


class ThreadMarks:
    """Marks of the thread that made it, between `hook` and `unhook`."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._phase = FORWARD
        self._within: list[str] = []
        self._collecting: tuple[int, int, int] | None = None
        self._undo: list[Callable[[], None]] = []
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1
        self._last = 0, 0, 0
        self.marks: list[Mark] = [(*self._now(), FORWARD)]

    def hook(self) -> None:
        """Put the marks where torch enters and leaves its loader, backward pass, optimizer and checkpoints."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        from torch.utils.data import dataloader

        self._wrap(dataloader._BaseDataLoaderIter, "__next__", INPUT)
        self._wrap(torch, "save", HOST)
        for module in (torch.autograd, torch.autograd.graph):
            if hasattr(module, "_engine_run_backward"):
                self._wrap(module, "_engine_run_backward", BACKWARD)
        before = register_optimizer_step_pre_hook(lambda *_: self._enter(OPTIMIZER))
        after = register_optimizer_step_post_hook(lambda *_: self._leave(OPTIMIZER))
        self._undo += [before.remove, after.remove]
        gc.callbacks.append(self._on_collection)
        self._undo.append(lambda: gc.callbacks.remove(self._on_collection))

    def unhook(self) -> None:
        """Undo `hook`."""
        while self._undo:
            self._undo.pop()()
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1

    def take(self) -> list[Mark]:
        """The marks since the last call, from its end to now: a step ends, whatever the thread is in."""
        self._phase = FORWARD
        self._within.clear()
        self._last = 0, 0, self._last[2]  # at a step's ends all is read
        self.marks.append((*self._now(), FORWARD))
        taken, self.marks = self.marks, self.marks[-1:]
        return taken

    def _goes_on_in(self, phase: str) -> None:
        """Without a mark where one optimizer calls another."""
        if phase != self._phase:
            self._phase = phase
            if len(self.marks) < MOST:
                self.marks.append((*self._now(), phase))

    def _now(self) -> tuple[int, int, int]:
        """What the kernel is asked costs the most: only where the thread was off its core since the last mark."""
        wall, cpu = time.time_ns(), time.thread_time_ns()
        before, ran, waited = self._last
        if wall - before - (cpu - ran) >= BLOCKED_NS and self._schedstat >= 0:
            waited = int(os.pread(self._schedstat, 64, 0).split()[1])
        self._last = wall, cpu, waited
        return self._last

    def _enter(self, phase: str) -> None:
        if threading.get_ident() == self.thread:
            self._within.append(self._phase)
            self._goes_on_in(phase)

    def _leave(self, phase: str) -> None:
        if threading.get_ident() == self.thread and self._phase == phase:
            self._goes_on_in(self._within.pop())

    def _wrap(self, holder: Any, name: str, phase: str) -> None:
        inner = getattr(holder, name)
        enter, leave = self._enter, self._leave

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            enter(phase)
            try:
                return inner(*args, **kwargs)
            finally:
                leave(phase)

        def put_back() -> None:
            if getattr(holder, name) is wrapped:
                setattr(holder, name, inner)

        setattr(holder, name, wrapped)
        self._undo.append(put_back)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if (
            info["generation"] == 0 or threading.get_ident() != self.thread
        ):  # of the youngest, several a step, all short
            return
        if phase == "start":
            self._collecting = self._now()
        elif self._collecting is not None:
            began, self._collecting = self._collecting, None
            if time.time_ns() - began[0] >= LEAST_GC_NS:
                self.marks += [(*began, GC), (*self._now(), self._phase)]


ENV_INSIDE = "GPUSCOPE_INSIDE_NSYS"
ENV_RANK = "GPUSCOPE_RANK"
REPORT = f"rep.%q{{{ENV_RANK}}}"


def nsys_command(nsys: str, output: str, *, version: tuple[int, ...], has_cuda: bool, whole: bool = False) -> list[str]:
    """The `nsys profile …` that goes before a rank's own command.

    Kernels of CUDA graphs one by one, no sampling (it costs much and shows little here), allocations, NVTX, and
    NCCL's own trace from 2025.6. Without a GPU there is no cudaProfilerStart to wait for.
    """
    trace = ["cuda", "nvtx", "osrt"] if has_cuda else ["nvtx", "osrt"]
    if has_cuda and version >= (2025, 6):
        trace.append("nccl")
    command = [nsys, "profile", "-t", ",".join(trace), "-s", "none", "--cpuctxsw=none"]
    if has_cuda:
        command += ["--cuda-graph-trace=node", "--cuda-memory-usage=true"]
        if not whole:
            command += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return [*command, "-o", output]


def nsys_version(nsys: str) -> tuple[int, ...]:
    """(2024, 6, 2) of «NVIDIA Nsight Systems version 2024.6.2.225-…»; () if unknown."""
    try:
        answer = subprocess.run([nsys, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"version\s+(\d+)\.(\d+)\.(\d+)", answer)
    return tuple(int(part) for part in found.groups()) if found else ()


def has_cuda_device() -> bool:
    """Whether this machine has an NVIDIA driver with a device, found without starting CUDA."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def enter_nsys() -> None:
    """Re-execute this process under nsys, if it is a rank that should run there and does not yet."""
    options = json.loads(os.environ.get("GPUSCOPE_RECORD", "{}"))
    launched = launched_rank()
    if options.get("profiler") != "nsys" or ENV_INSIDE in os.environ or launched is None:
        return
    if not options_from().profiles(launched.rank):
        return
    os.environ[ENV_INSIDE] = "1"
    os.environ[ENV_RANK] = str(launched.rank)
    folder = Path(os.environ["GPUSCOPE_RUN_FOLDER"])
    own = [sys.executable, *sys.orig_argv[1:]]
    command = command_under_nsys(own, folder, whole=bool(options.get("whole")))
    sys.stdout.flush()
    os.execvp(command[0], command)


def command_under_nsys(command: Sequence[str], folder: Path, *, whole: bool) -> list[str]:
    """`command` of one rank under nsys, its report in the run folder."""
    nsys = shutil.which("nsys") or "nsys"
    # A rank restarted by torchrun must not meet the report of its previous run.
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    output = folder / "nsys" / (f"restart{restart}.{REPORT}" if restart else REPORT)
    output.parent.mkdir(exist_ok=True)
    profile = nsys_command(nsys, str(output), version=nsys_version(nsys), has_cuda=has_cuda_device(), whole=whole)
    return [*profile, *command]


def nsys_around(environment: Mapping[str, str]) -> bool:
    """Whether this process runs under an nsys that somebody else started."""
    return "NSYS_PROFILING_SESSION_ID" in environment and ENV_INSIDE not in environment


def reports(folder: Path) -> list[tuple[Path, int | None]]:
    """The reports in a run folder, each with its rank."""
    found = sorted((folder / "nsys").glob("*.nsys-rep"))
    ranks = (path.name.split(".")[-2] for path in found)
    return [(path, int(rank) if rank.isdigit() else None) for path, rank in zip(found, ranks, strict=True)]


class NsysRange:
    """Opens nsys's capture range after the warm-up, closes it after the active steps, and marks these.

    With `whole` nsys records everything, and every step is marked.
    """

    name = "nsys"

    def __init__(self, *, wait: int, warmup: int, active: int, whole: bool = False) -> None:
        self._first, self._last = wait + warmup, wait + warmup + active - 1
        self._whole = whole
        self._open = False
        self._step_range: Any = None

    def start(self, folder: RankFolder) -> None:
        """Open at once if no step is skipped."""
        from gpuscope.instrumented_runtime.record.ranges import connect

        if not has_cuda_device():
            blind = "nsys sees no GPU here, and records no operators: gpuscope record --profiler torch"
            folder.problem("no_gpu", blind, severity="data_loss")
        if "GPUSCOPE_RECORD" in os.environ and ENV_INSIDE not in os.environ:
            raise InputError(
                "nsys does not record this process: it started without a rank in its environment",
                hint="start the ranks with torchrun, mpirun or srun, or record with --profiler torch",
            )
        self._nvtx = connect()
        if self._first == 0:
            self._begin()
        self._mark(0)

    def step(self, step: int) -> None:
        """Open before the first active step, close after the last one."""
        self._unmark()
        if step + 1 == self._first:
            self._begin()
        elif step == self._last:
            self._end()
        self._mark(step + 1)

    def stop(self) -> None:
        """Close if the script ended early."""
        self._unmark()
        self._end()

    def _mark(self, step: int) -> None:
        if self._nvtx is not None and (self._whole or self._first <= step <= self._last):
            # Started and ended, not pushed and popped: a step may end inside a range of the script's.
            self._step_range = self._nvtx.start("step", {"step": step})

    def _unmark(self) -> None:
        if self._nvtx is not None and self._step_range is not None:
            self._nvtx.end(self._step_range)
            self._step_range = None

    def _begin(self) -> None:
        import torch

        if torch.cuda.is_available() and not self._whole:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            self._open = True

    def _end(self) -> None:
        if self._open:
            import torch

            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
            self._open = False
