"""Timed collectives of one kind over one group, from the trace itself and from what NCCL's tools measured.

What one file of nccl-tests holds, or one communicator of the Inspector or a profiler plugin, is a run of its own:
times of runs with different settings say something only side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import combinations, pairwise
from math import sqrt
from pathlib import Path

import numpy as np

from gpuscope.analyzers.facts.call_order import Placed, Placement
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.nccl.nccl_grammar import ALGORITHMS, PROTOCOLS, logged_name, only
from gpuscope.analyzers.what_if_changes import Refused
from gpuscope.collective_costs.bus_bandwidth import Choice, Generation, Place, busbw_factor
from gpuscope.collective_costs.message_cost import CostModel, fit
from gpuscope.hardware.link_rates import compute_capability, gpu_fabric
from gpuscope.schema.nccl_sections import CrossoverEntry
from gpuscope.trace.kinds import POINT_TO_POINT, exact_names, kernel_algorithm
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Times
from gpuscope.trace.trace import Row, Trace
from gpuscope.welch import median
from gpuscope.when_used import dataclass

# What NCCL's log says it chose, joined to the operations of a trace or of a measurement.
#
# By operation, size and, where the log has it with the choice, the communicator's number of ranks; of a measurement, by
# the file's own choices before those of others. Several choices for one operation and size join to none.


class Choices:
    """The rows of the table `choices`."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._found: dict[tuple[str, int], list[Row]] = defaultdict(list)
        self._sources: set[int] = set()
        for row in rows:
            if row["op"] is not None:
                self._found[row["op"], row["bytes"]].append(row)
                if row["source"] is not None:
                    self._sources.add(row["source"])

    def of(self, op: str, nbytes: int, group_size: int, source: int | None = None) -> Choice | None:
        """The one choice for `op` over an array of `nbytes` in a group of that size; None where unknown.

        Of what a file measured that logged choices too (`source`), its own are the only ones.
        """
        fitting = [row for row in self._found.get((op, nbytes), ()) if row["group_size"] in (None, group_size)]
        if source is not None and source in self._sources:
            fitting = [row for row in fitting if row["source"] == source]
        exact = [row for row in fitting if row["group_size"] == group_size] or fitting
        found = {Choice(row["algorithm"], row["protocol"], row["channels"]) for row in exact}
        if len(found) == 1:
            return next(iter(found))
        same = {(choice.algorithm, choice.protocol) for choice in found}
        return Choice(*next(iter(same))) if len(same) == 1 else None


# What a run records of NCCL: its choices, and where its communicators lie.

_GENERATIONS: tuple[tuple[int, Generation], ...] = ((100, "blackwell"), (90, "hopper"), (80, "ampere"), (0, "volta"))
"""By compute capability times ten, as NCCL's tuning distinguishes them."""


class RunChoices:
    """What NCCL chose in one run, and where groups of its ranks lie."""

    def __init__(self, facts: RunFacts) -> None:
        self._choices = Choices(facts.trace.rows("choices"))
        self._placement = facts.placement
        self._ranks = facts.trace.ranks
        self._nvlinks = any(host.nvlinks() for host in facts.hosts)

    def choice(self, op: str, nbytes: int, group_size: int) -> Choice | None:
        """What NCCL chose, where its log has it."""
        return self._choices.of(op, nbytes, group_size)

    def place(self, group_size: int) -> Place | Refused:
        """Where a group of that size lies: as the job if it is all of it, else as NCCL's log says of such groups."""
        whole = self._placement.of_ranks(self._ranks, len(self._ranks))
        placed = whole if group_size == len(self._ranks) else self._placement.of_size(group_size)
        placed = _known(placed, whole)
        if placed.hosts is None or group_size % placed.hosts:
            return Refused("the number of hosts of the ranks is not recorded: add a log of NCCL_DEBUG=INFO")
        model = placed.models[0] if placed.models else ""
        capability = compute_capability(model)
        if capability is None:
            return Refused("the GPU's model is not recorded, or NCCL has no figures for it")
        generation = next(name for least, name in _GENERATIONS if capability >= least)
        return Place(group_size, placed.hosts, self._nvlinks or gpu_fabric(model) is not None, generation)


def _known(placed: Placed, whole: Placed) -> Placed:
    """A part of a job on one host lies on that host, on the job's GPUs."""
    hosts = placed.hosts if placed.hosts is not None else 1 if whole.hosts == 1 else None
    return Placed(placed.size, hosts, placed.models or whole.models)


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


# Where the times themselves show that another choice is faster: no model is asked.
#
# Two things need no more than the times of one run. A message can't need longer than a larger one of the same operation
# does: where it did, what carried the larger one would have carried it too, in at most that time. And no message needs
# longer than its parts sent one after the other: where bus bandwidth drops at a size, what carried a smaller one would
# have taken that many times its time. Runs beside one another (files of nccl-tests, communicators of the Inspector) are
# compared size by size.
#
# Times spread. A difference counts if it exceeds three standard errors of what was timed often enough to have them, and
# otherwise what times of one and the same choice are out of order by in this run, at least `UNSURE`.

