"""The links inside a host, from topology files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuscope.analyzers.facts.placement import Placed
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Wire:
    """A row of the table `topology`: NVLinks, PCIe lanes or ports, and bytes per second where known."""

    node: str
    peer: str
    link: str
    width: int
    rate: int


@dataclass(frozen=True)
class Host:
    """The links of one host as one topology file lists them."""

    source: str
    wires: tuple[Wire, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs, in the file's order."""
        ends = [end for wire in self.wires for end in (wire.node, wire.peer) if end.startswith("GPU")]
        return tuple(dict.fromkeys(ends))

    def nvlinks(self) -> Mapping[tuple[str, str], int]:
        """NVLinks from each GPU to each GPU or switch, both ways."""
        found: dict[tuple[str, str], int] = {}
        for wire in self.wires:
            if wire.width == NA or not (wire.link in ("nvlink", "nvswitch") or wire.link.startswith("NV")):
                continue
            found[wire.node, wire.peer] = wire.width
            if wire.link.startswith("NV"):  # a matrix has each pair once
                found[wire.peer, wire.node] = wire.width
        return found

    def members(self, placed: Placed) -> tuple[str, ...]:
        """The GPUs of a group; empty where it uses only part of the host's and which is unknown."""
        named = {gpu: gpu.removeprefix("GPU").strip().lower() for gpu in self.gpus}
        for wanted in (placed.bus_ids, tuple(str(device) for device in placed.devices)):
            found = tuple(gpu for gpu, name in named.items() if name in wanted)
            if wanted and len(found) == placed.size:
                return found
        return self.gpus if len(self.gpus) == placed.size else ()


def hosts(trace: Trace) -> tuple[Host, ...]:
    """Every topology that was read."""
    table, names = trace["topology"], trace.names
    wires: dict[int, list[Wire]] = {}
    columns = (table[name].tolist() for name in ("source", "node", "peer", "link", "width", "rate"))
    for source, node, peer, link, width, rate in zip(*columns, strict=True):
        texts = [names[code] if code != NO_NAME else "" for code in (node, peer, link)]
        wires.setdefault(source, []).append(Wire(texts[0], texts[1], texts[2], width, rate))
    return tuple(Host(Path(trace.sources[source].path).name, tuple(own)) for source, own in wires.items())
