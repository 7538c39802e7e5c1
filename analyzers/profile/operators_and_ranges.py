"""Time by operator, by range or module, and by phase of the step: on the host, and on the device by what each
launched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope import native
from gpuscope.analyzers.base.analyzer import FileAnalyzer, Need, Result
from gpuscope.analyzers.base.evidence import Phases, main_thread, name_phases
from gpuscope.analyzers.base.lanes import OPERATORS, PHASES, RANGES, LaneView
from gpuscope.analyzers.profile.recorded_ranks import Launched, LaunchingThreads, RecordedRank, parents, recorded_ranks
from gpuscope.schema.nccl_sections import OperatorEntry, PhaseEntry, RangeEntry
from gpuscope.trace import kinds
from gpuscope.trace.kernel_categories import is_optimizer_step
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.optimizer_ranges import update_begins
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Array, Mask, Times, distinct_values, quarters, rows_of_rank, rows_where
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
    for recorded in recorded_ranks(trace, lanes):
        own, named = _of_rank(trace, recorded)
        operators += own
        ranges += named
        phases += _phases(trace, recorded)
    if operators:
        result.sections[OPERATORS] = operators
    if ranges:
        result.sections[RANGES] = ranges
    if phases:
        result.sections[PHASES] = phases
    return result


def _of_rank(trace: Trace, recorded: RecordedRank) -> tuple[list[OperatorEntry], list[RangeEntry]]:
    """The operators and the ranges of one rank."""
    host = trace["host_events"]
    is_module = trace.names.matching(lambda name: name.startswith(_MODULE))

    def shown(rows: slice) -> Mask:
        category = host["category"][rows]
        module = (category == Category.PYTHON) & is_module[host["name"][rows]]
        return np.asarray((category == Category.OP) | (category == Category.ANNOTATION) | module)

    rows = recorded.host_rows(host, shown)
    rows = rows[~_is_step(trace, recorded.rank, rows)]
    sums = _Sums(len(trace.names))
    if not len(rows):
        return _operators(trace, sums, recorded.has_device), _ranges(trace, recorded.rank, sums, recorded.has_device)
    device = LaunchingThreads(trace, recorded)
    wanted = np.zeros(len(host), np.bool_)
    wanted[rows] = True
    of = slice(*recorded.bounds)  # the rank's events as they stand: no copy of those that are wanted
    start, end, name, category, thread = (host[column][of] for column in ("start", "end", "name", "category", "thread"))
    wanted, threads = wanted[of], distinct_values(thread[rows - of.start]).tolist()
    del rows
    parent = parents(start, end, thread, wanted)
    for which in threads:
        launched = device.of_thread(which)
        for part in quarters(len(wanted)):
            own = np.flatnonzero(wanted[part] & (thread[part] == which)) + part.start
            _add_thread((start, end, name, category), sums, own, parent, *launched)
            nested = _within_same(name, category, parent, own)
            if len(nested):
                once_more = _Sums(len(trace.names))
                _add_thread((start, end, name, category), once_more, nested, parent, *launched)
                sums.take_inclusive(once_more)
    return _operators(trace, sums, recorded.has_device), _ranges(trace, recorded.rank, sums, recorded.has_device)


def _add_thread(
    columns: tuple[Times, Array, Array, Array],
    sums: _Sums,
    rows: Times,
    parent: Times,
    by: Launched,
    of_ranges: Launched,
) -> None:
    """Add the events `rows` of a thread; `parent` says for each host event which one it is within. What was launched in
    ranges is looked for in `of_ranges`, in others in `by`."""
    own = by.columns
    others = own if of_ranges is by else of_ranges.columns
    native.add_launched(columns, rows, parent, int(Category.OP), int(Category.ANNOTATION), own, others, sums.columns)


def _within_same(name: Array, category: Array, parent: Times, rows: Times) -> Times:
    """Those of the events that lie within another of the same name and kind."""
    found = np.zeros(len(rows), np.bool_)
    left, around = np.arange(len(rows)), parent[rows]
    while len(left := left[around != NA]):
        around = around[around != NA]
        own = rows[left]
        same = (name[around] == name[own]) & ((category[around] == Category.OP) == (category[own] == Category.OP))
        found[left[same]] = True
        left, around = left[~same], parent[around[~same]]
    return rows[found]


_FIGURES = ("host", "host_self", "device_self", "compute", "communication", "memory", "kernels", "reach")


class _Sums:
    """Sums over host events by name, operators and ranges apart; ns, but for `kernels`.

    Keys are those of `native.plain.add_launched`.
    """

    def __init__(self, names: int) -> None:
        self._counts, self._longest = np.zeros(2 * names, np.int64), np.zeros(2 * names, np.int64)
        self._figures = np.zeros((len(_FIGURES), 2 * names), np.int64)
        self._sums = dict(zip(_FIGURES, self._figures, strict=True))

    @property
    def columns(self) -> tuple[Times, Times, Times]:
        """Counts and longest, shape (keys,), and the figures in their order, shape (figures, keys): to be added to."""
        return self._counts, self._longest, self._figures

    def take_inclusive(self, nested: _Sums) -> None:
        """Take back what events within another of their key have added but for their own time: it is in that one's."""
        self._counts -= nested._counts
        for figure, values in self._sums.items():
            if not figure.endswith("_self"):
                values -= nested._sums[figure]

    @property
    def keys(self) -> Times:
        """The keys that occur, ascending."""
        return np.flatnonzero(self._counts)

    @property
    def counts(self) -> Times:
        """How many events there are, by key."""
        return self._counts[self.keys]

    @property
    def longest(self) -> Times:
        """The longest time of an event, by key."""
        return self._longest[self.keys]

    def of(self, figure: str) -> Times:
        """A figure by key."""
        return self._sums[figure][self.keys]

    def each(self) -> list[tuple[int, int, dict[str, int]]]:
        """Each key, how many events it has, and its figures."""
        keys = self.keys
        columns = [self._sums[figure][keys].tolist() for figure in _FIGURES]
        figures = (dict(zip(_FIGURES, row, strict=True)) for row in zip(*columns, strict=True))
        return list(zip(keys.tolist(), self.counts.tolist(), figures, strict=True))


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
    return [
        {
            "name": trace.names[key // 2],
            "count": count,
            "host_ns": own["host"],
            "host_self_ns": own["host_self"],
            "device_ns": own["compute"] + own["communication"] + own["memory"] if known else None,
            "device_self_ns": own["device_self"] if known else None,
            "kernels": own["kernels"] if known else None,
        }
        for key, count, own in sums.each()
        if key % 2
    ]


def _ranges(trace: Trace, rank: int, sums: _Sums, known: bool) -> list[RangeEntry]:
    places = np.flatnonzero(sums.keys % 2 == 0)
    busy = sums.of("compute") + sums.of("communication") + sums.of("memory")
    weight = np.maximum(sums.of("host"), busy)[places]
    each, longest, updates = sums.each(), sums.longest, _updates(trace, rank)
    entries: list[RangeEntry] = []
    for index in places[np.argsort(-weight, kind="stable")[:RANGES_KEPT]].tolist():
        key, count, own = each[index]
        name = trace.names[key // 2]
        entries.append(
            {
                "rank": rank,
                "name": name.removeprefix(_MODULE),
                "kind": "module" if name.startswith(_MODULE) else "range",
                "phase": kinds.phase(name) or None,
                "count": count,
                "host_ns": own["host"],
                "host_mean_ns": own["host"] // count,
                "host_max_ns": int(longest[index]),
                "device_ns": int(busy[index]) if known else None,
                "compute_ns": own["compute"] if known else None,
                "communication_ns": own["communication"] if known else None,
                "memory_ns": own["memory"] if known else None,
                "device_span_ns": own["reach"] if known else None,
                "kernels": own["kernels"] if known else None,
            }
        )
        if key // 2 in updates:
            entries[-1]["update_ns"] = updates[key // 2]
    return entries


def _updates(trace: Trace, rank: int) -> dict[int, int]:
    """ns that optimizers' steps which hold a closure's forward and backward take behind these, by name."""
    host, names = trace["host_events"], trace.names
    steps = names.matching(is_optimizer_step)
    rows = rows_where(
        *rows_of_rank(host, rank),
        lambda part: steps[host["name"][part]] & (host["category"][part] == Category.ANNOTATION),
    )
    begins = update_begins(host, names, rows)
    closures = begins > host["start"][rows]
    found: dict[int, int] = {}
    for code, spent in zip(host["name"][rows][closures].tolist(), (host["end"][rows] - begins)[closures], strict=True):
        found[code] = found.get(code, 0) + int(spent)
    return found


def _phases(trace: Trace, recorded: RecordedRank) -> list[PhaseEntry]:
    """Host and device time of a rank by phase; empty where no event names one."""
    host, device, names = trace["host_events"], trace["device_events"], trace.names
    is_phase = name_phases(names) != NO_NAME
    if not recorded.host_rows(host, lambda rows: is_phase[host["name"][rows]]).size:
        return []
    launch = device.at("launch", recorded.device)
    rows, launch = recorded.device[launch != NA], launch[launch != NA]
    found = Phases(trace, recorded.rank, main_thread(host, recorded.rank, launch))
    in_phase = recorded.host_rows(host, lambda rows: found.ranges[rows])
    if not len(in_phase):
        return []
    of_range = found.code[host["name"][in_phase]]
    of_launch = found.at(host["thread"][launch], host["start"][launch])
    of_closures = [found.forward] if len(found.closures) else []  # no range need name a closure's forward
    entries: list[PhaseEntry] = []
    for code in distinct_values(np.concatenate((of_range, of_launch, np.array(of_closures, np.int64)))).tolist():
        inside = in_phase[of_range == code]
        own = rows[of_launch == code]
        spent = device["end"][own] - device["start"][own]
        of_kind = [int(spent[device["kind"][own] == kind].sum()) for kind in Kind]
        known = recorded.has_device
        entries.append(
            {
                "rank": recorded.rank,
                "phase": NO_PHASE if code == NO_NAME else names[code],
                "host_ns": found.host_spans(code, inside).total,
                "device_ns": sum(of_kind) if known else None,
                "compute_ns": of_kind[0] if known else None,
                "communication_ns": of_kind[1] if known else None,
                "memory_ns": of_kind[2] if known else None,
            }
        )
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
    cost=1,
    large=True,
)