UNSURE = 0.1
"""Relative difference of two times that a few iterations of nccl-tests spread by."""
LEAST_GAIN = 0.02
"""Relative difference that is worth a setting, however well it is known."""
ENOUGH = 8
"""Timings of one size that have a standard error."""
ERRORS = 3.0
"""A difference is real from so many standard errors on: 1 % chance per pair, with dozens of pairs in a run."""


@dataclass(frozen=True)
class Point:
    """The typical time of one size, ns, with its relative standard error (None: timed too seldom) and NCCL's choice."""

    nbytes: int
    ns: float
    error: float | None
    choice: Choice | None


def points(series: Series) -> list[Point]:
    """By size; those whose times include waiting, or NCCL's logging, left out."""
    of: dict[int, list[int]] = defaultdict(list)
    for index, nbytes in enumerate(series.bytes):
        if (
            nbytes
            and series.dur[index] > 0
            and nbytes not in series.waiting
            and not (series.lower_bound or series.logged)
        ):
            of[nbytes].append(index)
    return [_point(series, nbytes, own) for nbytes, own in sorted(of.items())]


def _point(series: Series, nbytes: int, own: Sequence[int]) -> Point:
    times = sorted(series.dur[index] for index in own)
    typical = float(median(times))
    if len(times) < ENOUGH:
        return Point(nbytes, typical, None, series.chosen(own))
    spread = 1.4826 * median(abs(time - typical) for time in times)
    # The median of a normal sample has 1.25 times the mean's standard error.
    return Point(nbytes, typical, 1.25 * spread / sqrt(len(times)) / typical, series.chosen(own))


def crossovers(found: Sequence[Series]) -> list[CrossoverEntry]:
    """Within each series, then between series of different runs."""
    entries = [entry for series in found for entry in _within(series)]
    same: dict[tuple[str, str, int], list[Series]] = defaultdict(list)
    for series in found:
        if series.run is not None:
            same[series.tool, series.op, series.group_size].append(series)
    for runs in same.values():
        entries += _between(runs)
    return entries


def _within(series: Series) -> Iterator[CrossoverEntry]:
    own = points(series)
    if series.tool == TRACE:
        # Of a job's own transfers, compute beside them may be why: only a known choice on both sides speaks.
        own = [point for point in own if point.choice is not None and point.error is not None]
    noise = _noise(own)
    for place, small in enumerate(own):
        later = [one for one in own[place + 1 :] if _may_differ(small, one)]
        fastest = min(later, key=lambda one: one.ns, default=None)
        if fastest is not None and small.ns * (1 - _margin(small, fastest, noise)) > fastest.ns:
            yield _entry(series, "larger_is_faster", small, fastest, fastest.ns)
    for small, large in pairwise(own):
        parts = -(-large.nbytes // small.nbytes)
        bound = parts * small.ns
        if _may_differ(small, large) and large.ns * (1 - _margin(small, large, noise)) > bound:
            yield _entry(series, "bandwidth_drops", large, small, bound)


def _may_differ(one: Point, other: Point) -> bool:
    """Times of one and the same choice that are out of order are noise: no setting changes them."""
    return one.choice is None or other.choice is None or _name(one.choice) != _name(other.choice)


def _name(choice: Choice) -> tuple[str, str]:
    return choice.algorithm, choice.protocol


def _noise(own: Sequence[Point]) -> float:
    """By how much times are out of order where nothing but chance can be why: sizes of the same choice."""
    disorder = [1 - large.ns / small.ns for small, large in combinations(own, 2) if not _may_differ(small, large)]
    return max([UNSURE, *disorder])


def _margin(one: Point, other: Point, noise: float) -> float:
    if one.error is None or other.error is None:
        return noise
    return max(LEAST_GAIN, ERRORS * sqrt(one.error**2 + other.error**2))


def _between(runs: Sequence[Series]) -> Iterator[CrossoverEntry]:
    """For each run and size, the run that is fastest there."""
    by_run = [(series, {point.nbytes: point for point in points(series)}) for series in runs]
    noise = max((_noise(list(own.values())) for _, own in by_run), default=UNSURE)
    for series, own in by_run:
        for nbytes, point in own.items():
            others = [(other, at[nbytes]) for other, at in by_run if other is not series and nbytes in at]
            best = min(others, key=lambda pair: pair[1].ns, default=None)
            if best is not None and point.ns * (1 - _margin(point, best[1], noise)) > best[1].ns:
                yield {**_entry(series, "other_run", point, best[1], best[1].ns), "faster_run": best[0].run}


def _entry(series: Series, kind: str, slow: Point, fast: Point, bound: float) -> CrossoverEntry:
    now, then = slow.choice, fast.choice
    return {
        "kind": kind,
        "tool": series.tool,
        "run": series.run,
        "faster_run": None,
        "op": series.op,
        "group": series.group,
        "group_size": series.group_size,
        "bytes": slow.nbytes,
        "dur_ns": round(slow.ns),
        "at_most_ns": round(bound),
        "like_bytes": fast.nbytes,
        "algorithm": now.algorithm if now else None,
        "protocol": (now.protocol or None) if now else None,
        "faster_algorithm": then.algorithm if then else None,
        "faster_protocol": (then.protocol or None) if then else None,
    }
