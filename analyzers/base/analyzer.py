"""What an analyzer is, what it returns, and how the analyzers are found.

An analyzer is a module of this package with an `ANALYZER`. It reads traces and returns a `Result`; it
neither draws nor prints nor changes the trace. A new analysis is one file and one test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np

from gpuscope.analyzers.base.lanes import DECLARED, LaneSummary, LaneView, Section, Sections, bounds
from gpuscope.catalogue.suggestion import BY_CODE, CAUSES
from gpuscope.errors import GpuscopeError
from gpuscope.plugins import listed
from gpuscope.problems.problem import Problem, ProblemKind
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.intervals import Breakdown, Spans, measure_within
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Table, Times, blocks
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# What an analysis can't do without: said where it is missing, with how to record it.


@dataclass(frozen=True)
class Need:
    """Something that the trace must hold: by default, rows of the table `what`."""

    what: str
    how: str
    """How to record it."""
    present: Callable[[Trace], bool] | None = None
    """Whether the trace holds it, where that is not the rows of one table."""
    optional: bool = False
    """Whether a good recording may lack it: then this analysis does not apply to the run, and the user is not asked to
    record it."""

    def met(self, trace: Trace) -> bool:
        """Whether the trace holds it."""
        return self.present(trace) if self.present is not None else len(trace[self.what]) > 0


def any_of(*tables: str) -> Callable[[Trace], bool]:
    """For `Need.present`: whether at least one of the tables has rows."""
    return lambda trace: any(len(trace[table]) for table in tables)


def serves(trace: Trace) -> bool:
    """Whether these are steps of an inference server: any of them has a phase."""
    return bool((trace["steps"]["phase"] != NO_NAME).any())


OF_A_SERVER = Need("steps of a server", "servers name the ranges around their steps", serves, optional=True)
NO_SERVER = Need(
    "other steps than a server's", "a server needs each message at once", lambda trace: not serves(trace), optional=True
)
DEVICE_EVENTS = Need("device_events", "record the device's activity (ProfilerActivity.CUDA, nsys -t cuda)")


LaneKey = tuple[int, int]
"""(rank, device)."""


@dataclass(frozen=True)
class Attributed:
    """Time of one lane with one cause: ns in all and in each step, and the spans that show it best."""

    total: int
    per_step: Times
    evidence: tuple[Evidence, ...] = ()
    operations: int = 0
    """Copies or migrations behind it, exposed or not; 0 for causes that are no operations."""
    busy: int = 0
    """ns during which any of these ran."""


@dataclass
class Result:
    """What an analyzer found. `sections` are parts of the report; `causes` attribute time, per lane."""

    analyzer: str
    status: Literal["ok", "skipped", "failed"] = "ok"
    why: str = ""
    applicable: bool = True
    """False where it is skipped because the run has nothing that it analyses."""
    sections: Sections = field(default_factory=Sections)
    """Parts of the report, as `analyzers.base.sections` declares them."""
    causes: dict[LaneKey, dict[str, Attributed]] = field(default_factory=dict)
    findings: list[FindingEntry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    """Tables of a Trace that the analysis derived, for those that come after it."""
    assumed: tuple[str, ...] = ()
    """Causes that rest on assumed figures rather than on the trace: less confidence."""

    def problem(self, kind: ProblemKind, count: int, **facts: object) -> None:
        """Report something uncertain, as a source does to its builder."""
        problem = kind.of(count, **facts)
        if count:
            self.problems.append(problem)


@dataclass(frozen=True)
class Analyzer:
    """One analysis: its name, what it needs, and what it gives. Raises `ValueError` where that is not declared.

    A `FileAnalyzer` (below) sees one file's ranks with all their events; a `RunAnalyzer` (`analyzers.facts.run_facts`)
    sees all ranks of the run, of which only summaries and the tables that `Trace.reduced` keeps are left.
    """

    name: str
    run: Callable[..., Result]
    needs: tuple[Need, ...] = ()
    sections: tuple[Section[Any], ...] = ()
    """Parts of the report that it may give."""
    causes: tuple[str, ...] = ()
    """Causes that it may attribute time to."""

    def __post_init__(self) -> None:
        undeclared = [section.key for section in self.sections if section not in DECLARED]
        undeclared += set(self.causes) - BY_CODE.keys()
        if undeclared:
            raise ValueError(f"analyzer {self.name!r} gives {undeclared}, which no section or cause declares")

    def undeclared(self, result: Result) -> list[str]:
        """Sections and causes of a result that this analyzer does not declare."""
        causes = {cause for own in result.causes.values() for cause in own}
        return sorted({*result.sections} - {section.key for section in self.sections} | causes - {*self.causes})


@dataclass(frozen=True)
class FileAnalyzer(Analyzer):
    """An analysis of one file's ranks."""

    run: Callable[[Trace, Sequence[LaneView]], Result]
    cost: int = 0
    """How long it takes beside the others: of a large file, those with the highest begin first."""
    large: bool = False
    """Whether it needs so much memory that of a huge file no other such analysis may run at once."""


