"""On which hosts and GPUs the ranks of a group lie, as far as the trace or NCCL's log records it."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.trace.world import recorded_world
from gpuscope.when_used import dataclass


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
