"""What the counters of GPUs say of the work on them: SMs, memory, power and clocks, while what ran.

A kernel whose memory traffic is at the device's peak is bound by memory bandwidth; SMs that are idle while a kernel
runs say that it is too small for the device. «SM active» alone does not say that a kernel computes much: one that waits
for memory keeps its SMs active too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.base.sections import DEVICE_COUNTERS
from gpuscope.analyzers.topology.counter_means import counter_entry, mean_within, values_of
from gpuscope.analyzers.topology.link_activity import BUSY, is_link
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.device import MemoryAtPeak
from gpuscope.schema.compute_section import DeviceCounterEntry, KernelSamples
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.intervals import measure_within, union
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace

PERCENT = "%"
FILLED = 0.9
"""Share of a sample that a kernel's runs take, from which the sample is taken to be of that kernel."""
KERNELS = 8
"""The kernels that take longest, which samples are looked for of."""
_MEMORY = when_used.pattern(r"(?i)\b(dram|hbm)\b")
"""Counters of the device's memory in percent of its peak: `DRAM BW (%)`, `DRAM Read Bandwidth [Throughput %]`."""
_ONE_WAY = when_used.pattern(r"(?i)\b(read|write)\b")


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `device_counters`, and findings of memory at its peak."""
    result, table = Result(ANALYZER.name), trace["counters"]
    others = ~trace.names.matching(is_link)[table["counter"]]
    found: list[DeviceCounterEntry] = []
    for view in lanes:
        own = others & _of_device(trace, view)
        for counter in np.unique(table["counter"][own]).tolist():
            found.append(_entry(trace, view, own & (table["counter"] == counter)))
    if found:
        result.sections[DEVICE_COUNTERS] = found
    result.findings += _memory_at_peak(found)
    return result


def _of_device(trace: Trace, view: LaneView) -> Mask:
    """The samples of a lane's device, from the file that its rank came from."""
    ranks, table = trace["ranks"], trace["counters"]
    source = ranks["source"][(ranks["rank"] == view.lane.rank) & (ranks["device"] == view.lane.device)]
    place = trace.names.find(f"GPU {view.lane.device}")
    known = (table["place"] == place) & np.isin(table["source"], source)
    return np.asarray(known & (view.lane.device != NA))


def _entry(trace: Trace, view: LaneView, rows: Mask) -> DeviceCounterEntry:
    table, value = trace["counters"], values_of(trace, rows)
    start, end = table["start"][rows], table["end"][rows]
    return {
        "rank": view.lane.rank,
        "device": view.lane.device,
        **counter_entry(trace, rows, view.parts.exposed_communication),
        "mean_while_computing": mean_within(view.parts.compute, start, end, value),
        "mean_while_idle": mean_within(view.parts.idle, start, end, value),
        "kernels": sorted(_by_kernel(trace, view, rows), key=lambda one: -one["samples"]),
    }


def _by_kernel(trace: Trace, view: LaneView, rows: Mask) -> Iterator[KernelSamples]:
    device, table, value = trace["device_events"], trace["counters"], values_of(trace, rows)
    start, end = table["start"][rows], table["end"][rows]
    kernels = view.rows[device["kind"][view.rows] != Kind.MEMORY]
    names, place = np.unique(device["name"][kernels], return_inverse=True)
    spent = np.bincount(place, weights=device["end"][kernels] - device["start"][kernels], minlength=len(names))
    for which in np.argsort(-spent, kind="stable")[:KERNELS].tolist():
        own = kernels[place == which]
        covered = measure_within(union(device["start"][own], device["end"][own]), start, end)
        full = (covered >= FILLED * (end - start)) & (end > start)
        if full.any():
            mean = float(np.average(value[full], weights=covered[full]))
            yield {"name": trace.names[int(names[which])], "samples": int(full.sum()), "mean": mean}


def _memory_at_peak(entries: Sequence[DeviceCounterEntry]) -> Iterator[FindingEntry]:
    """One finding for all ranks; reading and writing, where counted apart, share the peak."""
    used: dict[int, list[tuple[float, DeviceCounterEntry]]] = {}
    for one in entries:
        if one["unit"] == PERCENT and _MEMORY.search(one["counter"]) and one["mean_while_computing"] is not None:
            used.setdefault(one["rank"], []).append((one["mean_while_computing"], one))
    peaks = {rank: _together(own) for rank, own in used.items()}
    full = {rank: mean for rank, mean in peaks.items() if mean >= BUSY}
    if full:
        most = max(full, key=lambda rank: full[rank])
        yield made(MemoryAtPeak(most, full[most] / 100), ranks=full)


def _together(counters: Sequence[tuple[float, DeviceCounterEntry]]) -> float:
    apart = [mean for mean, one in counters if _ONE_WAY.search(one["counter"])]
    return max([mean for mean, one in counters if not _ONE_WAY.search(one["counter"])] + [sum(apart)])


ANALYZER = FileAnalyzer(
    "device_activity",
    run,
    (
        Need(
            "counters",
            "record with nsys --gpu-metrics-devices=all, or with torch 2.15's CuspyConfig and PerformanceMetricsConfig",
            optional=True,
        ),
    ),
    sections=(DEVICE_COUNTERS,),
)
