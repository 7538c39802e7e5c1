"""What the counters of network ports and switches, NVLink and PCIe say of the links while communication is exposed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.base.sections import LINK_COUNTERS
from gpuscope.analyzers.topology.counter_means import counter_entry
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import LinkAtPeak, NetworkCongestion
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import LinkCounterEntry
from gpuscope.trace.intervals import Spans, union
from gpuscope.trace.trace import Trace

BUSY = 80.0
"""Percent of a link's peak from which it is what limits."""
CONGESTION = when_used.pattern(r"(?i)congest|\bpause|\bcnp\b|\becn\b|send wait|xmit wait|discard|out of buffer|retrans")
"""Counters that count nothing on a network that flows: pauses, congestion notices, waits for credit, drops."""
_LINK = when_used.pattern(r"(?i)^(NIC|IB switch) |nvl(ink|rx|tx)|pcie")
_PERCENT = "%"
SHOWN = 4
_EXPOSED_LEAST = 0.01
"""Of the recording: less exposed communication says nothing of a link."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `link_counters`, and findings of congestion and of links at their peak."""
    result, table = Result(ANALYZER.name), trace["counters"]
    exposed = _exposed(lanes)
    entries: list[LinkCounterEntry] = []
    link = trace.names.matching(is_link)
    of_links = link[table["counter"]] | link[table["place"]]
    kinds = zip(table["place"][of_links].tolist(), table["counter"][of_links].tolist(), strict=True)
    for place, counter in sorted(set(kinds)):
        rows = (table["place"] == place) & (table["counter"] == counter)
        entries.append(counter_entry(trace, rows, exposed))
    if entries:
        result.sections[LINK_COUNTERS] = entries
    result.findings += [*_congestion(entries, lanes), *_busy(entries, lanes, exposed)]
    return result


def is_link(name: str) -> bool:
    """Whether a counter's or its place's name is of a link: the others of a GPU are `device_activity`'s."""
    return _LINK.search(name) is not None


def _exposed(lanes: Sequence[LaneView]) -> Spans:
    """When some lane's communication is exposed."""
    spans = [view.parts.exposed_communication for view in lanes]
    return union(
        np.concatenate([one.start for one in spans] or [np.empty(0, np.int64)]),
        np.concatenate([one.end for one in spans] or [np.empty(0, np.int64)]),
    )


def _congestion(entries: Sequence[LinkCounterEntry], lanes: Sequence[LaneView]) -> Iterator[FindingEntry]:
    found = [one for one in entries if CONGESTION.search(one["counter"]) and one["peak"] > 0]
    if found:
        counted = [(one["place"], one["counter"], one["total"]) for one in found[:SHOWN]]
        yield made(NetworkCongestion(counted), ranks=_ranks(lanes))


def _busy(entries: Sequence[LinkCounterEntry], lanes: Sequence[LaneView], exposed: Spans) -> Iterator[FindingEntry]:
    if exposed.total < _EXPOSED_LEAST * max((view.window[1] - view.window[0] for view in lanes), default=0):
        return
    full = [one for one in entries if one["unit"] == _PERCENT and (one["mean_while_exposed"] or 0) >= BUSY]
    if full:
        used = [(one["place"], one["counter"], (one["mean_while_exposed"] or 0) / 100) for one in full[:SHOWN]]
        yield made(LinkAtPeak(used), ranks=_ranks(lanes))


def _ranks(lanes: Sequence[LaneView]) -> set[int]:
    return {view.lane.rank for view in lanes}


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
