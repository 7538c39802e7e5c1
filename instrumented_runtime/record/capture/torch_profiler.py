"""torch.profiler on a schedule: one `rank{r}.json.gz` per rank, complete or absent."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.capture import nsys_capture, nvml_samples
from gpuscope.instrumented_runtime.record.capture.core_time import KEY, CoreTime
from gpuscope.instrumented_runtime.record.capture.profiler_guard import guard
from gpuscope.instrumented_runtime.record.run_folder import RankFolder
from gpuscope.words.units import plural


class TorchProfiler:
    """Skips `wait` steps, warms up, records `active` steps, then writes the trace.

    `whole` records from start to stop instead. `metadata` is written into the trace as JSON values.
    `rewrite` may change the finished JSON file before it is compressed. `nvml` samples the GPU in each recorded step.
    """

    name = "torch_profiler"

    def __init__(
        self,
        *,
        wait: int = 2,
        warmup: int = 1,
        active: int = 5,
        whole: bool = False,
        record_shapes: bool = True,
        with_stack: bool = False,
        profile_memory: bool = False,
        metadata: Mapping[str, Any] | None = None,
        rewrite: Callable[[Path], None] | None = None,
        nvml: nvml_samples.Nvml | None = None,
    ) -> None:
        self.first_step, self.last_step = wait + warmup, wait + warmup + active - 1
        self._schedule = None if whole else {"wait": wait, "warmup": warmup, "active": active, "repeat": 1}
        self._shapes, self._stack, self._memory = record_shapes, with_stack, profile_memory
        self._metadata = dict(metadata or {})
        self._rewrite = rewrite
        self._profiler: Any = None
        self._unguard: Callable[[], None] = lambda: None
        self._gave_way = False
        self._written = False
        self._steps = 0
        self._cores = CoreTime()
        self._nvml, self._gpu = nvml, list[list[int | None]]()

    def start(self, folder: RankFolder) -> None:
        """Raises `InputError` if the script profiles itself: torch has one profiler per process."""
        import torch.autograd.profiler

        if torch.autograd.profiler._is_profiler_enabled:
            raise InputError("another torch.profiler is running", hint="record one thing at a time")
        self._folder = folder
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its lines on stderr, from which nothing follows
        if nsys_capture.nsys_around(os.environ) and nsys_capture.has_cuda_device():
            beside = (
                "this runs under nsys, beside which torch.profiler gets no kernels: gpuscope record --profiler nsys"
            )
            folder.problem("beside_nsys", beside, severity="data_loss")
        # Without `acc_events`: with it torch parses every event in Python as the window closes, ten times its export.
        self._unguard = guard(self._is_ours, self._release)
        # Making it asks CUDA for its devices, so not before the script has used its own.
        if self._schedule is None or self._schedule["wait"] == 0:
            self._make(0)
        self._begin(0)

    def _is_ours(self, profiler: Any) -> bool:
        return self._profiler is not None and profiler is self._profiler.profiler

    def _make(self, step: int) -> None:
        """Make and start torch's profiler as step `step` begins."""
        from torch.profiler import profile, schedule, supported_activities

        plan = schedule(**self._schedule) if self._schedule else None
        self._profiler = profile(
            activities=supported_activities(),  # type: ignore[no-untyped-call]
            schedule=plan,
            on_trace_ready=self._write,
            record_shapes=self._shapes,
            with_stack=self._stack,
            profile_memory=self._memory,
            experimental_config=_sync_events(),
        )
        if plan is not None:
            self._profiler.step_num, self._profiler.current_action = step, plan(step)
        part = self._folder.part
        identity = {"rank": part.rank, "world_size": part.world_size, "host": part.host, "pid": part.pid}
        for key, value in {"gpuscope_run": identity, **self._metadata}.items():
            # Preset, because metadata added before the active window is lost.
            self._profiler.preset_metadata_json(key, json.dumps(value))
        self._profiler.start()

    def step(self, step: int) -> None:
        """Advance the schedule."""
        self._steps = step + 1
        if self._gave_way:
            return
        try:
            self._count(step)
            if self._profiler is not None:
                self._profiler.step()
            elif self._schedule is not None and step + 1 == self._schedule["wait"]:
                self._make(step + 1)
            self._begin(step + 1)
        except Exception:
            # The profiler's state is unknown now: never touch it again, nor block another one.
            self._gave_way = True
            self._unguard()
            raise

    def stop(self) -> None:
        """Write what the active window holds so far; report it if the window never opened."""
        try:
            if self._gave_way:
                return
            if self._profiler is not None:
                self._profiler.stop()
        finally:
            self._unguard()
        if not self._written:
            self._folder.problem(
                "no_active_steps",
                f"no trace: the script ended after {plural(self._steps, 'step')}, recording starts with step "
                f"{self.first_step}; {_fitting(self._steps)}",
                severity="data_loss",
            )
        elif self._schedule and self._steps <= self.last_step:
            whole, asked = self._steps - self.first_step, self.last_step - self.first_step + 1
            more = "" if whole else f"; {_fitting(self._steps)}"
            self._folder.problem(
                "fewer_steps",
                f"recorded {whole} whole steps of {asked}: the script ended{more}",
                severity="info" if whole else "data_loss",
            )

    def _counts(self, step: int) -> bool:
        """Whether to record the wait for cores: in recorded steps only."""
        return self._schedule is not None and self.first_step <= step <= self.last_step

    def _begin(self, step: int) -> None:
        if self._counts(step):
            self._cores.begin()

    def _count(self, step: int) -> None:
        """Record the step's wait for cores and its GPU's clocks; written again after each step, since a script may end
        early."""
        if not self._counts(step):
            return
        import torch

        self._cores.step(step)
        if cores := self._cores.metadata(torch.get_num_threads()):
            self._profiler.add_metadata_json(KEY, json.dumps(cores))
        if self._nvml is not None and (row := self._nvml.row()) is not None:
            self._gpu.append(row)
            found = {"columns": nvml_samples.COLUMNS, "steps": self._gpu}
            self._profiler.add_metadata_json(nvml_samples.KEY, json.dumps(found))

    def _release(self) -> None:
        from torch.profiler import ProfilerAction

        if self._gave_way or self._profiler is None or self._profiler.current_action is ProfilerAction.NONE:
            return
        self._gave_way = True
        self._folder.problem(
            "gave_way",
            f"recording ended in step {self._steps}, where the script starts its own torch.profiler",
            severity="data_loss",
        )
        self._profiler.stop()

    def _write(self, profiler: Any) -> None:
        self._written = True
        plain = self._folder.file(f".rank{self._folder.part.rank}.json")
        target = self._folder.file(f"rank{self._folder.part.rank}.json.gz")
        try:
            profiler.export_chrome_trace(str(plain))
            check_complete(plain)
            if self._rewrite is not None:
                self._rewrite(plain)
            compress(plain, target)
        finally:
            plain.unlink(missing_ok=True)
            plain.with_name(plain.name + ".tmp").unlink(missing_ok=True)  # Kineto's own
        self._folder.add_file(target, self.name)


def _fitting(steps: int) -> str:
    """What records a script of so few steps."""
    if steps < 2:
        return "record it from start to end with --whole"
    return f"record it with --wait 0 --warmup 1 --active {steps - 1}"


def check_complete(path: Path) -> None:
    """Raises `OSError` if the trace's JSON is missing or cut off: Kineto does not report a full disk."""
    if not path.exists():
        raise OSError("torch.profiler could not write its trace: is the disk full?")
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 64))
        if not file.read().rstrip().endswith((b"}", b"]")):
            raise OSError(f"{path.name} was cut off while it was written: is the disk full?")


def compress(source: Path, target: Path) -> None:
    """Gzip `source` to `target` atomically."""
    partial = target.with_name(target.name + ".partial")
    try:
        with source.open("rb") as plain, gzip.open(partial, "wb", compresslevel=6) as packed:
            shutil.copyfileobj(plain, packed, 1 << 20)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _sync_events() -> Any:
    """Options to record CUDA synchronisations as events, if this torch supports it."""
    from torch._C._profiler import _ExperimentalConfig

    takes = "enable_cuda_sync_events" in (inspect.getdoc(_ExperimentalConfig.__init__) or "")
    return _ExperimentalConfig(enable_cuda_sync_events=True) if takes else None