Entry = TypeVar("Entry")


def entries_of_devices(
    name: str, section: Section[list[Entry]], of_lane: Callable[[Trace, LaneView], Iterable[Entry]]
) -> Callable[[Trace, Sequence[LaneView]], Result]:
    """What runs an analysis that gives one section: the entries of every lane but training threads on a CPU."""

    def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
        result = Result(name)
        entries = [entry for view in lanes if view.lane.device != NA for entry in of_lane(trace, view)]
        if entries:
            result.sections[section] = entries
        return result

    return run


ROOMS = (
    "device_time",
    "host_time",
    "profile",
    "topology",
    "collectives",
    "compilation",
    "experts",
    "serving",
    "roles",
    "job_logs",
    "nccl",
    "pipelines",
    "slowdown",
    "hangs",
    "allocator",
)
"""Folders of this package that hold analyses; the others hold what those stand on, or what stands on them."""

Kind = TypeVar("Kind", bound=Analyzer)


@cache
def analyzers_of(kind: type[Kind]) -> tuple[Kind, ...]:
    """The analyzers of this package of one kind, in order of name."""
    return tuple(one for one in _analyzers() if isinstance(one, kind))


@cache
def _analyzers() -> list[Analyzer]:
    found: list[Analyzer] = [one for room in ROOMS for one in listed(f"gpuscope.analyzers.{room}", "ANALYZER")]
    return sorted(found, key=lambda analyzer: analyzer.name)


def run_one(analyzer: Analyzer, trace: Trace, *given: object) -> Result:
    """`analyzer.run(*given)`: skipped where `trace` lacks what it needs, failed where it breaks or gives what it does
    not declare; other analyses run on."""
    missing = [need for need in analyzer.needs if not need.met(trace)]
    if missing:
        why = "; ".join(f"no {need.what.replace('_', ' ')}: {need.how}" for need in missing)
        return Result(analyzer.name, "skipped", why, applicable=not any(need.optional for need in missing))
    try:
        result = analyzer.run(*given)
    except GpuscopeError:
        raise
    except Exception as error:  # a bug in one analysis hides no other; it is shown and exits with 4
        return broken(analyzer.name, error)
    if undeclared := analyzer.undeclared(result):
        return Result(analyzer.name, "failed", f"it gives {', '.join(undeclared)}, which it does not declare")
    return result


def broken(name: str, error: Exception) -> Result:
    """The result of an analysis that raised `error`, whose traceback goes to the log (`gpuscope --debug`)."""
    import logging

    logging.getLogger(__name__).debug("the analysis %s failed", name, exc_info=error)
    return Result(name, "failed", f"{type(error).__name__}: {error}")


def attribute(spans: Spans, view: LaneView | LaneSummary, evidence: Sequence[Evidence] = ()) -> Attributed:
    """Measure spans over a lane's window and its steps."""
    return Attributed(spans.total, measure_within(spans, *bounds(view.steps)), tuple(evidence))


EVIDENCE = 5
"""Places that a finding shows."""


def longest(spans: Spans, count: int = EVIDENCE) -> Times:
    """Indices of the longest spans, the longest first; of equal ones the first."""
    start, end = spans.start, spans.end
    pieces = [block.start + _longest(start[block] - end[block], count) for block in blocks(0, len(start))]
    candidates = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
    return candidates[_longest(start[candidates] - end[candidates], count)]


def _longest(missing: Times, count: int) -> Times:
    """Indices of the lowest of these, the lowest first; of equal ones the first."""
    if len(missing) <= count:
        return np.argsort(missing, kind="stable")
    candidates = np.flatnonzero(missing <= np.partition(missing, count - 1)[count - 1])
    return candidates[np.argsort(missing[candidates], kind="stable")[:count]]


