"""Counters of links in an nsys export: network ports (`--nic-metrics`), InfiniBand switches
(`--ib-switch-metrics-devices`, `--ib-switch-congestion-devices`), NVLink and PCIe (`--gpu-metrics-devices`).

Of `GPU_METRICS` what passes over NVLink and PCIe is taken, and what SMs and memory do; its values are percent of the
peak, and the low byte of `typeId` is the GPU. `NET_NIC_METRIC` names card and counter through `NIC_ID_MAP`,
`TARGET_INFO_NIC_INFO` and `TARGET_INFO_NETWORK_METRICS`, whose unit says what a value is. `NET_IB_SWITCH_METRIC` has
the same columns, but its `globalId` is a switch's GUID, which `NET_IB_DEVICE_INFO` names.
`NET_IB_SWITCH_CONGESTION_EVENT` holds instants, which are counted by the millisecond. Schemas 3.7 to 3.27 (Nsight
Systems User Guide, «SQLite Schema Reference»).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.problems import reading
from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

PERCENT = "%"
MILLISECOND = 1_000_000
_TAKEN = ("nvlink", "pcie", "sms active", "sm issue", "tensor active", "dram")
"""Of the metrics of a GPU; nsys samples some fifty."""
_KINDS = "ENUM_NET_IB_CONGESTION_EVENT_TYPE"


def add_link_counters(builder: TraceBuilder, tables: Tables, source: int, epoch_ns: int) -> None:
    """Fill `counters`; values that are no whole numbers are left out and counted."""
    adder = _Adder(builder, source, epoch_ns)
    lost = _of_network(adder, tables, "NET_NIC_METRIC", _cards(tables))
    lost += _of_network(adder, tables, "NET_IB_SWITCH_METRIC", _Switches(tables))
    lost += _of_congestion(adder, tables) + _of_gpus(adder, tables)
    builder.problem(reading.LINK_COUNTER_UNREADABLE, lost)


@dataclass(frozen=True)
class _Adder:
    """Adds samples of one file."""

    builder: TraceBuilder
    source: int
    epoch_ns: int

    def add(
        self,
        places: Sequence[str],
        counters: Sequence[str],
        units: Sequence[str],
        start: Times,
        end: Times,
        value: Array,
    ) -> None:
        """A row per sample; times in ns as exported."""
        code = self.builder.names.code
        self.builder.add(
            "counters",
            len(places),
            {
                "source": self.source,
                "place": [code(one) for one in places],
                "counter": [code(one) for one in counters],
                "unit": [code(one) for one in units],
                "start": start + self.epoch_ns,
                "end": end + self.epoch_ns,
                "value": value,
            },
        )


def _of_network(adder: _Adder, tables: Tables, table: str, devices: Mapping[int, str | None] | _Switches) -> int:
    """Samples of a table of ports, by device; the port is named where a device has several."""
    columns = ("start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value")
    rows = tables.integers(table, columns)
    name, unit = _by_metric(tables, "name"), _by_metric(tables, "unit")
    keys = list(zip(rows["metricsListId"].tolist(), rows["metricsIdx"].tolist(), strict=True))
    numbers = rows["globalId"].tolist()
    ports = {number: len(np.unique(rows["portId"][rows["globalId"] == number])) for number in set(numbers)}
    places = [
        None if (device := devices.get(number)) is None else f"{device}, port {port}" if ports[number] > 1 else device
        for number, port in zip(numbers, rows["portId"].tolist(), strict=True)
    ]
    counters = [name.get(key) for key in keys]
    known = np.array(
        [place is not None and counter is not None for place, counter in zip(places, counters, strict=True)], np.bool_
    )
    known &= (rows["start"] != NA) & (rows["end"] != NA) & (rows["value"] != NA)
    kept = np.flatnonzero(known).tolist()
    adder.add(
        [str(places[row]) for row in kept],
        [str(counters[row]) for row in kept],
        [unit.get(keys[row]) or "" for row in kept],
        rows["start"][kept],
        rows["end"][kept],
        rows["value"][kept],
    )
    return len(known) - len(kept)


def _by_metric(tables: Tables, column: str) -> dict[tuple[int, int], str | None]:
    table = "TARGET_INFO_NETWORK_METRICS"
    ids = tables.integers(table, ("metricsListId", "metricsIdx"))
    keys = zip(ids["metricsListId"].tolist(), ids["metricsIdx"].tolist(), strict=True)
    return dict(zip(keys, tables.texts(table, column), strict=True))


def _cards(tables: Tables) -> dict[int, str | None]:
    """Network cards by the metrics' globalId."""
    infos = tables.integers("TARGET_INFO_NIC_INFO", ("nicId",))["nicId"].tolist()
    names = dict(zip(infos, tables.texts("TARGET_INFO_NIC_INFO", "name"), strict=True))
    mapped = tables.integers("NIC_ID_MAP", ("globalId", "nicId"))
    pairs = zip(mapped["globalId"].tolist(), mapped["nicId"].tolist(), strict=True)
    return {g: f"NIC {name}" if (name := names.get(n)) is not None else None for g, n in pairs}


