"""Expected bandwidth between each pair of GPUs of a node, from `nvidia-smi topo -m` and sysfs.

Rates are GB/s per direction, assumed from the links' data sheets (`gpuscope/hardware/links.toml`), not measured.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError, UsageError
from gpuscope.hardware.device_peaks import PATHS, Topology, parse_topology
from gpuscope.hardware.link_rates import Link, gpu_nvlink, gpu_pcie, links, network, pcie
from gpuscope.instrumented_runtime.train.settings.config import Degrees, TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import assemble, validate
from gpuscope.schema.bench_documents import BenchTopology, NetworkPort, NumaNode, PairRow, PciGpu

# Sizes as nccl-tests writes them: `8`, `64K`, `16M`, `1G`, in powers of 1024.

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_size(text: str) -> int:
    """Bytes of `64K`, `16M`, `1GiB`. Raises `UsageError` for anything else."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"{text!r} is not a size", hint="write 8, 64K, 16M or 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


def format_size(nbytes: int) -> str:
    """The shortest exact form: 65536 is `64K`, 1000 is `1000`."""
    for unit in ("G", "M", "K"):
        if nbytes >= _UNITS[unit] and nbytes % _UNITS[unit] == 0:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)


def sweep(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Sizes from the smallest to the largest, each `factor` times the one before."""
    if factor < 2:
        raise UsageError(f"--stepfactor must be at least 2, not {factor}")
    if not 0 < smallest <= largest:
        raise UsageError(
            f"the sizes run from {smallest} to {largest}", hint="--minbytes must be positive and at most --maxbytes"
        )
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


# What to measure, checked without torch: what can't be meant is refused before its import, which takes seconds.

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
DTYPES = ("float32", "float16", "bfloat16", "int32")


@dataclass(frozen=True)
class CollectiveOptions:
    """What to measure. `sizes` are bytes of the whole array, rounded down to whole elements per rank."""

    ops: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = (1024, 1024**2)
    iterations: int = 20
    warmup: int = 5
    dtype: str = "float32"
    check: bool = True

    def __post_init__(self) -> None:
        unknown = [op for op in self.ops if op not in OPERATIONS]
        if unknown:
            raise UsageError(f"unknown operation {unknown[0]!r}", hint=f"--op takes {', '.join(OPERATIONS)}")
        if self.dtype not in DTYPES:
            raise UsageError(f"unknown --dtype {self.dtype!r}", hint=f"it takes {', '.join(DTYPES)}")
        if self.iterations < 1 or self.warmup < 0:
            raise UsageError("--iterations must be at least 1 and --warmup at least 0")


def check_ranks(number: int) -> None:
    """Raise `UsageError` where these are too few for a collective."""
    if number < 2:
        raise UsageError(f"a collective needs at least two ranks, not {number}", hint="give --nproc 2 or more")


@dataclass(frozen=True)
class ScalingOptions:
    """What to train, and on how many processes one after the other. `steps` are timed, `warmup` are not."""

    nprocs: tuple[int, ...] = (1, 2)
    parallel: str = "ddp"
    preset: str = "tiny"
    settings: tuple[str, ...] = ()
    steps: int = 20
    warmup: int = 5
    strong: bool = False

    def __post_init__(self) -> None:
        if not self.nprocs or min(self.nprocs) < 1 or list(self.nprocs) != sorted(set(self.nprocs)):
            raise UsageError(f"--nproc takes rising numbers of processes, not {self.nprocs}", hint="--nproc 1,2,4")
        if self.steps < 1 or self.warmup < 1:
            raise UsageError("--steps and --warmup must be at least 1: the first step is never typical")


def plan(options: ScalingOptions, nprocs: int) -> tuple[TrainConfig, Degrees]:
    """The configuration and mesh for `nprocs` processes, checked."""
    more: dict[str, Any] = {"train.steps": options.warmup + options.steps, "capture.profile": False}
    config = assemble(
        parallel=options.parallel,
        world_size=nprocs,
        preset=options.preset,
        settings=options.settings,
        more=more,
    )
    degrees = validate(config, nprocs)
    if options.strong and degrees.data_ranks > 1:
        if config.data.batch % degrees.data_ranks:
            raise UsageError(
                f"--strong: data.batch={config.data.batch} can't be shared by {degrees.data_ranks} ranks",
                hint=f"--set data.batch={config.data.batch * degrees.data_ranks}",
            )
        config = config.replace("data", batch=config.data.batch // degrees.data_ranks)
    return config, degrees


# A node's NUMA nodes, GPUs on the PCI bus and network ports, from Linux without any driver.
#
# Everything is read from sysfs below a given root, so that a test can pass a small tree.

_DISPLAY_CLASSES = ("0x0300", "0x0302")
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
# GT/s of a lane to the PCIe generation.
_GENERATIONS = {"8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None  # absent, or (a port that is down) present and unreadable


def _node(path: Path) -> int | None:
    text = _read(path)
    # The kernel writes -1 for unknown.
    return int(text) if text and text.isdecimal() else None


def numa_nodes(sysfs: Path = Path("/sys")) -> tuple[NumaNode, ...]:
    """The NUMA nodes in order; empty where sysfs has none."""
    found = []
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        distances = (_read(folder / "distance") or "").split()
        found.append(NumaNode(int(folder.name[4:]), _read(folder / "cpulist") or "", tuple(map(int, distances))))
    return tuple(sorted(found, key=lambda node: node.node))


def pci_gpus(sysfs: Path = Path("/sys")) -> tuple[PciGpu, ...]:
    """NVIDIA's and AMD's display and 3-D controllers on the PCI bus, by bus id."""
    found = []
    for folder in sorted((sysfs / "bus/pci/devices").glob("*")):
        vendor = _VENDORS.get(_read(folder / "vendor") or "")
        if vendor and (_read(folder / "class") or "").startswith(_DISPLAY_CLASSES):
            found.append(
                PciGpu(
                    bus_id=folder.name,
                    vendor=vendor,
                    numa=_node(folder / "numa_node"),
                    link=_pci_link(folder, "current"),
                    best=_pci_link(folder, "max"),
                )
            )
    return tuple(found)


def _pci_link(folder: Path, which: str) -> Link | None:
    speed = re.match(r"([\d.]+) GT/s", _read(folder / f"{which}_link_speed") or "")
    width = _read(folder / f"{which}_link_width")
    if not speed or speed[1] not in _GENERATIONS or not width or not width.isdecimal():
        return None
    # The kernel reports 0 and 255 for a link that is down or unknown.
    return pcie(_GENERATIONS[speed[1]], int(width)) if 0 < int(width) <= 32 else None


def ports(sysfs: Path = Path("/sys")) -> tuple[NetworkPort, ...]:
    """InfiniBand and RoCE ports, then Ethernet interfaces with a device behind them (no `lo`)."""
    return (*_rdma_ports(sysfs), *_ethernet_ports(sysfs))


def _rdma_ports(sysfs: Path) -> list[NetworkPort]:
    found = []
    for device in sorted((sysfs / "class/infiniband").glob("*")):
        for port in sorted((device / "ports").glob("*")):
            rate = re.match(r"([\d.]+) Gb/sec", _read(port / "rate") or "")
            kind = "roce" if _read(port / "link_layer") == "Ethernet" else "infiniband"
            link = network(kind, float(rate[1])) if rate else None
            found.append(NetworkPort(f"{device.name}:{port.name}", _node(device / "device/numa_node"), link))
    return found


def _ethernet_ports(sysfs: Path) -> list[NetworkPort]:
    found = []
    for interface in sorted((sysfs / "class/net").glob("*")):
        if not (interface / "device").exists():
            continue
        speed = _read(interface / "speed")
        # Mbit/s; virtual ports answer -1 or nothing.
        link = network("ethernet", int(speed) / 1000) if speed and speed.isdecimal() and int(speed) > 0 else None
        found.append(NetworkPort(interface.name, _node(interface / "device/numa_node"), link))
    return found


_QUERY = "index,name,pcie.link.gen.max,pcie.link.width.max,pcie.link.width.current"
# Beyond several PCIe switches NCCL prefers copying through host memory by default (NCCL_P2P_LEVEL).
_FAR = ("PHB", "NODE", "SYS", "SOC")


@dataclass(frozen=True)
class Gpu:
    """One GPU: its product name and the PCIe link it can use, where known."""

    name: str
    pcie: Link | None
    note: str = ""


def read_matrix(path: Path | None) -> str | None:
    """The text of `nvidia-smi topo -m`, from a file or from the command; None without nvidia-smi.

    Raises `InputError` when the file can't be read or the command fails.
    """
    if path is not None:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
    return _nvidia_smi("topo", "-m") if shutil.which("nvidia-smi") else None


def query_gpus() -> dict[str, Gpu]:
    """Name and PCIe link of every GPU by `GPU<index>`, from nvidia-smi; empty where that fails."""
    if not shutil.which("nvidia-smi"):
        return {}
    try:
        return parse_gpus(_nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"))
    except InputError:
        return {}


def parse_gpus(text: str) -> dict[str, Gpu]:
    """The rows of nvidia-smi's query; a card in fewer lanes than it could use is noted."""
    found = {}
    for line in text.strip().splitlines():
        index, name, generation, width, current = (word.strip() for word in line.split(","))
        link = pcie(int(generation), int(width)) if generation.isdecimal() and width.isdecimal() else None
        narrow = current.isdecimal() and width.isdecimal() and int(current) < int(width)
        note = f"runs on {current} of {width} PCIe lanes" if narrow else ""
        found[f"GPU{index}"] = Gpu(name, link.of(int(current)) if link and narrow else link, note)
    return found


def _nvidia_smi(*arguments: str) -> str:
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"nvidia-smi: {error}") from error
    if done.returncode:
        raise InputError(f"nvidia-smi {' '.join(arguments)} failed: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def report(
    matrix: str | None,
    gpus: Mapping[str, Gpu],
    gpu_name: str | None = None,
    sysfs: Path | None = Path("/sys"),
) -> BenchTopology:
    """Join the matrix with the GPUs' names and the machine.

    `gpu_name` replaces missing names; `sysfs` is None for a matrix of another machine.
    """
    topology = parse_topology(matrix) if matrix else None
    known = dict(gpus)
    if topology and gpu_name:
        known = {gpu: known.get(gpu) or Gpu(gpu_name, gpu_pcie(gpu_name)) for gpu in topology.gpus}
    notes = [f"{gpu}: {known[gpu].note}" for gpu in known if known[gpu].note]
    if topology is None:
        notes.append("no nvidia-smi on this machine: no pair of GPUs to report")
    return BenchTopology(
        gpus={gpu: known[gpu].name for gpu in known},
        pairs=tuple(_pairs(topology, known)) if topology else (),
        numa=numa_nodes(sysfs) if sysfs else (),
        pci_gpus=pci_gpus(sysfs) if sysfs else (),
        ports=ports(sysfs) if sysfs else (),
        notes=tuple(notes + (_placement(topology) if topology else [])),
    )


