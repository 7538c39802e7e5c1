"""Timed collectives of one kind over one group, from the trace itself and from what NCCL's tools measured.

What one file of nccl-tests holds, or one communicator of the Inspector or a profiler plugin, is a run of its own:
times of runs with different settings say something only side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

import numpy as np

from gpuscope.analyzers.facts.placement import Placed, Placement
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.nccl.logged.choices import Choices
from gpuscope.analyzers.nccl.logged.nccl_grammar import ALGORITHMS, PROTOCOLS, logged_name, only
from gpuscope.collective_costs.bus_bandwidth import busbw_factor
from gpuscope.collective_costs.message_cost import CostModel, fit
from gpuscope.collective_costs.nccl_model import Choice
from gpuscope.hardware.link_rates import compute_capability
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Times
from gpuscope.trace.naming.communication_kernels import exact_names, kernel_algorithm
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Row, Trace
from gpuscope.when_used import dataclass

TRACE = "trace"
NCCL_TESTS = "nccl-tests"
NVLS_FROM = 90
"""Compute capability times ten from which NVLink switches can reduce."""
LEAST_WHOLE = 3
"""Operations timed on every rank from which a size's time is theirs alone: others may include waiting."""


@dataclass
class Series:
    """Timed operations of one kind over one group: sizes in bytes, times in ns, by how many operations each."""

    tool: str
    op: str
    group: str | None
    group_size: int
    placed: Placed
    source: int | None = None
    """The file, of a tool's rows; the first, where there are several."""
    run: str | None = None
    """What the run is called, where the tool's rows are of several."""
    lower_bound: bool = False
    """Whether all its times include waiting."""
    logged: bool = False
    """Whether NCCL logged each call of nccl-tests meanwhile, which takes longer than messages do."""
    waiting: set[int] = field(default_factory=set)
    """Sizes whose times do."""
    estimated: dict[int, str] = field(default_factory=dict)
    """Of sizes that are not recorded: what they are estimated from."""
    bytes: list[int] = field(default_factory=list)
    dur: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    variant: list[str | None] = field(default_factory=list)
    wrong: list[int | None] = field(default_factory=list)
    choice: list[Choice | None] = field(default_factory=list)

    def add(
        self,
        nbytes: int,
        dur: int,
        count: int = 1,
        variant: str | None = None,
        wrong: int | None = None,
        choice: Choice | None = None,
    ) -> None:
        """One timing."""
        for column, value in ((self.bytes, nbytes), (self.dur, dur), (self.count, count)):
            column.append(value)
        self.variant.append(variant)
        self.wrong.append(wrong)
        self.choice.append(choice)

    def chosen(self, own: Sequence[int]) -> Choice | None:
        """The one choice behind some of its timings; None where it is unknown, or there are several."""
        found = {self.choice[index] for index in own}
        return next(iter(found)) if len(found) == 1 else None


@dataclass(frozen=True)
class Timings:
    """All series of a run, and how many of nccl-tests' rows were left out since nothing had warmed them up."""

    series: tuple[Series, ...]
    cold: int = 0


def timings(facts: RunFacts) -> Timings:
    """The series of the trace, then those of tools."""
    choices = Choices(facts.trace.rows("choices"))
    of_tools, cold = _of_tools(facts.trace, facts.placement, choices)
    return Timings((*_of_trace(facts, choices), *of_tools), cold)


def tool_fits(facts: RunFacts) -> dict[tuple[str, int], CostModel]:
    """By operation and number of ranks, the cost fitted to what tools among the inputs measured, where a line fits."""
    sizes: dict[tuple[str, int], list[float]] = defaultdict(list)
    taken: dict[tuple[str, int], list[int]] = defaultdict(list)
    series, _ = _of_tools(facts.trace, facts.placement, Choices(facts.trace.rows("choices")))
    for one in series:
        factor = busbw_factor(one.op, one.group_size)
        timed = [place for place, size in enumerate(one.bytes) if size not in one.waiting]
        if factor is not None:
            sizes[one.op, one.group_size] += [one.bytes[place] * factor for place in timed]
            taken[one.op, one.group_size] += [one.dur[place] for place in timed]
    fits = {key: fit(np.array(own), np.array(taken[key], np.int64)) for key, own in sizes.items()}
    return {key: found for key, found in fits.items() if found is not None}


