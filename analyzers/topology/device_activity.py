"""What the counters of GPUs say of the work on them: SMs, memory, power and clocks, while what ran.

A kernel whose memory traffic is at the device's peak is bound by memory bandwidth; SMs that are idle while a kernel
runs say that it is too small for the device. «SM active» alone does not say that a kernel computes much: one that waits
for memory keeps its SMs active too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import EVIDENCE, FileAnalyzer, Need, Result
from gpuscope.analyzers.base.lanes import DEVICE_COUNTERS, LINK_COUNTERS, LaneSummary, LaneView, count_steps
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.topology.counter_means import counter_entry, mean_within, values_of
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.device import MemoryAtPeak
from gpuscope.catalogue.findings.network import GroupAcrossHosts, LinkAtPeak, NetworkCongestion
from gpuscope.schema.call_tree_section import DeviceCounterEntry, KernelSamples
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.nccl_sections import LinkCounterEntry
from gpuscope.trace.frameworks import parallelism_of
from gpuscope.trace.intervals import Spans, intersect, measure_within, union
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Mask, Times, distinct_values
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# What the counters of network ports and switches, NVLink and PCIe say of the links while communication is exposed.

BUSY = 80.0
"""Percent of a link's peak from which it is what limits."""
CONGESTION = when_used.pattern(r"(?i)congest|\bpause|\bcnp\b|\becn\b|send wait|xmit wait|discard|out of buffer|retrans")
"""Counters that count nothing on a network that flows: pauses, congestion notices, waits for credit, drops."""
_LINK = when_used.pattern(r"(?i)^(NIC|IB switch) |nvl(ink|rx|tx)|pcie")
_PERCENT = "%"
SHOWN = 4
_EXPOSED_LEAST = 0.01
"""Of the recording: less exposed communication says nothing of a link."""


def link_activity_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `link_counters`, and findings of congestion and of links at their peak."""
    result, table = Result(LINK_ACTIVITY_ANALYZER.name), trace["counters"]
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


LINK_ACTIVITY_ANALYZER = FileAnalyzer(
    "link_activity",
    link_activity_run,
    (
        Need(
            "counters",
            "record with nsys --nic-metrics=lf and --gpu-metrics-devices=all (switches: --ib-switch-metrics-devices)",
            optional=True,
        ),
    ),
    sections=(LINK_COUNTERS,),
)


# Groups that talk within a layer (tensor, sequence, context, expert parallel) yet span hosts.
#
# Such a group sends in every layer, so it belongs inside one host's NVLink; pipeline stages send little and may
# cross hosts (Megatron-LM, Narayanan et al. 2021, arXiv:2104.04473, takeaway 1).

INSIDE = frozenset({"tp", "sp", "cp", "ep"})


@dataclass(frozen=True)
class Spread:
    """A group that spans hosts though one host could hold it: its code and members."""

    kind: str
    group: int
    members: tuple[int, ...]
    hosts: tuple[str, ...]


def groups_across_hosts_run(facts: RunFacts) -> Result:
    """A finding `group_across_hosts` per kind of parallelism whose exposed communication costs 1 % or more."""
    result = Result(GROUPS_ACROSS_HOSTS_ANALYZER.name)
    found: dict[str, list[Spread]] = {}
    for spread in _spread_groups(facts.trace):
        found.setdefault(spread.kind, []).append(spread)
    for kind, spreads in found.items():
        finding = _finding(facts.trace, facts.lanes, kind, spreads)
        if finding["share_frac"] >= MIN_SHARE:
            result.findings.append(finding)
    return result


def _spread_groups(trace: Trace) -> Iterator[Spread]:
    hosts = _hosts(trace)
    room = max(Counter(hosts.values()).values(), default=0)
    table = trace["groups"]
    for group in distinct_values(table["group"]).tolist():
        rows = np.flatnonzero(table["group"] == group)
        kind = parallelism_of(trace.names[int(table["description"][rows[0]])])
        members = tuple(sorted(set(table["rank"][rows].tolist())))
        if kind not in INSIDE or len(members) < int(table["size"][rows[0]]) or len(members) > room:
            continue
        own = {hosts.get(rank, "") for rank in members}
        if len(own) > 1 and "" not in own:
            yield Spread(kind, group, members, tuple(sorted(own)))


def _hosts(trace: Trace) -> dict[int, str]:
    """Host of each rank that records one."""
    ranks = trace["ranks"]
    known = np.flatnonzero(ranks["host"] != NO_NAME)
    return {int(ranks["rank"][row]): trace.names[int(ranks["host"][row])] for row in known}


def _finding(trace: Trace, lanes: Sequence[LaneSummary], kind: str, spreads: Sequence[Spread]) -> FindingEntry:
    members = sorted({rank for spread in spreads for rank in spread.members})
    groups = np.array([spread.group for spread in spreads])
    exposed = [(lane, _groups_across_hosts_exposed(trace, lane, groups)) for lane in lanes if lane.rank in members]
    window = sum(lane.breakdown.window for lane in lanes)
    share = sum(spans.total for _, spans in exposed) / max(window, 1)
    per_step = [spans.total / max(count_steps(lane.steps), 1) for lane, spans in exposed]
    hosts = sorted({host for spread in spreads for host in spread.hosts})
    words = GroupAcrossHosts(kind, len(spreads), len(spreads[0].members), hosts, share)
    return made(
        words,
        ranks=members,
        share=share,
        cost_ns=sum(spans.total for _, spans in exposed),
        mean_ns=round(sum(per_step) / max(len(lanes), 1)),
        evidence=[evidence for lane, spans in exposed for evidence in _evidence(lane, spans, kind)][:EVIDENCE],
    )


def _groups_across_hosts_exposed(trace: Trace, lane: LaneSummary, groups: Times) -> Spans:
    table = trace["collectives"]
    rows = np.flatnonzero((table["rank"] == lane.rank) & np.isin(table["group"], groups))
    rows = rows[table.known("start")[rows] & table.known("end")[rows]]
    return intersect(union(table["start"][rows], table["end"][rows]), lane.exposed_communication)


def _evidence(lane: LaneSummary, spans: Spans, kind: str) -> Iterator[Evidence]:
    if spans.total:
        longest = int(np.argmax(spans.end - spans.start))
        start, end = int(spans.start[longest]), int(spans.end[longest])
        yield {
            "rank": lane.rank,
            "start_ns": start,
            "dur_ns": end - start,
            "name": f"{kind} communication",
            "note": "between hosts",
        }


GROUPS_ACROSS_HOSTS_ANALYZER = RunAnalyzer(
    "across_hosts", groups_across_hosts_run, (Need("groups", "record process groups (torch 2.4 and later)"),)
)


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
    result, table = Result(DEVICE_ACTIVITY_ANALYZER.name), trace["counters"]
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


DEVICE_ACTIVITY_ANALYZER = FileAnalyzer(
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


ANALYZERS = (DEVICE_ACTIVITY_ANALYZER, GROUPS_ACROSS_HOSTS_ANALYZER, LINK_ACTIVITY_ANALYZER)
