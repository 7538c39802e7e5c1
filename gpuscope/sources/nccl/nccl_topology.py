"""NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`): PCIe, NVLink and network links of one host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.hardware.device_peaks import parse_topology
from gpuscope.hardware.link_rates import pcie
from gpuscope.sources import stream
from gpuscope.sources.nccl import NCCL_ALONE
from gpuscope.sources.source import Files, ReadOptions, Role, Source
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA

if TYPE_CHECKING:
    from xml.etree import ElementTree


# What `nvidia-smi topo -m` prints: which path lies between every two devices of a host.

_HEADER = when_used.pattern(rb"^\W*(?:\[4m)?GPU0\s", re.MULTILINE)
_ROW = when_used.pattern(rb"^\W*GPU0\s+X\s", re.MULTILINE)


class TopoMatrixSource(Source):
    """Reads `topology`."""

    name = "nvidia-smi-topo"
    files = Files(Role.RECORD, (".txt",), alone=NCCL_ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """A matrix whose first row is GPU0's."""
        return path.is_file() and b"\0" not in head and bool(_HEADER.search(head)) and bool(_ROW.search(head))

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a matrix. Raises `InputError` where it is not whole."""
        text = b"".join(stream.blocks(path, options.advance)).decode(errors="replace")
        try:
            topology = parse_topology(text)
        except InputError as error:
            raise InputError(f"{path}: {error.message}", hint=error.hint) from error
        pairs = [(a, b, word) for (a, b), word in topology.paths.items() if a < b]
        source = builder.source(path, self.name, "", len(pairs), {})
        code = builder.names.code
        for a, b, word in pairs:
            width = int(word[2:]) if word.startswith("NV") and word[2:].isdecimal() and len(word) < 8 else NA
            ends = {"node": code(topology.nics.get(a, a)), "peer": code(topology.nics.get(b, b))}
            builder.add("topology", 1, {"source": source, **ends, "link": code(word), "width": width})


NVIDIA_SMI_TOPO_SOURCE = TopoMatrixSource()


MAX_BYTES = 16 << 20
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_KINDS = {"0x0302": "GPU ", "0x0300": "GPU ", "0x0200": "NIC ", "0x0207": "NIC ", "0x0680": "NVSwitch "}
"""PCI classes of devices whose links matter; bridges go by their address alone."""
Link = dict[str, Any]


class TopologySource(Source):
    """Reads `topology`."""

    name = "nccl-topology"
    files = Files(Role.RECORD, (".xml",), alone=NCCL_ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """XML whose root is `system` and which holds a CPU."""
        text = head.lstrip()
        return path.is_file() and text.startswith(b"<") and b"<system " in text and b"<cpu " in text

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a file. Raises `InputError` where it is no whole XML, or declares entities."""
        from xml.etree import ElementTree

        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
        if len(data) > MAX_BYTES or b"<!" in re.sub(rb"<!--.*?-->", b"", data, flags=re.DOTALL):
            raise InputError(f"{path}: is larger than any topology, or declares entities: it is not read")
        try:
            root = ElementTree.fromstring(data)
        except ElementTree.ParseError as error:
            raise InputError(f"{path}: is damaged or cut off ({error})") from error
        if options.advance:
            options.advance(len(data))
        links = [link for cpu in root.iter("cpu") for link in _below(cpu, f"CPU{cpu.get('numaid', '?')}")]
        source = builder.source(path, self.name, root.get("version", ""), len(links), {})
        code = builder.names.code
        for link in links:
            names = {column: code(link[column]) for column in ("node", "peer", "link")}
            builder.add("topology", 1, {"source": source, **names, "width": link["width"], "rate": link["rate"]})


def _below(parent: ElementTree.Element, name: str) -> Iterator[Link]:
    """The links from a node to what stands in it."""
    for child in parent:
        own = _KINDS.get(child.get("class", "")[:6], "") + child.get("busid", "")
        if child.tag == "pci":
            yield {"node": own, "peer": name, "link": "pcie", **_pcie(child)}
            yield from _below(child, own)
        elif child.tag in ("gpu", "nic"):
            yield from _below(child, name)
        elif child.tag == "nvlink":
            count = _number(child.get("count"))
            peer = _KINDS.get(child.get("tclass", "")[:6], "") + child.get("target", "")
            kind = "nvswitch" if peer.startswith("NVSwitch") else "nvlink"
            yield {"node": name, "peer": peer, "link": kind, "width": count, "rate": NA}
        elif child.tag == "net":
            speed = _number(child.get("speed"))
            rate = NA if speed == NA else speed * 10**6 // 8  # Mbit/s
            yield {"node": child.get("name", "net"), "peer": name, "link": "net", "width": NA, "rate": rate}


def _pcie(node: ElementTree.Element) -> dict[str, int]:
    """Lanes and bytes per second of a PCIe device's link."""
    lanes = _number(node.get("link_width"))
    match = re.match(r"[\d.]+", node.get("link_speed", ""))
    generation = _GENERATION.get(float(match[0])) if match and match[0].count(".") < 2 else None
    link = pcie(generation, lanes) if generation and lanes > 0 else None
    return {"width": lanes, "rate": round(link.peak * 1e9) if link else NA}


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 10 else NA


NCCL_TOPOLOGY_SOURCE = TopologySource()


SOURCES = (NCCL_TOPOLOGY_SOURCE, NVIDIA_SMI_TOPO_SOURCE)
