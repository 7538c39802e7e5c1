"""Parses what `nvidia-smi topo -m` prints: which path lies between every two devices of a node."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.when_used import dataclass

PATHS = {
    "NV": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches, without the CPU's host bridge",
    "PHB": "PCIe through the CPU's host bridge",
    "NODE": "PCIe and the link between host bridges of one NUMA node",
    "SYS": "PCIe and the link between CPU sockets (NUMA nodes)",
}
"""What each word of the matrix means, after the legend that nvidia-smi prints."""

_ANSI = when_used.pattern(r"\x1b\[[0-9;]*m")
_CELL = when_used.pattern(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|PSB|SOC")


@dataclass(frozen=True)
class Topology:
    """`paths[(a, b)]` is the word between two devices (`NV18`, `PIX`, `SYS` …), for both orders.

    `numa` holds what the matrix says per device; `nics` the real names behind `NIC0` ….
    """

    devices: tuple[str, ...]
    paths: Mapping[tuple[str, str], str]
    numa: Mapping[str, int | None]
    nics: Mapping[str, str]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs, in the order of the matrix."""
        return tuple(device for device in self.devices if device.startswith("GPU"))


def parse_topology(text: str) -> Topology:
    """Read the matrix out of `nvidia-smi topo -m`'s output, with or without a prompt line before it.

    Raises `InputError` where there is no matrix, or a row has fewer cells than there are columns.
    """
    lines = [_ANSI.sub("", line).rstrip() for line in text.splitlines()]
    start, devices = _header(lines)
    rows = {}
    for line in lines[start + 1 :]:
        words = line.split()
        if words and words[0] in devices:
            rows[words[0]] = words[1:]
    missing = [device for device in devices if len(rows.get(device, ())) < len(devices)]
    if missing:
        raise InputError(
            f"the topology matrix has no complete row for {missing[0]}",
            hint="pass the whole output of `nvidia-smi topo -m`",
        )
    return Topology(
        devices=devices,
        paths=_paths(devices, rows),
        numa={device: _numa(rows[device], len(devices)) for device in devices},
        nics=_nics(lines),
    )


def _header(lines: list[str]) -> tuple[int, tuple[str, ...]]:
    for number, line in enumerate(lines):
        # The columns after the devices have names of two words: CPU Affinity, NUMA Affinity, GPU NUMA ID.
        names = re.split(r"\s+(?:CPU|NUMA) Affinity", line.strip())[0].split()
        if names and names[0] == "GPU0":
            if len(names) > 1 and _CELL.fullmatch(names[1]):
                continue  # the row of GPU0, in a text whose header was cut off
            return number, tuple(names)
    raise InputError(
        "no topology matrix: no header line that starts with GPU0",
        hint="pass the output of `nvidia-smi topo -m`",
    )


def _paths(devices: tuple[str, ...], rows: Mapping[str, list[str]]) -> dict[tuple[str, str], str]:
    paths = {}
    for a in devices:
        for b, cell in zip(devices, rows[a], strict=False):
            if not _CELL.fullmatch(cell):
                raise InputError(f"the topology matrix has {cell!r} between {a} and {b}")
            if a != b:
                paths[a, b] = cell
    return paths


def _numa(row: list[str], devices: int) -> int | None:
    """The column behind those of the devices and of the CPU affinity."""
    word = row[devices + 1] if len(row) > devices + 1 else ""
    return int(word) if word.isdecimal() else None


def _nics(lines: list[str]) -> dict[str, str]:
    found = (re.fullmatch(r"\s*(NIC\d+):\s+(\S+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}