def attributed(results: Iterable[Result]) -> dict[LaneKey, dict[str, Attributed]]:
    """What several analyses attributed to causes, per lane."""
    found: dict[LaneKey, dict[str, Attributed]] = defaultdict(dict)
    for result in results:
        for key, causes in result.causes.items():
            found[key].update(causes)
    return found


def only_present(causes: Mapping[str, Attributed]) -> dict[str, Attributed]:
    """Without the causes that took no time."""
    return {cause: found for cause, found in causes.items() if found.total}


# Whether what is reported of a lane adds up (docs/definitions.md): a report of 103 % must not be shown.
#
# Per lane and per step: the breakdown's parts sum to the window, the steps tile it, and the causes of each part sum to
# that part, so all causes to window − compute. Allocator time is idle in the breakdown though memory by class.

NAME = "self_check"
PARTS: Mapping[str, str] = {cause.code: cause.part for cause in CAUSES}
"""The part of the breakdown that each cause is a share of."""
SHOWN = 3
"""Breaches that the message spells out."""


def self_check(
    lanes: Sequence[LaneSummary], causes: Mapping[LaneKey, Mapping[str, Attributed]], unsettled: Collection[str] = ()
) -> tuple[Result, set[LaneKey]]:
    """As an analysis of its own: failed, with lanes and numbers, where something does not add up; and those lanes.

    `unsettled` are causes whose analysis was skipped or failed: parts that they belong to are not compared.
    """
    skipped = {PARTS[cause] for cause in unsettled}
    found = {lane.key: [*breaches(lane, causes.get(lane.key, {}), skipped)] for lane in lanes}
    said = [f"{_lane(key)}: {what}" for key, own in found.items() for what in own]
    if not said:
        return Result(NAME), set()
    more = f"; and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return Result(NAME, "failed", "; ".join(said[:SHOWN]) + more), {key for key, own in found.items() if own}


def breaches(lane: LaneSummary, causes: Mapping[str, Attributed], skipped: Collection[str] = ()) -> Iterator[str]:
    """What of a lane does not add up, with the numbers; parts named in `skipped` are not compared with their causes."""
    yield from _of_steps(lane)
    yield from _of_window("the window", lane.breakdown, {cause: one.total for cause, one in causes.items()}, skipped)
    for place, (step, breakdown) in enumerate(zip(lane.steps, lane.step_breakdowns, strict=True)):
        name = "the time before the first step" if step.step == NA else f"step {step.step}"
        if breakdown.window != step.end - step.start:
            yield f"{name} lasts {step.end - step.start:,} ns, its breakdown is of {breakdown.window:,} ns"
        own = {cause: int(one.per_step[place]) for cause, one in causes.items()}
        yield from _of_window(name, breakdown, own, skipped)


def breaches_without_causes(lane: LaneSummary) -> Iterator[str]:
    """What of a lane does not add up, whatever its causes are."""
    return breaches(lane, {}, frozenset(PARTS.values()))


def _of_window(name: str, breakdown: Breakdown, causes: Mapping[str, int], skipped: Collection[str]) -> Iterator[str]:
    parts = breakdown.parts
    if sum(parts.values()) != breakdown.window or min(parts.values()) < 0:
        yield f"the breakdown of {name} ({_listed(parts)}) does not sum to its {breakdown.window:,} ns"
    for part in dict.fromkeys(PARTS.values()):
        length, own = parts[part], {cause: ns for cause, ns in causes.items() if PARTS[cause] == part}
        adds_up = sum(own.values()) == length and min(own.values(), default=0) >= 0
        if part not in skipped and not adds_up:
            yield f"the causes of {part} in {name} sum to {sum(own.values()):,} of {length:,} ns ({_listed(own)})"


def _of_steps(lane: LaneSummary) -> Iterator[str]:
    if not lane.steps:
        return
    bounds = [lane.window[0], *(bound for step in lane.steps for bound in (step.start, step.end)), lane.window[1]]
    gaps = [(end, start) for end, start in pairwise(bounds)][::2]
    for end, start in gaps:
        if end != start:
            yield f"steps do not tile the window: from {end:,} to {start:,} ns"
    for step in lane.steps:
        if step.end < step.start:
            yield f"step {step.step} ends {step.start - step.end:,} ns before it starts"


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {ns:,}" for name, ns in values.items()) or "none"


def _lane(key: LaneKey) -> str:
    rank, device = key
    return f"rank {rank}" if device == NA else f"rank {rank}, device {device}"
