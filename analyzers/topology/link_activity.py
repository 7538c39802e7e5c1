"""What the counters of network ports and switches, NVLink and PCIe say of the links while communication is exposed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import Need
from gpuscope.analyzers.frame.sections import LINK_COUNTERS
from gpuscope.report.schema.document import FindingEntry
from gpuscope.report.schema.nccl_sections import LinkCounterEntry
from gpuscope.report.view import units
from gpuscope.trace.columns.table import Array, Mask
from gpuscope.trace.intervals import Spans, measure_within, union
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

BINS = 100
"""Parts of the recording that a counter's course over time is given in."""
BUSY = 80.0
"""Percent of a link's peak from which it is what limits."""
CONGESTION = re.compile(r"(?i)congest|\bpause|\bcnp\b|\becn\b|send wait|xmit wait|discard|out of buffer|retrans")
"""Counters that count nothing on a network that flows: pauses, congestion notices, waits for credit, drops."""
_LINK = re.compile(r"(?i)^(NIC|IB switch) |nvl(ink|rx|tx)|pcie")
_PERCENT = "%"
_EXPOSED_LEAST = 0.01
"""Of the recording: less exposed communication says nothing of a link."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `link_counters`, and findings of congestion and of links at their peak."""
    result, table = Result(ANALYZER.name), trace["counters"]
    exposed = _exposed(lanes)
    entries: list[LinkCounterEntry] = []
    link = trace.names.matching(_is_link)
    of_links = link[table["counter"]] | link[table["place"]]
    kinds = zip(table["place"][of_links].tolist(), table["counter"][of_links].tolist(), strict=True)
    for place, counter in sorted(set(kinds)):
        rows = (table["place"] == place) & (table["counter"] == counter)
        entries.append(_entry(trace, rows, exposed))
    if entries:
        result.sections[LINK_COUNTERS] = entries
    result.findings += [*_congestion(entries, lanes), *_busy(entries, lanes, exposed)]
    return result


def _is_link(name: str) -> bool:
    """Whether a counter's or its place's name is of a link: other counters of a GPU are not judged here."""
    return _LINK.search(name) is not None


def _exposed(lanes: Sequence[LaneView]) -> Spans:
    """When some lane's communication is exposed."""
    spans = [view.parts.exposed_communication for view in lanes]
    return union(np.concatenate([one.start for one in spans] or [np.empty(0, np.int64)]),
                 np.concatenate([one.end for one in spans] or [np.empty(0, np.int64)]))  # fmt: skip


def _entry(trace: Trace, rows: Mask, exposed: Spans) -> LinkCounterEntry:
    table = trace["counters"]
    start, end = (table[name][rows] for name in ("start", "end"))
    value = table["value"][rows] / np.where(table["parts"][rows] == NA, 1, table["parts"][rows])
    length = np.maximum(end - start, 1)
    within = measure_within(exposed, start, end)
    first = int(np.flatnonzero(rows)[0])
    unit = trace.names[int(table["unit"][first])]
    begin, width = int(start.min()), -(-max(int(end.max() - start.min()), 1) // BINS)
    return {
        "place": trace.names[int(table["place"][first])], "counter": trace.names[int(table["counter"][first])],
        "unit": unit, "samples": int(rows.sum()), "mean": float(np.average(value, weights=length)),
        "peak": float(value.max()), "total": round(float(value.sum())),
        "mean_while_exposed": float(np.average(value, weights=within)) if within.any() else None,
        "start_ns": begin, "bin_ns": width, "course": _course(start - begin, value, length, width),
    }  # fmt: skip


def _course(offset: Array, value: Array, length: Array, width: int) -> list[float]:
    """The mean value per bin of the recording; a sample counts where it begins."""
    place = np.minimum(offset // width, BINS - 1)
    weight = np.bincount(place, weights=length, minlength=BINS)
    total = np.bincount(place, weights=value * length, minlength=BINS)
    return [float(one) for one in np.divide(total, weight, out=np.zeros(BINS), where=weight > 0)]


def _congestion(entries: Sequence[LinkCounterEntry], lanes: Sequence[LaneView]) -> Iterator[FindingEntry]:
    found = [one for one in entries if CONGESTION.search(one["counter"]) and one["peak"] > 0]
    if found:
        said = "; ".join(f"{one['place']}, {one['counter']}: {one['total']:,} in all" for one in found[:4])
        yield _finding("network_congestion", said, lanes)


def _busy(entries: Sequence[LinkCounterEntry], lanes: Sequence[LaneView], exposed: Spans) -> Iterator[FindingEntry]:
    if exposed.total < _EXPOSED_LEAST * max((view.window[1] - view.window[0] for view in lanes), default=0):
        return
    full = [one for one in entries if one["unit"] == _PERCENT and (one["mean_while_exposed"] or 0) >= BUSY]
    if full:
        said = "; ".join(f"{one['place']}, {one['counter']}: {units.share((one['mean_while_exposed'] or 0) / 100)}"
                         for one in full[:4])  # fmt: skip
        yield _finding("link_at_peak", f"While communication is exposed, {said} of the peak", lanes)


def _finding(code: str, message: str, lanes: Sequence[LaneView]) -> FindingEntry:
    return {
        "code": code, "severity": "medium", "message": message, "ranks": sorted({view.lane.rank for view in lanes}),
        "cost_ns_per_step": 0, "cost_ns": 0, "share_frac": 0.0, "evidence": [],
    }  # fmt: skip


ANALYZER = FileAnalyzer(
    "link_activity",
    run,
    (
        Need(
            "counters",
            "record with nsys --nic-metrics=lf and --gpu-metrics-devices=all (switches: --ib-switch-metrics-devices)",
            optional=True,
        ),
    ),
    sections=(LINK_COUNTERS,),
)