def _pairs(topology: Topology, known: Mapping[str, Gpu]) -> list[PairRow]:
    switched = _switched(topology)
    rows = []
    for index, a in enumerate(topology.gpus):
        for b in topology.gpus[index + 1 :]:
            path = topology.paths[a, b]
            pair = _nvlink if path.startswith("NV") else _over_pcie
            rows.append(pair(a, b, path, known, switched))
    return rows


def _switched(topology: Topology) -> bool:
    """Whether the GPUs are joined by NVSwitches: more than two, and the same NVLinks between every pair."""
    cells = {topology.paths[a, b] for a in topology.gpus for b in topology.gpus if a != b}
    return len(topology.gpus) > 2 and len(cells) == 1 and next(iter(cells)).startswith("NV")


def _nvlink(a: str, b: str, path: str, known: Mapping[str, Gpu], switched: bool) -> PairRow:
    count = int(path[2:])
    # Two GPUs alone can be joined either way.
    how = "through NVSwitch" if switched else "direct" if len(known) > 2 else "direct or through NVSwitch"
    shared = "the rate is the GPU's, shared by all its peers" if switched else ""
    link = gpu_nvlink(known[a].name) if a in known else None
    if link is None:
        candidates = [one.of(count) for one in links().values() if one.kind == "nvlink" and count <= one.units]
        rates = ", ".join(f"{one.peak:g} if {one.name}" for one in candidates)
        note = f"GPU name unknown, peak is {rates}" if rates else "GPU name unknown"
        return PairRow(a, b, path, f"{count} NVLinks, {how}", None, None, note)
    if count > links()[link.key].units:
        shared = f"more NVLinks than {link.name} has on a GPU: is the GPU's name right?"
    link = link.of(count)
    return PairRow(a, b, path, f"{count} × {link.name}, {how}", link.peak, link.usable, shared)


