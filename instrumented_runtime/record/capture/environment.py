"""A rank's machine and software versions, recorded because both will have changed when the trace is read.

Nothing is asked of CUDA before the script has initialised it: an early question fixes CUDA_VISIBLE_DEVICES, takes
memory on the first device and breaks processes forked later.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpuscope.instrumented_runtime.record.run_folder import RankFolder
from gpuscope.recorded_environment import kept
from gpuscope.trace.naming.frameworks import parallelism as degrees_by_kind
from gpuscope.version import __version__

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
