"""A rank's machine and software versions, recorded because both will have changed when the trace is read.

Nothing is asked of CUDA before the script has initialised it: an early question fixes CUDA_VISIBLE_DEVICES, takes
memory on the first device and breaks processes forked later.
"""

from __future__ import annotations

import gzip
import inspect
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record import nsys_capture, nvml_samples
from gpuscope.instrumented_runtime.record.nvml_samples import CORE_TIME_KEY, CoreTime, Guard, guard
from gpuscope.instrumented_runtime.record.run_folder import RankFolder
from gpuscope.recorded_environment import kept
from gpuscope.trace.frameworks import parallelism as degrees_by_kind
from gpuscope.version import __version__
from gpuscope.words.units import plural

ENOUGH = 2
"""Whole steps with which a window that the script's own profiler cuts short is worth keeping."""
NO_ROOM = "no trace: the script's own torch.profiler ran, and no steps followed it"

# torch.profiler on a schedule: one `rank{r}.json.gz` per rank, complete or absent.


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
        self._guard: Guard | None = None
        self._begins = wait
        """The step as which the profiler is made; later where the script's own is running then, or cut ours short."""
        self._gave_way = self._cut_short = self._done = False
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
        self._guard = guard(self._is_ours, self._release)
        # Making it asks CUDA for its devices, so not before the script has used its own.
        if self._schedule is None or self._schedule["wait"] == 0:
            self._make(0)
        self._begin(0)

    def _is_ours(self, profiler: Any) -> bool:
        return self._profiler is not None and profiler is self._profiler.profiler

    def _make(self, step: int) -> None:
        """Make and start torch's profiler as step `step` begins."""
        from torch.profiler import profile, schedule, supported_activities

        plan = None
        if self._schedule:
            plan = schedule(**{**self._schedule, "wait": self._begins})
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
            elif self._schedule is not None and step + 1 >= self._begins and not self._done:
                self._make_if_free(step + 1)
            self._begin(step + 1)
        except Exception:
            # The profiler's state is unknown now: never touch it again, nor block another one.
            self._gave_way = True
            self._unguard()
            raise

    def _make_if_free(self, step: int) -> None:
        """Make torch's profiler as step `step` begins, unless the script's own is running: then once that has ended."""
        if self._guard is not None and self._guard.busy:
            self._begins = step + 1
            return
        assert self._schedule is not None
        later = step - self._schedule["wait"]
        if later:
            warmup, active = self._schedule["warmup"], self._schedule["active"]
            self._begins, self.first_step, self.last_step = step, step + warmup, step + warmup + active - 1
            self._folder.withdraw("gave_way")
            self._folder.problem(
                "moved",
                f"recorded from step {self.first_step} on, after the script's own torch.profiler",
                severity="info",
            )
        self._make(step)

    def _unguard(self) -> None:
        if self._guard is not None:
            self._guard.remove()

    def stop(self) -> None:
        """Write what the active window holds so far; report it if the window never opened."""
        try:
            if self._gave_way:
                return
            if self._profiler is not None:
                self._profiler.stop()
        finally:
            self._unguard()
        if not self._written and self._cut_short:
            self._folder.withdraw("gave_way")
            self._folder.problem("gave_way", NO_ROOM, severity="data_loss")
        elif not self._written:
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
        recorded = self._schedule is not None and self.first_step <= step <= self.last_step
        return recorded and self._profiler is not None  # the script's own may run instead

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
            self._profiler.add_metadata_json(CORE_TIME_KEY, json.dumps(cores))
        if self._nvml is not None and (row := self._nvml.row()) is not None:
            self._gpu.append(row)
            found = {"columns": nvml_samples.COLUMNS, "steps": self._gpu}
            self._profiler.add_metadata_json(nvml_samples.KEY, json.dumps(found))

    def _release(self) -> None:
        from torch.profiler import ProfilerAction

        if self._gave_way or self._profiler is None or self._profiler.current_action is ProfilerAction.NONE:
            return
        self._done = self._steps - self.first_step >= ENOUGH
        profiler, again = self._profiler, self._schedule is not None and not (self._cut_short or self._done)
        # Once: a script that profiles itself again and again leaves no room for a window of ours.
        self._gave_way, self._cut_short = not again, True
        self._folder.problem(
            "gave_way",
            f"recording ended in step {self._steps}, where the script starts its own torch.profiler",
            severity="info" if again else "data_loss",
        )
        profiler.stop()
        if again:
            self._profiler, self._begins = None, self._steps + 1

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


PACKAGES = (
    "torch",
    "nvtx",
    "numpy",
    "transformers",
    "accelerate",
    "lightning",
    "deepspeed",
    "megatron-core",
    "triton",
    "flash-attn",
    "transformer-engine",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)

MOST_LANES = 32
"""Of a PCIe link."""
_MODULES = {
    "megatron.core": "megatron",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "transformers.trainer": "transformers",
    "accelerate": "accelerate",
}


