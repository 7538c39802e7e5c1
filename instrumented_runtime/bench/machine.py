"""A node's NUMA nodes, GPUs on the PCI bus and network ports, from Linux without any driver.

Everything is read from sysfs below a given root, so that a test can pass a small tree.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpuscope.hardware.link_rates import Link, network, pcie
from gpuscope.schema.bench_documents import NetworkPort, NumaNode, PciGpu

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
