"""Time by operator, by range or module, and by phase of the step: on the host, and on the device by what each
launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import Need
from gpuscope.analyzers.frame.phases import Phases, main_thread
from gpuscope.analyzers.frame.sections import OPERATORS, PHASES, RANGES
from gpuscope.analyzers.profile.call_tree import Launched, LaunchingThreads, parents
from gpuscope.analyzers.profile.recorded_part import RankPart, parts
from gpuscope.report.schema.profile_sections import OperatorEntry, PhaseEntry, RangeEntry
from gpuscope.trace.columns.distinct import distinct, distinct_values
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
    is_operator = host["category"][rows] == Category.OP
    spent = end - start
    sums = _Sums(host["name"][rows].astype(np.int64) * 2 + is_operator)
    sums.add("host", spent)
    sums.add("host_self", spent)
    parent = parents(start, end, thread)
    inner = np.flatnonzero(parent != NA)
    sums.add("host_self", -spent[inner], parent[inner])
    device = LaunchingThreads(trace, part.device, part.host)
    for which in distinct_values(thread).tolist():
        own, by = np.flatnonzero(thread == which), device.by(which)
        bounds = by.bounds(start[own], end[own])
        busy = by.busy(*bounds)
        nested = parent[own] != NA
        sums.add("device_self", busy, own)
        sums.add("device_self", -busy[nested], parent[own[nested]])
        ranges = (host["category"][rows[own]] == Category.ANNOTATION) & (which == device.home)
        if ranges.any():
            of_ranges = device.of_ranges(which)
            sums.add_launched(own[ranges], of_ranges, of_ranges.bounds(start[own[ranges]], end[own[ranges]]))
            own, bounds = own[~ranges], (bounds[0][~ranges], bounds[1][~ranges])
        sums.add_launched(own, by, bounds)
    longest = np.zeros(len(sums.keys), np.int64)
    np.maximum.at(longest, sums.group, spent)
    return (
        _operators(trace, sums, part.has_device),
        _ranges(trace, part.rank, sums, longest, part.has_device),
    )


_LAUNCHED = ("compute", "communication", "memory", "kernels")


class _Sums:
    """Sums over host events by name, operators and ranges apart; ns, but for `kernels`."""

    def __init__(self, keys: Times) -> None:
        self.keys, self.group = distinct(keys)
        """Code of the name times two, one more of an operator; and of each event its place among the keys."""
        self.counts = np.bincount(self.group, minlength=len(self.keys))
        self._sums: defaultdict[str, Times] = defaultdict(lambda: np.zeros(len(self.keys), np.int64))

    def add(self, figure: str, values: Times, rows: Times | None = None) -> None:
        """Add values of all events, or of some, to a figure."""
        np.add.at(self._sums[figure], self.group if rows is None else self.group[rows], values)

    def add_launched(self, rows: Times, launched: Launched, bounds: tuple[Times, Times]) -> None:
        """Add what was launched in each of some events."""
        for place, figure in enumerate(_LAUNCHED):
            self.add(figure, launched.sums[place, bounds[1]] - launched.sums[place, bounds[0]], rows)
        self.add("reach", launched.reach(*bounds), rows)

    def of(self, figure: str) -> Times:
        """A figure by key."""
        return self._sums[figure]

    def at(self, place: int) -> dict[str, int]:
        """The figures of a key."""
        return {figure: int(values[place]) for figure, values in self._sums.items()}


def _is_step(trace: Trace, rank: int, rows: Times) -> Mask:
    """Which of the host events are the steps of the rank: these have tables of their own."""
    host, steps = trace["host_events"], trace["steps"]
    own = np.flatnonzero(steps["rank"] == rank)
    found = np.asarray(trace.names.matching(kinds.is_step_range)[host["name"][rows]], np.bool_)
    named = rows[found]
    if not len(own) or not len(named):
        return np.zeros(len(rows), np.bool_)
    start = steps["start"][own]
    place = np.minimum(np.searchsorted(start, host["start"][named]), len(own) - 1)
    found[found] = (start[place] == host["start"][named]) & (steps["end"][own][place] == host["end"][named])
    return found


def _operators(trace: Trace, sums: _Sums, known: bool) -> list[OperatorEntry]:
    entries: list[OperatorEntry] = []
    for index in np.flatnonzero(sums.keys % 2).tolist():
        own = sums.at(index)
        entries.append({
            "name": trace.names[int(sums.keys[index]) // 2], "count": int(sums.counts[index]), "host_ns": own["host"],
            "host_self_ns": own["host_self"],
            "device_ns": own["compute"] + own["communication"] + own["memory"] if known else None,
            "device_self_ns": own["device_self"] if known else None, "kernels": own["kernels"] if known else None,
        })  # fmt: skip
    return entries


def _ranges(trace: Trace, rank: int, sums: _Sums, longest: Times, known: bool) -> list[RangeEntry]:
    places = np.flatnonzero(sums.keys % 2 == 0)
    busy = sums.of("compute") + sums.of("communication") + sums.of("memory")
    weight = np.maximum(sums.of("host"), busy)[places]
    entries: list[RangeEntry] = []
    for index in places[np.argsort(-weight, kind="stable")[:RANGES_KEPT]].tolist():
        own, count = sums.at(index), int(sums.counts[index])
        name = trace.names[int(sums.keys[index]) // 2]
        entries.append({
            "rank": rank, "name": name.removeprefix(_MODULE), "kind": "module" if name.startswith(_MODULE) else "range",
            "phase": kinds.phase(name) or None, "count": count, "host_ns": own["host"],
            "host_mean_ns": own["host"] // count, "host_max_ns": int(longest[index]),
            "device_ns": int(busy[index]) if known else None, "compute_ns": own["compute"] if known else None,
            "communication_ns": own["communication"] if known else None, "memory_ns": own["memory"] if known else None,
            "device_span_ns": own["reach"] if known else None, "kernels": own["kernels"] if known else None,
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
