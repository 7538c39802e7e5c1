"""One counter over the recording: its means by time, within what was going on, and its course."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.facts.call_order import Host, Placed, pci_address
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import SlowPcie
from gpuscope.hardware.link_rates import Link, can_have_fabric, gpu_fabric, gpu_nvlink, gpu_pcie, links
from gpuscope.schema.nccl_sections import LinkCounterEntry
from gpuscope.schema.provenance import Provenance
from gpuscope.sources.run_manifest import pcie_lanes
from gpuscope.trace.intervals import Spans, measure_within
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.trace.trace import Row, Trace
from gpuscope.when_used import dataclass

# GPUs whose PCIe link runs on fewer lanes than their cards have, as the recorder saw it.


def narrow_links(facts: RunFacts, folders: Sequence[Path]) -> Result:
    """One finding for all ranks whose link is narrow."""
    result = Result("pcie")
    told = {rank: own for folder in folders for rank, own in pcie_lanes(folder).items()}
    narrow = {rank: own for rank, own in told.items() if own[0] < own[1] and rank in facts.trace.ranks}
    if not narrow:
        return result
    judged = [(lane.rank, facts.steady.breakdown(lane)) for lane in facts.lanes]
    cost = sum(
        round(own.exposed_memory * (1 - narrow[rank][0] / narrow[rank][1])) for rank, own in judged if rank in narrow
    )
    window = sum(own.window for _, own in judged)
    steps = sum(facts.steady.count(lane) for lane in facts.lanes)
    result.findings.append(
        made(
            SlowPcie(*min(narrow.values(), key=lambda own: own[0] / own[1])),
            ranks=narrow,
            share=cost / window if window else 0.0,
            cost_ns=cost,
            mean_ns=round(cost / steps) if steps else None,
        )
    )
    return result


# The peak of the link that a group's collectives go over, in GB/s per direction of one GPU.
#
# From a topology file where one was read, else from the GPU's model, else none: a peak that is guessed makes
# every efficiency wrong. It is the line rate; no collective reaches all of it.


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


# Pairs of a host's GPUs that have fewer NVLinks than the others, and the ranks on them.

KINDS = ("nvlink", "nvswitch")


@dataclass(frozen=True)
class NarrowPair:
    """A GPU and another (or a switch) with fewer NVLinks between them; `ranks` where NCCL's log has them."""

    words: str
    ranks: tuple[int, ...]


def sums(
    links: Iterable[Row], kinds: Sequence[str], column: Literal["width", "rate"]
) -> Mapping[int, Mapping[str, int]]:
    """By topology file: NVLinks, lanes or rate of each GPU in all."""
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in links:
        counted = row["link"] in kinds or ("nvlink" in kinds and row["link"].startswith("NV"))
        if not counted or row[column] is None:
            continue
        for end in _ends(row):
            found[row["source"]][end] += row[column]
    return found


def _ends(row: Row) -> list[str]:
    # A matrix has each pair once, a topology XML each GPU's own links.
    ends = (row["node"], row["peer"]) if row["link"].startswith("NV") else (row["node"],)
    return [end for end in ends if end.startswith("GPU")]


def ranks_of(communicators: Iterable[Row]) -> Mapping[str, int]:
    """By PCI address: the rank on that GPU in the largest communicator on one host; empty for several hosts,
    whose addresses repeat."""
    rows = [row for row in communicators if row["bus_id"] and row["rank"] is not None]
    if len({row["host"] for row in rows}) != 1:
        return {}
    largest = max(row["size"] or 0 for row in rows)
    return {pci_address(row["bus_id"]): row["rank"] for row in rows if row["size"] == largest}


def narrow_pairs(links: Sequence[Row], ranks: Mapping[str, int]) -> list[NarrowPair]:
    """The pairs that make a GPU have fewer NVLinks than its host's others. Pairs that differ while every GPU has
    as many links in all are a design (a hybrid cube mesh)."""
    found: dict[tuple[int, frozenset[str]], NarrowPair] = {}
    for source, of_gpu in sums(links, KINDS, "width").items():
        most = max(of_gpu.values())
        low = {gpu for gpu, count in of_gpu.items() if count < most}
        widths = _pairs(row for row in links if row["source"] == source)
        if not low or not widths:
            continue
        usual = Counter(width for pair, width in widths.items() if not pair & low).most_common(1)
        wide = usual[0][0] if usual else max(widths.values())
        for pair, width in widths.items():
            if pair & low and width < wide:
                own = tuple(sorted(ranks[end[4:]] for end in pair if end[4:] in ranks))
                between = " and ".join(sorted(pair)) + (f" (rank {', '.join(map(str, own))})" if own else "")
                words = f"{width} of {wide} NVLinks between {between}"
                found[source, pair] = NarrowPair(words, own)
    return list(found.values())


def _pairs(links: Iterable[Row]) -> dict[frozenset[str], int]:
    """NVLinks between every two GPUs, or a GPU and a switch; 0 for GPUs of the host that have none between them."""
    widths: dict[frozenset[str], int] = {}
    for row in links:
        if row["width"] is not None and (row["link"] in KINDS or row["link"].startswith("NV")):
            widths[frozenset((row["node"], row["peer"]))] = row["width"]
    gpus = sorted({end for pair in widths for end in pair if end.startswith("GPU")})
    if not any(end.startswith("NVSwitch") for pair in widths for end in pair):
        for place, one in enumerate(gpus):
            for other in gpus[place + 1 :]:
                widths.setdefault(frozenset((one, other)), 0)
    return widths


BINS = 100
"""Parts of the recording that a counter's course over time is given in."""


def values_of(trace: Trace, rows: Times | Mask) -> Array:
    """The samples' values in whole units, shape (n,)."""
    parts = trace["counters"]["parts"][rows]
    return np.asarray(trace["counters"]["value"][rows] / np.where(parts == NA, 1, parts))


def mean_within(spans: Spans, start: Times, end: Times, value: Array) -> float | None:
    """The mean by time of samples [start, end) inside `spans`; None where no sample is."""
    within = measure_within(spans, start, end)
    return float(np.average(value, weights=within)) if within.any() else None


def counter_entry(trace: Trace, rows: Mask, exposed: Spans) -> LinkCounterEntry:
    """The figures of one counter, whose samples are `rows`; `exposed` is when communication was."""
    table = trace["counters"]
    start, end = (table[name][rows] for name in ("start", "end"))
    value, length = values_of(trace, rows), np.maximum(end - start, 1)
    first = int(np.flatnonzero(rows)[0])
    begin, width = int(start.min()), -(-max(int(end.max() - start.min()), 1) // BINS)
    return {
        "place": trace.names[int(table["place"][first])],
        "counter": trace.names[int(table["counter"][first])],
        "unit": trace.names[int(table["unit"][first])],
        "samples": int(rows.sum()),
        "mean": float(np.average(value, weights=length)),
        "peak": float(value.max()),
        "total": round(float(value.sum())),
        "mean_while_exposed": mean_within(exposed, start, end, value),
        "start_ns": begin,
        "bin_ns": width,
        "course": _course(start - begin, value, length, width),
    }


def _course(offset: Array, value: Array, length: Array, width: int) -> list[float]:
    """The mean value per bin of the recording; a sample counts where it begins."""
    place = np.minimum(offset // width, BINS - 1)
    weight = np.bincount(place, weights=length, minlength=BINS)
    total = np.bincount(place, weights=value * length, minlength=BINS)
    return [float(one) for one in np.divide(total, weight, out=np.zeros(BINS), where=weight > 0)]
