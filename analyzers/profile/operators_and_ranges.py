"""Time by operator, by range or module, and by phase of the step: on the host, and on the device by what each
launched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import Need
from gpuscope.analyzers.frame.phases import Phases, main_thread
from gpuscope.analyzers.frame.sections import OPERATORS, PHASES, RANGES
from gpuscope.analyzers.profile.call_tree import LaunchingThreads, parents
from gpuscope.analyzers.profile.recorded_part import RankPart, parts
from gpuscope.report.schema.profile_sections import OperatorEntry, PhaseEntry, RangeEntry
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.intervals import union
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

RANGES_KEPT = 100
"""Names of ranges per rank: those that take longest."""
NO_PHASE = "none"
"""Stands for what is launched where no phase is recorded and none follows."""
_MODULE = "nn.Module: "
"""How the PyTorch profiler's stacks name the call of a module."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The sections `operators`, `ranges` and `phases` of a file's ranks."""
    result = Result(ANALYZER.name)
    operators: list[OperatorEntry] = []
    ranges: list[RangeEntry] = []
    phases: list[PhaseEntry] = []
    for part in parts(trace, lanes):
        own, named = _of_rank(trace, part)
        operators += own
        ranges += named
        phases += _phases(trace, part)
    if operators:
        result.sections[OPERATORS] = operators
    if ranges:
        result.sections[RANGES] = ranges
    if phases:
        result.sections[PHASES] = phases
    return result


def _of_rank(trace: Trace, part: RankPart) -> tuple[list[OperatorEntry], list[RangeEntry]]:
    """The operators and the ranges of one rank."""
    host = trace["host_events"]
    category = host["category"][part.host]
    module = category == Category.PYTHON
    module[module] = trace.names.matching(lambda name: name.startswith(_MODULE))[host["name"][part.host[module]]]
    rows = part.host[(category == Category.OP) | (category == Category.ANNOTATION) | module]
    rows = rows[~_is_step(trace, part.rank, rows)]
    start, end, thread = (host[column][rows] for column in ("start", "end", "thread"))
    parent = parents(start, end, thread)
    device = LaunchingThreads(trace, part.device, part.host)
    is_operator = host["category"][rows] == Category.OP
    within, reach = np.zeros((4, len(rows)), np.int64), np.zeros(len(rows), np.int64)
    nested = np.zeros((4, len(rows)), np.int64)
    for which in np.unique(thread).tolist():
        own, by = np.flatnonzero(thread == which), device.by(which)
        nested[:, own] = by.within(start[own], end[own])
        within[:, own] = nested[:, own]
        ranges = own[host["category"][rows[own]] == Category.ANNOTATION]
        of_ranges = device.of_ranges(which) if which == device.home else by
        within[:, ranges] = of_ranges.within(start[ranges], end[ranges])
        reach[own] = by.reach(start[own], end[own])
        reach[ranges] = of_ranges.reach(start[ranges], end[ranges])
    own_host, own_device = end - start, nested[:3].sum(axis=0)
    inner = np.flatnonzero(parent != NA)
    np.subtract.at(own_host, parent[inner], (end - start)[inner])
    np.subtract.at(own_device, parent[inner], nested[:3].sum(axis=0)[inner])
    figures = np.vstack((end - start, own_host, within, own_device, reach))
    known = part.has_device
    return (
        _operators(trace, rows[is_operator], figures[:, is_operator], known),
        _ranges(trace, part.rank, rows[~is_operator], figures[:, ~is_operator], known),
    )


def _is_step(trace: Trace, rank: int, rows: Times) -> Mask:
    """Which of the host events are the steps of the rank: these have tables of their own."""
    host, steps = trace["host_events"], trace["steps"]
    own = np.flatnonzero(steps["rank"] == rank)
    start = steps["start"][own]
    place = np.minimum(np.searchsorted(start, host["start"][rows]), max(len(own) - 1, 0))
    if not len(own):
        return np.zeros(len(rows), np.bool_)
    same = (start[place] == host["start"][rows]) & (steps["end"][own][place] == host["end"][rows])
    return np.asarray(same & trace.names.matching(kinds.is_step_range)[host["name"][rows]], np.bool_)


def _summed(names: Times, figures: Times) -> tuple[Times, Times, Times]:
    """The distinct names (codes), how often each occurs, and the sums of the figures; (n,), (n,) and (figures, n)."""
    unique, which = distinct(names)
    sums = np.zeros((len(figures), len(unique)), np.int64)
    for total, values in zip(sums, figures, strict=True):
        np.add.at(total, which, values)
    return unique, np.bincount(which, minlength=len(unique)), sums


def _operators(trace: Trace, rows: Times, figures: Times, known: bool) -> list[OperatorEntry]:
    unique, counts, sums = _summed(trace["host_events"]["name"][rows], figures)
    entries: list[OperatorEntry] = []
    for index, code in enumerate(unique.tolist()):
        spent, own_host, compute, communication, memory, kernels, own_device, _ = sums[:, index].tolist()
        entries.append({
            "name": trace.names[code], "count": int(counts[index]), "host_ns": spent, "host_self_ns": own_host,
            "device_ns": compute + communication + memory if known else None,
            "device_self_ns": own_device if known else None, "kernels": kernels if known else None,
        })  # fmt: skip
    return entries


def _ranges(trace: Trace, rank: int, rows: Times, figures: Times, known: bool) -> list[RangeEntry]:
    names = trace["host_events"]["name"][rows]
    unique, counts, sums = _summed(names, figures)
    longest = np.zeros(len(unique), np.int64)
    np.maximum.at(longest, np.searchsorted(unique, names), figures[0])
    weight = np.maximum(sums[0], sums[2:5].sum(axis=0))
    entries: list[RangeEntry] = []
    for index in np.argsort(-weight, kind="stable")[:RANGES_KEPT].tolist():
        spent, _, compute, communication, memory, kernels, _, reach = sums[:, index].tolist()
        name = trace.names[int(unique[index])]
        entries.append({
            "rank": rank, "name": name.removeprefix(_MODULE), "kind": "module" if name.startswith(_MODULE) else "range",
            "phase": kinds.phase(name) or None, "count": int(counts[index]), "host_ns": spent,
            "host_mean_ns": spent // int(counts[index]), "host_max_ns": int(longest[index]),
            "device_ns": compute + communication + memory if known else None, "compute_ns": compute if known else None,
            "communication_ns": communication if known else None, "memory_ns": memory if known else None,
            "device_span_ns": reach if known else None, "kernels": kernels if known else None,
        })  # fmt: skip
    return entries


def _phases(trace: Trace, part: RankPart) -> list[PhaseEntry]:
    """Host and device time of a rank by phase; empty where no event names one."""
    host, device, names = trace["host_events"], trace["device_events"], trace.names
    launch = device["launch"][part.device]
    rows, launch = part.device[launch != NA], launch[launch != NA]
    found = Phases(trace, part.rank, main_thread(host, part.rank, launch))
    in_phase = part.host[found.ranges[part.host]]
    if not len(in_phase):
        return []
    of_range = found.code[host["name"][in_phase]]
    of_launch = found.at(host["thread"][launch], host["start"][launch])
    entries: list[PhaseEntry] = []
    for code in np.unique(np.concatenate((of_range, of_launch))).tolist():
        inside = in_phase[of_range == code]
        own = rows[of_launch == code]
        spent = device["end"][own] - device["start"][own]
        of_kind = [int(spent[device["kind"][own] == kind].sum()) for kind in Kind]
        known = part.has_device
        entries.append({
            "rank": part.rank, "phase": NO_PHASE if code == NO_NAME else names[code],
            "host_ns": union(host["start"][inside], host["end"][inside]).total,
            "device_ns": sum(of_kind) if known else None, "compute_ns": of_kind[0] if known else None,
            "communication_ns": of_kind[1] if known else None, "memory_ns": of_kind[2] if known else None,
        })  # fmt: skip
    return sorted(entries, key=lambda entry: -max(entry["host_ns"], entry["device_ns"] or 0))


ANALYZER = FileAnalyzer(
    "operators",
    run,
    (
        Need(
            "host_events",
            "record with the CPU activity of torch.profiler, or `nsys profile -t cuda,nvtx`",
            optional=True,
        ),
    ),
    (OPERATORS, RANGES, PHASES),
)