def _of_trace(facts: RunFacts, choices: Choices) -> list[Series]:
    """A series per operation and group. Matched operations count with their transfer, the shortest duration over
    the ranks; where none of a group is matched, each rank's own time is all there is, waiting included."""
    trace, placement = facts.trace, facts.placement
    table = trace["collectives"]
    sized = np.flatnonzero((table["bytes"] != NA) & (table["end"] != NA) & (table["start"] != NA))
    if not len(sized):
        return []
    matched, groups = facts.matched, facts.matched.groups
    instances = matched.instances
    shortest = instances.reduce(np.minimum, (table["end"] - table["start"])[instances.rows])
    found: dict[tuple[str, int], Series] = {}
    lone: dict[tuple[str, int], list[int]] = defaultdict(list)
    first = instances.rows[instances.bounds[:-1]]
    chosen = _Chosen(trace, choices)
    for row, transfer in zip(first.tolist(), shortest.tolist(), strict=True):
        if int(table["bytes"][row]) != NA:
            key = _op(trace, row), int(groups.of_row[row])
            series = _series(found, trace, placement, key, row, groups.ranks[key[1]], groups.members)
            nbytes = int(table["bytes"][row])
            series.add(nbytes, transfer, choice=chosen.of(row, key[0], nbytes, series.group_size))
            _mark(series, trace, row)
    for row in sized[matched.of_row[sized] == NA].tolist():
        lone[_op(trace, row), int(groups.of_row[row])].append(row)
    for key, rows in lone.items():
        if key in found:
            continue
        for row in rows:
            series = _series(found, trace, placement, key, row, groups.ranks[key[1]], groups.members)
            nbytes, dur = int(table["bytes"][row]), int(table["end"][row] - table["start"][row])
            series.add(nbytes, dur, choice=chosen.of(row, key[0], nbytes, series.group_size))
            series.lower_bound = True
            _mark(series, trace, row)
    return sorted(found.values(), key=lambda series: (series.op, series.group or ""))


def _mark(series: Series, trace: Trace, row: int) -> None:
    """Note what a row's size is estimated from, if it is."""
    basis = int(trace["collectives"]["size_basis"][row])
    if basis != NO_NAME:
        series.estimated[int(trace["collectives"]["bytes"][row])] = trace.names[basis]


def _op(trace: Trace, row: int) -> str:
    op = trace.names[int(trace["collectives"]["op"][row])]
    return "send_recv" if op in POINT_TO_POINT else op


class _Chosen:
    """What the log says of an operation and size, else what the kernel's own name does."""

    def __init__(self, trace: Trace, choices: Choices) -> None:
        self._trace, self._choices = trace, choices
        self._exact = bool(trace.names.matching(_is_exact).any())
        self._switches = _switches_may_reduce(trace)
        self._found: dict[tuple[int, str, int, int], Choice | None] = {}

    def of(self, row: int, op: str, nbytes: int, size: int) -> Choice | None:
        """Of a row of `collectives`; asked once per kernel, operation and size."""
        event = int(self._trace["collectives"]["event"][row])
        kernel = NO_NAME if event == NA else int(self._trace["device_events"]["name"][event])
        key = kernel, op, nbytes, size
        if key not in self._found:
            self._found[key] = self._choices.of(op, nbytes, size) or self._by_name(kernel, op)
        return self._found[key]

    def _by_name(self, kernel: int, op: str) -> Choice | None:
        if kernel == NO_NAME:
            return None
        algorithm, protocol = kernel_algorithm(self._trace.names[kernel], op, self._exact)
        if algorithm is None or (algorithm == "ring" and protocol is None and self._switches):
            return None
        return Choice(algorithm, protocol or "")


def _is_exact(name: str) -> bool:
    return exact_names((name,))


def _switches_may_reduce(trace: Trace) -> bool:
    """Whether NVLS can be meant where a kernel's name says «no tree»: on Hopper and later, or an unknown GPU."""
    models = {row["device_name"] for row in trace.rows("ranks")}
    return any((compute_capability(model or "") or NVLS_FROM) >= NVLS_FROM for model in models)


