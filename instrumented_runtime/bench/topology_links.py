"""Expected bandwidth between each pair of GPUs of a node, from `nvidia-smi topo -m` and sysfs.

Rates are GB/s per direction, assumed from the links' data sheets (`gpuscope/hardware/links.toml`), not measured.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.hardware.link_rates import Link, gpu_nvlink, gpu_pcie, links, pcie
from gpuscope.hardware.topology_matrix import PATHS, Topology, parse_topology
from gpuscope.instrumented_runtime.bench.machine import numa_nodes, pci_gpus, ports
from gpuscope.schema.bench_documents import BenchTopology, PairRow

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
