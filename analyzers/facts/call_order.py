"""Numbers for operations that carry none: from their order, over captures that begin and end at different times.

All ranks of a group carry out one sequence of operations. A rank's capture holds a stretch of it; how far two
stretches are shifted against each other follows from where operations and sizes agree throughout. Training
repeats itself, so several shifts can agree: then the one is right at which the operations also end together, up to a
constant difference between clocks. If none stands out, the operations stay unnumbered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gpuscope import when_used
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Times
from gpuscope.trace.trace import Trace, recorded_world
from gpuscope.when_used import dataclass

MIN_OVERLAP = 3
"""Fewer common operations than this can agree by accident."""
_GOLDEN = (5**0.5 - 1) / 2
CLEARER = 2.0
"""A shift is right if the ends scatter so many times less than at any other."""
_RESOLUTION_NS = 1_000
"""Kineto's older traces have times in µs: scatter below that is none."""


def numbers_by_order(trace: Trace, rows: Times, group: Times, token: Times) -> Times:
    """Per row of `rows` (of `collectives`), a number equal for equal operations of its group; NA if unknown.

    `token` says what an operation is (operation and size); a group's ranks are compared with the longest.
    """
    table = trace["collectives"]
    number = np.full(len(rows), NA, np.int64)
    if not len(rows):
        return number
    rank = table["rank"][rows]
    order = np.lexsort((table["start"][rows], rank, group))
    change = (np.diff(group[order]) != 0) | (np.diff(rank[order]) != 0)
    bounds = np.concatenate(([0], np.flatnonzero(change) + 1, [len(rows)]))
    clock, ends = clock_of(trace), table["end"][rows]
    stretches: dict[int, list[Times]] = {}
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        stretches.setdefault(int(group[order[low]]), []).append(order[low:high])
    for own in stretches.values():
        longest = max(own, key=len)
        for stretch in own:
            if stretch is longest:
                number[stretch] = np.arange(len(stretch))
                continue
            same_clock = clock[int(rank[stretch[0]])] == clock[int(rank[longest[0]])]
            shift = _shift(token[stretch], token[longest], ends[stretch], ends[longest], same_clock)
            if shift is not None:
                number[stretch] = np.arange(len(stretch)) + shift
    return number


def _shift(own: Times, longest: Times, ends: Times, lead: Times, one_clock: bool) -> int | None:
    """Where in `longest` the stretch `own` begins (negative: before it); None where that is ambiguous."""
    whole = len(own) == len(longest) and bool(np.array_equal(own, longest))
    if whole and _scatter(ends, lead, 0)[0] <= CLEARER * _RESOLUTION_NS:
        return 0  # none can be clearer
    shifts = _agreeing(longest, own)
    if not shifts:
        return None
    scatter, apart = np.array([_scatter(ends, lead, shift) for shift in shifts]).T
    if whole and scatter[shifts.index(0)] <= CLEARER * scatter.min():
        return 0
    for judged in (scatter, apart) if one_clock else (scatter,):
        best = np.argsort(judged, kind="stable")
        if len(shifts) == 1 or judged[best[0]] * CLEARER <= judged[best[1]]:
            return int(shifts[int(best[0])])
    return None