def _series(
    found: dict[tuple[str, int], Series],
    trace: Trace,
    placement: Placement,
    key: tuple[str, int],
    row: int,
    ranks: Times | None,
    members: Times,
) -> Series:
    if key not in found:
        table, size = trace["collectives"], int(members[key[1]])
        size = 0 if size == NA else size
        label = next(
            (code for code in (int(table["group_description"][row]), int(table["group"][row])) if code != NO_NAME),
            NO_NAME,
        )
        placed = placement.of_ranks(None if ranks is None else ranks.tolist(), size)
        found[key] = Series(TRACE, key[0], None if label == NO_NAME else trace.names[label], size, placed)
    return found[key]


_Kind = tuple[str, str, int]
"""Tool, operation, number of ranks."""


def _of_tools(trace: Trace, placement: Placement, choices: Choices) -> tuple[list[Series], int]:
    """A series per tool, operation, number of ranks and run; rows left out for want of a warm-up."""
    by_run: dict[_Kind, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    rows, cold = _warm(trace.rows("measurements"))
    for row in rows:
        by_run[row["tool"], row["op"], row["group_size"]][_run(row)].append(row)
    found = []
    for (tool, op, size), runs in sorted(by_run.items()):
        names = _names(trace, list(runs.values())) if len(runs) > 1 else [None]
        for name, own in sorted(zip(names, runs.values(), strict=True), key=lambda pair: pair[0] or ""):
            series = Series(tool, op, None, size, placement.of_size(size), own[0]["source"], name)
            series.logged = tool == NCCL_TESTS and any(calls_logged(trace, row["source"]) for row in own)
            for row in _transfers(series, own):
                source = row["source"]
                choice = choices.of(op, row["bytes"], size, source) or _by_environment(trace, source, op)
                series.add(row["bytes"], row["dur"], row["count"] or 1, row["variant"], row["wrong"], choice)
            found.append(series)
    return found, cold


def calls_logged(trace: Trace, source: int | None) -> int:
    """Calls that NCCL wrote to this file."""
    return 0 if source is None else int(trace.sources[source].facts.get("calls_logged", 0))


def _by_environment(trace: Trace, source: int | None, op: str) -> Choice | None:
    """The one algorithm and protocol that a run's variables leave NCCL for an operation."""
    seen = dict(trace.sources[source].facts.get("nccl_environment", ())) if source is not None else {}
    algorithm = only(seen.get("NCCL_ALGO"), ALGORITHMS, op)
    protocol = only(seen.get("NCCL_PROTO"), PROTOCOLS, op)
    return Choice(logged_name(algorithm), protocol.lower()) if algorithm and protocol else None


def _run(row: Row) -> str:
    return row["communicator"] or f"{row['source']}"


def _warm(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Without what was timed from the first call on (connections are made then), where the same was also timed
    after a warm-up; and how many those are."""
    warmed = {(row["tool"], row["op"], row["group_size"], row["bytes"]) for row in rows if row["warmup"]}
    kept = [
        row
        for row in rows
        if row["warmup"] != 0 or (row["tool"], row["op"], row["group_size"], row["bytes"]) not in warmed
    ]
    return kept, len(rows) - len(kept)


def _names(trace: Trace, runs: Sequence[Sequence[Row]]) -> list[str | None]:
    """What distinguishes the runs' files: their names, else their folders, else a number."""
    paths = [Path(trace.sources[own[0]["source"]].path) if own[0]["source"] is not None else None for own in runs]
    for part in ("stem", "parent"):
        names = [None if path is None else path.stem if part == "stem" else path.parent.name for path in paths]
        several = part == "stem" and any(len({row["source"] for row in own}) > 1 for own in runs)
        if not several and None not in names and len(set(names)) == len(names):
            return list(names)
    return [f"run {number}" for number in range(1, len(runs) + 1)]


def _transfers(series: Series, rows: Sequence[Row]) -> list[Row]:
    """Of operations that every rank timed, the shortest time: the transfer. Where too few operations of a size were
    timed by all, all its rows as they are, waiting included."""
    if any(row["seq"] is None for row in rows):
        return list(rows)
    of: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        of[row["bytes"]][row["seq"]].append(row)
    found: list[Row] = []
    for nbytes, operations in of.items():
        whole = [own for own in operations.values() if len({row["rank"] for row in own}) == series.group_size]
        if len(whole) < LEAST_WHOLE:
            series.waiting.add(nbytes)
            found += [row for own in operations.values() for row in own]
        else:
            found += [min(own, key=lambda row: row["dur"]) for own in whole]
    return found