class Environment:
    """Writes `environment/rank{r}.json`, and the first rank of a machine its topology."""

    name = "environment"

    def start(self, folder: RankFolder) -> None:
        """Write what is known at the start."""
        self._folder = folder
        self._found = describe()
        self._write()
        folder.note(versions=self._found["versions"])
        if folder.part.local_rank == 0:
            topology = command_output(["nvidia-smi", "topo", "-m"])
            if topology:
                path = folder.file(f"environment/topology_{folder.part.host}.txt")
                path.write_text(topology, encoding="utf-8")
                folder.add_file(path, "topology")

    def step(self, step: int) -> None:
        """Add torch.distributed's state, since the groups may be gone at the end, and the device that is now in use."""
        if step == 0:
            self._found |= {"gpus": gpus(), "device": device(), "pcie": pcie()}
            self._add_groups()
            self._write()

    def stop(self) -> None:
        """Add torch.distributed's current state, if it is still initialised."""
        if not self._found["gpus"] and gpus():
            self._found |= {"gpus": gpus(), "device": device(), "pcie": pcie()}
            self._write()
        self._add_groups()

    def _add_groups(self) -> None:
        facts = self._folder.part.facts
        if "framework" not in facts and framework() is not None:
            self._folder.note(framework=framework())
        info = distributed()
        if info:
            self._found["distributed"] = info
            self._folder.note(backend=info["backend"])
            degrees = parallelism(info["groups"])
            if degrees and "parallelism" not in facts:
                self._folder.note(parallelism=degrees)
            self._write()

    def _write(self) -> None:
        path = self._folder.file(f"environment/rank{self._folder.part.rank}.json")
        path.write_text(json.dumps(self._found, indent=2) + "\n", encoding="utf-8")
        self._folder.add_file(path, self.name)


def describe() -> dict[str, Any]:
    """Versions, variables, processor, NUMA nodes and, once CUDA is in use, GPUs of this process and its machine."""
    import torch

    return {
        "versions": versions(),
        "variables": kept(os.environ),
        "platform": {
            "system": platform.system(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "affinity": _affinity(),
            "numa_nodes": numa_nodes(),
            "memory_bytes": _memory(),
            "threads": torch.get_num_threads(),
        },
        "gpus": gpus(),
        "device": device(),
    }


def gpus() -> list[dict[str, Any]]:
    """The GPUs this process sees; none before it has initialised CUDA."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {
            "name": gpu.name,
            "memory_bytes": gpu.total_memory,
            "multiprocessors": gpu.multi_processor_count,
            "capability": f"{gpu.major}.{gpu.minor}",
            "uuid": str(getattr(gpu, "uuid", "")),
        }
        for gpu in found
    ]


def device() -> int | None:
    """Index in `gpus` of the calling thread's device."""
    import torch

    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.current_device() if in_use else None


def pcie(sysfs: Path = Path("/sys")) -> dict[str, Any]:
    """Lanes and speed of the PCIe link of the calling thread's GPU, now and at most; {} where that is not known. Read
    from sysfs: a process of nvidia-smi for each rank would hold the driver up."""
    import torch

    own = device()
    properties: Any = None if own is None else torch.cuda.get_device_properties(own)
    parts: list[Any] = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return {} if None in parts else link_of("{:04x}:{:02x}:{:02x}.0".format(*parts), sysfs)  # before torch 2.9


def link_of(bus_id: str, sysfs: Path) -> dict[str, Any]:
    """The same of the GPU at a bus address."""
    found: dict[str, Any] = {}
    with suppress(OSError):
        for key, most in (("", "current"), ("most_", "max")):
            speed, width = (
                (sysfs / "bus/pci/devices" / bus_id / f"{most}_link_{what}").read_text().strip()
                for what in ("speed", "width")
            )
            # The kernel says 0 and 255 of a link that is down or unknown.
            lanes = int(width) if width.isdecimal() and 0 < int(width) <= MOST_LANES else None
            found |= {f"{key}lanes": lanes, f"{key}speed": speed}
    return found


def versions() -> dict[str, str | None]:
    """Versions of the installed packages that take part in training."""
    import torch

    found: dict[str, str | None] = {"gpuscope": __version__, "python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["torch"] = str(torch.__version__)
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def distributed() -> dict[str, Any] | None:
    """Backend and process groups of this process; None where it is alone."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return {
        "backend": dist.get_backend(),
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "groups": dist.distributed_c10d._get_all_pg_configs(),
    }


def numa_nodes() -> dict[str, str]:
    """NUMA node → its CPUs, as Linux lists them (`{"0": "0-15"}`); empty elsewhere."""
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    return {node.name[4:]: (node / "cpulist").read_text().strip() for node in nodes}


def command_output(command: list[str]) -> str | None:
    """What a command prints; None where it is missing, fails or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def framework(modules: Iterable[str] | None = None) -> str | None:
    """The training framework among the imported modules, the most specific one; None for plain torch."""
    loaded = set(sys.modules if modules is None else modules)
    return next((name for module, name in _MODULES.items() if module in loaded), None)


def parallelism(groups: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Degree of each parallelism, from the groups that torch's `_get_all_pg_configs` lists."""
    return degrees_by_kind((str(group.get("pg_desc") or ""), group["pg_size"]) for group in groups)