def _over_pcie(a: str, b: str, path: str, known: Mapping[str, Gpu], _switched: bool) -> PairRow:
    ends = [known[gpu].pcie or gpu_pcie(known[gpu].name) for gpu in (a, b) if gpu in known]
    slower = min((end for end in ends if end), key=lambda end: end.peak, default=None)
    note = "by default NCCL does not use peer-to-peer here and copies through host memory" if path in _FAR else ""
    if path in ("SYS", "SOC"):
        note += "; the link between sockets can be slower than PCIe (NCCL assumes 6-40 GB/s by CPU)"
    where = PATHS.get(path, path)
    if len(ends) < 2 or slower is None:
        return PairRow(a, b, path, where, None, None, note or "PCIe generation unknown")
    link = f"{slower.name} ×{slower.units}, {where}"
    # Across sockets PCIe is only the upper bound: what is usable depends on an unknown link.
    usable = None if path in ("SYS", "SOC") else slower.usable
    return PairRow(a, b, path, link, slower.peak, usable, note)


def _placement(topology: Topology) -> list[str]:
    """GPUs without a network port on their own PCIe switch: their RDMA crosses the CPU."""
    nics = [device for device in topology.devices if device not in topology.gpus]
    if not nics:
        return []
    notes = []
    for gpu in topology.gpus:
        paths = {nic: topology.paths[gpu, nic] for nic in nics}
        near = [nic for nic, path in paths.items() if path in ("PIX", "PXB")]
        if not near:
            best = min(paths.items(), key=lambda item: list(PATHS).index(item[1]) if item[1] in PATHS else 99)
            name = topology.nics.get(best[0], best[0])
            notes.append(f"{gpu}: no network port behind its PCIe switches; the nearest, {name}, is {best[1]} away")
    return notes