def _agreeing(lead: Times, own: Times) -> list[int]:
    """Shifts at which all operations that both hold agree, and these are at least half of the shorter stretch.

    Candidates come from a correlation of scattered phases, one per kind of operation, O(n log n).
    """
    _, codes = np.unique(np.concatenate((lead, own)), return_inverse=True)
    scattered = np.arange(1, int(codes.max()) + 2) ** 2 * _GOLDEN % 1  # importing `numpy.random` takes 10 ms
    phase = np.exp(2j * np.pi * scattered)[codes]
    size = 1 << (len(lead) + len(own)).bit_length()
    spectrum = np.fft.fft(phase[: len(lead)], size) * np.conj(np.fft.fft(phase[len(lead) :], size))
    matching = np.fft.ifft(spectrum).real
    shifts = np.arange(-len(own) + 1, len(lead))
    common = np.minimum(len(lead), shifts + len(own)) - np.maximum(shifts, 0)
    least = max(MIN_OVERLAP, (min(len(lead), len(own)) + 1) // 2)
    if len(lead) == len(own):  # nothing is missing at either end
        least = min(least, len(own))
    likely = shifts[(common >= least) & (matching[shifts] > common - 0.5)]
    return [shift for shift in likely.tolist() if _same(lead, own, shift)]


def _same(lead: Times, own: Times, shift: int) -> bool:
    low, high = max(shift, 0), min(len(lead), shift + len(own))
    return bool(np.array_equal(lead[low:high], own[low - shift : high - shift]))


def _scatter(ends: Times, lead: Times, shift: int) -> tuple[int, int]:
    """How far the differences of the ends scatter about their median, and that median, both absolute, ns."""
    low, high = max(shift, 0), min(len(lead), shift + len(ends))
    apart = ends[low - shift : high - shift] - lead[low:high]
    middle = _middle(apart)
    return max(_middle(np.abs(apart - middle)), _RESOLUTION_NS), max(abs(middle), _RESOLUTION_NS)


def _middle(values: Times) -> int:
    """The (upper) median; numpy's own costs more than the rest of a comparison."""
    return int(np.partition(values, len(values) // 2)[len(values) // 2])


def clock_of(trace: Trace) -> dict[int, int]:
    """Per rank, the lowest rank that reads the same clock. Where the host is not recorded, only the ranks of one
    file are known to share one."""
    table = trace["ranks"]
    order = np.argsort(table["rank"], kind="stable")
    lead: dict[tuple[str, int], int] = {}
    found: dict[int, int] = {}
    columns = (table[name][order].tolist() for name in ("rank", "host", "source"))
    for rank, host, source in zip(*columns, strict=True):
        found.setdefault(rank, lead.setdefault(("host", host) if host != NO_NAME else ("file", source), rank))
    return found


# What speaks against taking the ranks at hand for a whole job (definitions: «World size»).

_LOOPBACK = when_used.pattern(r"localhost$|localhost\.|127\.|::1$|0\.0\.0\.0$")
_OTHER_NODES = when_used.pattern(r"(?i)inter_?node(?![a-z])")
_SENT = when_used.pattern(r"(?i)xmit|transmit|\bsent\b|\btx\b|bytes sent")
NETWORK_SHARE = 0.01
"""Bytes that a host's network ports sent, over those of its collectives, from which these go over the network."""


def against_whole_job(trace: Trace) -> str:
    """The first thing that says that ranks are missing, as part of a sentence; empty where nothing does."""
    size = recorded_world(trace).size
    if size is not None and size != len(trace.ranks):
        return f"the job has {size} ranks, and {len(trace.ranks)} are at hand"
    return devices_missing(trace) or _more_nodes(trace) or _over_the_network(trace)


def all_at_hand(trace: Trace) -> bool:
    """Whether the devices of every host are listed and all of them are there, and nothing speaks against the ranks at
    hand being all: then those that share a communicator are its members."""
    return bool(trace["ranks"].known("host_devices").all()) and not against_whole_job(trace)


def devices_missing(trace: Trace) -> str:
    """Which host has devices that no rank at hand uses; empty where all are there, as far as they are listed."""
    table, names = trace["ranks"], trace.names
    host_of = clock_of(trace)
    there: dict[int, set[tuple[int, int]]] = {}
    listed: dict[int, set[str]] = {}
    label: dict[int, str] = {}
    columns = ("rank", "device", "device_id", "host", "host_devices")
    for rank, device, identity, host, devices in zip(*(table[name].tolist() for name in columns), strict=True):
        node = host_of[rank]
        label[node] = names[host] if host != NO_NAME else "the host of rank " + str(rank)
        if device != NA:
            there.setdefault(node, set()).add((NO_NAME, identity) if identity != NO_NAME else (rank, device))
        if devices != NO_NAME:
            listed.setdefault(node, set()).update(names[devices].split(","))
    for node, devices in listed.items():
        used = len(there.get(node, ()))
        if used < len(devices):
            return f"of the {len(devices)} devices of {label[node]} only {used} are in the files"
    return ""


def _more_nodes(trace: Trace) -> str:
    """What the environment of the recorded programs says of nodes that are in no file."""
    table = trace["ranks"]
    hosts = {trace.names[code] for code in table["host"][table.known("host")].tolist()}
    told = [job for source in trace.sources if isinstance(job := source.facts.get("job"), dict)]
    here = len(set(clock_of(trace).values()))
    nodes = max((job.get("nodes", 0) for job in told), default=0)
    if nodes > here:
        return f"the environment names {nodes} nodes, and {here} {'is' if here == 1 else 'are'} in the files"
    masters = sorted({job["master"] for job in told if "master" in job and job.get("nodes", 0) != here})
    own = {name.partition(".")[0].lower() for name in hosts}
    for master in masters:
        if not _LOOPBACK.match(master) and master.partition(".")[0].lower() not in own:
            return f"MASTER_ADDR is {master}, which is no host in the files"
    return ""


def _over_the_network(trace: Trace) -> str:
    """What shows that the ranks of one host communicate over a network."""
    if len(set(clock_of(trace).values())) != 1:
        return ""
    transports = trace["connections"]["transport"]
    if any(trace.names[code].startswith("NET") for code in np.unique(transports).tolist()):
        return "NCCL's log has connections over the network"
    device = trace["device_events"]
    codes = np.unique(device["name"][device["kind"] == Kind.COMMUNICATION])
    if any(_OTHER_NODES.search(trace.names[code]) for code in codes.tolist()):
        return "kernels communicate with other nodes"
    return "the host's network ports send what its collectives do" if _ports_send(trace) else ""


def _ports_send(trace: Trace) -> bool:
    counters, names = trace["counters"], trace.names
    if not len(counters):
        return False
    sent = names.matching(lambda name: _SENT.search(name) is not None)[counters["counter"]]
    sent &= names.matching(lambda name: "byte" in name.lower())[counters["unit"]]
    sent &= ~names.matching(lambda name: name.startswith("GPU"))[counters["place"]]
    moved = trace["collectives"]["bytes"]
    return bool(sent.any()) and float(counters["value"][sent].sum()) > NETWORK_SHARE * float(moved[moved != NA].sum())


# On which hosts and GPUs the ranks of a group lie, as far as the trace or NCCL's log records it.


@dataclass(frozen=True)
class Placed:
    """A group of `size` ranks on `hosts` hosts (None: unknown), on GPUs of these models."""

    size: int
    hosts: int | None
    models: tuple[str, ...]
    devices: tuple[int, ...] = ()
    """Device ordinals of its ranks, where all are known and on one host."""
    bus_ids: tuple[str, ...] = ()
    """PCI addresses of its ranks' devices as the topology writes them, where all are known."""
    cpu: bool = False
    """Whether its ranks train on the CPU."""


@dataclass(frozen=True)
class _Seat:
    host: str
    device: int
    model: str
    bus_id: str = ""


class Placement:
    """Where the ranks of a run lie: from the traces, else from the communicator of all ranks in NCCL's log."""

    def __init__(self, trace: Trace) -> None:
        self._seats = _seats(trace)
        self._logged = _logged(trace)

    def of_ranks(self, ranks: Sequence[int] | None, size: int) -> Placed:
        """Of a group of a trace; `ranks` None where its members are not recorded."""
        seats = [self._seats[rank] for rank in ranks or () if rank in self._seats]
        models = tuple(sorted({seat.model for seat in seats or self._seats.values() if seat.model}))
        if self._seats and all(seat.device == NA for seat in seats or self._seats.values()):
            return Placed(size, None, (), cpu=True)
        if len(seats) != size:
            return Placed(size, None, models)
        devices = tuple(seat.device for seat in seats)
        hosts = _count_hosts(seats)
        bus_ids = tuple(seat.bus_id for seat in seats)
        return Placed(size, hosts, models, devices if hosts == 1 else (), bus_ids if all(bus_ids) else ())

    @property
    def hosts(self) -> dict[int, str]:
        """By rank, where that is known."""
        return {rank: seat.host for rank, seat in self._seats.items() if seat.host}

    def of_size(self, size: int) -> Placed:
        """Of a communicator of that size in NCCL's log or nccl-tests' table."""
        return self._logged.get(size, Placed(size, None, ()))


def _count_hosts(seats: Sequence[_Seat]) -> int | None:
    if all(seat.host for seat in seats):
        return len({seat.host for seat in seats})
    # Ranks on several hosts would share ordinals: each host counts its devices from 0.
    return 1 if len({seat.device for seat in seats}) == len(seats) > 1 else None


def _seats(trace: Trace) -> dict[int, _Seat]:
    table, names = trace["ranks"], trace.names
    seats: dict[int, _Seat] = {}
    logged = _world(trace)
    columns = (table[name].tolist() for name in ("rank", "device", "host", "device_name"))
    for rank, device, host, model in zip(*columns, strict=True):
        other = logged.get(rank)
        seats[rank] = _Seat(
            names[host] if host != NO_NAME else other.host if other else "",
            device,
            names[model] if model != NO_NAME else other.model if other else "",
            other.bus_id if other else "",
        )
    return seats


def _world(trace: Trace) -> dict[int, _Seat]:
    """By rank of the job: the place that the log records in the communicator of all ranks."""
    world = max(len(trace.ranks), recorded_world(trace).size or 0)
    return {rank: seat for rank, size, seat in _communicator_seats(trace) if size == world and rank != NA}


def _communicator_seats(trace: Trace) -> list[tuple[int, int, _Seat]]:
    table, names = trace["communicators"], trace.names
    found = []
    columns = (table[name].tolist() for name in ("rank", "size", "host", "device", "device_name", "bus_id"))
    for rank, size, host, device, model, bus_id in zip(*columns, strict=True):
        texts = [names[code] if code != NO_NAME else "" for code in (host, model, bus_id)]
        found.append((rank, size, _Seat(texts[0], device, texts[1], pci_address(texts[2]))))
    return found


def _logged(trace: Trace) -> dict[int, Placed]:
    table = trace["communicators"]
    nodes: dict[int, int] = {}
    for size, count in zip(table["size"].tolist(), table["nodes"].tolist(), strict=True):
        nodes[size] = max(nodes.get(size, NA), count)
    found: dict[int, Placed] = {}
    for size, hosts in nodes.items():
        seats = {rank: seat for rank, own, seat in _communicator_seats(trace) if own == size}
        models = tuple(sorted({seat.model for seat in seats.values() if seat.model}))
        bus_ids = tuple(seat.bus_id for seat in seats.values())
        complete = len(seats) == size
        found[size] = Placed(
            size,
            hosts if hosts != NA else None,
            models,
            tuple(seat.device for seat in seats.values()) if complete and hosts == 1 else (),
            bus_ids if complete and all(bus_ids) else (),
        )
    return found


def pci_address(address: str) -> str:
    """A PCI address as sysfs writes it: NCCL's log has it as one hexadecimal number (`17000` for
    0000:17:00.0), nccl-tests without the function. Empty where it is neither."""
    parts = address.lower().split(":")
    try:
        if len(parts) == 1:
            number = int(address, 16)
            return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"
        domain, bus = int(parts[0], 16), int(parts[1], 16)
        rest = parts[2] if len(parts) > 2 else "00.0"
    except ValueError:
        return ""
    return f"{domain:04x}:{bus:02x}:{rest if '.' in rest else rest + '.0'}"


# The links inside a host, from topology files.


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
