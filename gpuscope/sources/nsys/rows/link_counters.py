"""Counters of links in an nsys export: network ports (`--nic-metrics`), NVLink and PCIe (`--gpu-metrics-devices`).

Of `GPU_METRICS` only what passes over NVLink and PCIe is taken; its values are percent of the peak, and the low byte of
`typeId` is the GPU. `NET_NIC_METRIC` names port and counter through `NIC_ID_MAP`, `TARGET_INFO_NIC_INFO` and
`TARGET_INFO_NETWORK_METRICS`, whose unit says what a value is. Schemas 3.7 to 3.22.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA

PERCENT = "%"
_LINKS = ("nvlink", "pcie")


def add_link_counters(builder: TraceBuilder, tables: Tables, source: int, epoch_ns: int) -> None:
    """Fill `counters`; values that are no whole numbers are left out and counted."""
    lost = _of_ports(builder, tables, source, epoch_ns) + _of_gpus(builder, tables, source, epoch_ns)
    builder.problem("data_loss", "counter_unreadable", lost, "samples of link counters without a time, name or value")


def _of_ports(builder: TraceBuilder, tables: Tables, source: int, epoch_ns: int) -> int:
    columns = ("start", "end", "globalId", "metricsListId", "metricsIdx", "value")
    rows = tables.integers("NET_NIC_METRIC", columns)
    name, unit, port = _counter_names(tables), _counter_units(tables), _port_names(tables)
    keys = list(zip(rows["metricsListId"].tolist(), rows["metricsIdx"].tolist(), strict=True))
    places = [port.get(number) for number in rows["globalId"].tolist()]
    counters = [name.get(key) for key in keys]
    known = np.array([place is not None and counter is not None
                      for place, counter in zip(places, counters, strict=True)], np.bool_)  # fmt: skip
    known &= (rows["start"] != NA) & (rows["end"] != NA) & (rows["value"] != NA)
    kept = np.flatnonzero(known).tolist()
    code = builder.names.code
    builder.add("counters", len(kept), {
        "source": source,
        "place": [code(f"NIC {places[row]}") for row in kept],
        "counter": [code(str(counters[row])) for row in kept],
        "unit": [code(unit.get(keys[row]) or "") for row in kept],
        "start": rows["start"][kept] + epoch_ns,
        "end": rows["end"][kept] + epoch_ns,
        "value": rows["value"][kept],
    })  # fmt: skip
    return len(known) - len(kept)


def _counter_names(tables: Tables) -> dict[tuple[int, int], str | None]:
    return _by_metric(tables, "name")


def _counter_units(tables: Tables) -> dict[tuple[int, int], str | None]:
    return _by_metric(tables, "unit")


def _by_metric(tables: Tables, column: str) -> dict[tuple[int, int], str | None]:
    table = "TARGET_INFO_NETWORK_METRICS"
    ids = tables.integers(table, ("metricsListId", "metricsIdx"))
    keys = zip(ids["metricsListId"].tolist(), ids["metricsIdx"].tolist(), strict=True)
    return dict(zip(keys, tables.texts(table, column), strict=False))


def _port_names(tables: Tables) -> dict[int, str | None]:
    """The ports' names by the metrics' globalId."""
    infos = tables.integers("TARGET_INFO_NIC_INFO", ("nicId",))["nicId"].tolist()
    names = dict(zip(infos, tables.texts("TARGET_INFO_NIC_INFO", "name"), strict=False))
    mapped = tables.integers("NIC_ID_MAP", ("globalId", "nicId"))
    return {g: names.get(n) for g, n in zip(mapped["globalId"].tolist(), mapped["nicId"].tolist(), strict=True)}


def _of_gpus(builder: TraceBuilder, tables: Tables, source: int, epoch_ns: int) -> int:
    """A sample holds until the next one of its kind."""
    table = "TARGET_INFO_GPU_METRICS"
    ids = tables.integers(table, ("metricId",))["metricId"].tolist()
    wanted = {
        number: name
        for number, name in zip(ids, tables.texts(table, "metricName"), strict=False)
        if name is not None and any(link in name.lower() for link in _LINKS)
    }
    rows = tables.integers("GPU_METRICS", ("timestamp", "typeId", "metricId", "value"))
    lost = 0
    for number, name in wanted.items():
        own = rows["metricId"] == number
        for kind in np.unique(rows["typeId"][own]).tolist():
            mask = own & (rows["typeId"] == kind)
            whole = mask & (rows["timestamp"] != NA) & (rows["value"] != NA)
            lost += int(mask.sum() - whole.sum())
            _add_gpu(builder, source, kind & 0xFF, name, rows["timestamp"][whole] + epoch_ns, rows["value"][whole])
    return lost


def _add_gpu(builder: TraceBuilder, source: int, device: int, name: str, times: Times, values: Sequence[int]) -> None:
    order = np.argsort(times, kind="stable")
    if len(order) < 2:
        return
    starts = times[order]
    builder.add("counters", len(order) - 1, {
        "source": source, "place": builder.names.code(f"GPU {device}"), "counter": builder.names.code(name),
        "unit": builder.names.code(PERCENT), "start": starts[:-1], "end": starts[1:],
        "value": np.asarray(values)[order][:-1],
    })  # fmt: skip
