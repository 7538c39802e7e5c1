"""The peak of the link that a group's collectives go over, in GB/s per direction of one GPU.

From a topology file where one was read, else from the GPU's model, else none: a peak that is guessed makes
every efficiency wrong. It is the line rate; no collective reaches all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuscope.analyzers.facts.host_links import Host
from gpuscope.analyzers.facts.placement import Placed
from gpuscope.hardware.link_rates import Link, can_have_fabric, gpu_fabric, gpu_nvlink, gpu_pcie, links
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Peak:
    """`gbps` and the name of the `link`, None where unknown; `basis` says where they come from or what is missing."""

    gbps: float | None
    link: str | None
    basis: str
    provenance: Provenance | None = None
    """None where there is no peak."""


def peak(placed: Placed, topologies: Sequence[Host]) -> Peak:
    """The peak for a group, with its basis."""
    if placed.cpu:
        return Peak(None, None, "training on the CPU: the hosts' network is unknown")
    if placed.hosts is None:
        return Peak(None, None, "the number of hosts of the group is not recorded: add a log of NCCL_DEBUG=INFO")
    if placed.hosts > 1:
        return _between_hosts(placed, topologies)
    host = next((host for host in topologies if host.members(placed)), None)
    if host is not None:
        return _from_topology(placed, host)
    if topologies and any(host.gpus for host in topologies):
        return Peak(None, None, f"which GPUs of {topologies[0].source} the group's ranks use is not recorded")
    return _from_model(placed)


def _from_topology(placed: Placed, host: Host) -> Peak:
    members = host.members(placed)
    model = placed.models[0] if len(placed.models) == 1 else ""
    link = gpu_nvlink(model)
    counts = [_links_of(gpu, members, host, link) for gpu in members]
    basis = f"topology in {host.source}"
    if all(counts):
        if link is None:
            return Peak(None, None, f"{basis} lists NVLinks, but no file records the GPU's model and so their rate")
        least = link.of(min(count for count in counts if count))
        return Peak(least.peak, _label(least), basis, "inferred")
    if any(counts):
        return Peak(None, None, f"{basis}: only some of the group's GPUs have NVLinks to each other")
    return _pcie(members, host, model, basis)


def _links_of(gpu: str, members: Sequence[str], host: Host, model: Link | None) -> int:
    """NVLinks by which a GPU reaches the others of its group: all it has behind a switch, else those between them."""
    widths_of = host.nvlinks()
    switched = sum(width for (node, peer), width in widths_of.items() if node == gpu and peer.startswith("NVSwitch"))
    if switched:
        return switched
    widths = [widths_of.get((gpu, other), 0) for other in members if other != gpu]
    # Behind switches a matrix shows all of a GPU's links between every pair: more in sum than a GPU has.
    everywhere = [widths_of.get((gpu, other), 0) for other in host.gpus if other != gpu]
    has = links()[model.key].units if model else max(link.units for link in links().values() if link.kind == "nvlink")
    return max(widths, default=0) if sum(everywhere) > has else sum(widths)


def _pcie(members: Sequence[str], host: Host, model: str, basis: str) -> Peak:
    rates = [
        (wire.rate / 1e9, wire.width)
        for wire in host.wires
        if wire.link == "pcie" and wire.node in members and wire.rate != NA
    ]
    if len(rates) == len(members):
        slowest, width = min(rates)
        return Peak(slowest, f"PCIe ×{width}", basis, "measured")
    link = gpu_pcie(model)
    if link is None:
        return Peak(None, None, f"{basis}: no NVLinks, and neither it nor the GPU's model gives the PCIe generation")
    return Peak(link.peak, _label(link), f"{basis}: no NVLinks; PCIe by the GPU's model, at most", "assumed")


def _from_model(placed: Placed) -> Peak:
    if not placed.models:
        return Peak(None, None, "the GPU's model is not recorded: add nvidia-smi topo -m or NCCL's topology XML")
    found: list[Link] = []
    for model in placed.models:
        fabric = gpu_fabric(model)
        if fabric is None and can_have_fabric(model) is not False:
            return Peak(
                None,
                None,
                f"whether NVLink connects these GPUs ({model}) is not recorded: add nvidia-smi topo -m "
                "or NCCL's topology XML",
            )
        link = fabric or gpu_pcie(model)
        if link is None:
            return Peak(None, None, f"no links are known for {model}: add NCCL's topology XML")
        found.append(link)
    least = min(found, key=lambda link: link.peak)
    return Peak(least.peak, _label(least), "all links of the GPU's model", "assumed")


def _between_hosts(placed: Placed, topologies: Iterable[Host]) -> Peak:
    for host in topologies:
        ports = {wire.node: wire.rate for wire in host.wires if wire.link == "net" and wire.rate != NA}
        if not ports:
            continue
        if placed.hosts is None or placed.size != placed.hosts * len(host.gpus):
            return Peak(
                None, None, f"the group uses part of each host's GPUs, and which ports of {host.source} is unknown"
            )
        total = sum(ports.values()) / 1e9
        ports_named = f"{len(ports)} network port{'' if len(ports) == 1 else 's'}"
        return Peak(total, ports_named, f"topology in {host.source}", "measured")
    return Peak(None, None, "the network's rate is not recorded: add NCCL's topology XML (NCCL_TOPO_DUMP_FILE)")


def _label(link: Link) -> str:
    return f"{link.units} × {link.name}" if link.kind != "pcie" else f"{link.name} ×{link.units}"