class _Switches:
    """InfiniBand switches by GUID: their names, else the GUID itself."""

    def __init__(self, tables: Tables) -> None:
        table = "NET_IB_DEVICE_INFO"
        guids = tables.integers(table, ("guid",))["guid"].tolist()
        self._names = dict(zip(guids, tables.texts(table, "name"), strict=True))

    def get(self, guid: int) -> str | None:
        """None where there is no GUID."""
        if guid == NA:
            return None
        return f"IB switch {self._names.get(guid) or hex(guid & (1 << 64) - 1)}"


def _of_congestion(adder: _Adder, tables: Tables) -> int:
    """Packets that a switch marked as congested, per egress port and millisecond."""
    table, switches = "NET_IB_SWITCH_CONGESTION_EVENT", _Switches(tables)
    rows = tables.integers(table, ("start", "globalId", "congestionType", "switchEgressPort"))
    kinds = dict(zip(tables.integers(_KINDS, ("id",))["id"].tolist(), tables.texts(_KINDS, "label"), strict=True))
    known = (rows["start"] != NA) & (rows["globalId"] != NA)
    keys = np.stack(
        [rows[name][known] for name in ("globalId", "switchEgressPort", "congestionType")]
        + [rows["start"][known] // MILLISECOND],
        axis=1,
    )
    found, counts = np.unique(keys, axis=0, return_counts=True)
    start = found[:, 3] * MILLISECOND
    adder.add(
        [
            f"{switches.get(guid)}, port {port}" if port != NA else str(switches.get(guid))
            for guid, port in found[:, :2].tolist()
        ],
        [f"Congestion events: {kinds.get(kind) or 'any'}" for kind in found[:, 2].tolist()],
        ["/ms"] * len(found),
        start,
        start + MILLISECOND,
        counts,
    )
    return int((~known).sum())


def _of_gpus(adder: _Adder, tables: Tables) -> int:
    """A sample holds until the next one of its kind."""
    table = "TARGET_INFO_GPU_METRICS"
    ids = tables.integers(table, ("metricId",))["metricId"].tolist()
    wanted = {
        number: name
        for number, name in zip(ids, tables.texts(table, "metricName"), strict=True)
        if name is not None and any(part in name.lower() for part in _TAKEN)
    }
    rows = tables.integers("GPU_METRICS", ("timestamp", "typeId", "metricId", "value"))
    lost = 0
    for number, name in wanted.items():
        own = rows["metricId"] == number
        for kind in np.unique(rows["typeId"][own]).tolist():
            mask = own & (rows["typeId"] == kind)
            whole = np.flatnonzero(mask & (rows["timestamp"] != NA) & (rows["value"] != NA))
            lost += int(mask.sum()) - len(whole)
            _add_gpu(adder, kind & 0xFF, name, rows["timestamp"][whole], rows["value"][whole])
    return lost


def _add_gpu(adder: _Adder, device: int, name: str, times: Times, values: Times) -> None:
    order = np.argsort(times, kind="stable")
    count = max(len(order) - 1, 0)
    starts = times[order]
    adder.add([f"GPU {device}"] * count, [name] * count, [PERCENT] * count, starts[:-1], starts[1:], values[order][:-1])
