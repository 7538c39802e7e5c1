"""What an analyzer is, what it returns, and how the analyzers are found.

An analyzer is a module of this package with an `ANALYZER`. It reads traces and returns a `Result`; it
neither draws nor prints nor changes the trace. A new analysis is one file and one test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from gpuscope.analyzers.frame.lanes import LaneSummary, LaneView
from gpuscope.errors import GpuscopeError
from gpuscope.plugins import listed
from gpuscope.report.schema.document import Evidence, FindingEntry, ProblemEntry
from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.intervals import Spans, measure_within
from gpuscope.trace.problems import Severity
from gpuscope.trace.trace import Trace

Lane = TypeVar("Lane")
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


@dataclass(frozen=True)
class Need:
    """A table an analyzer can't do without, and how to record it."""

    table: str
    how: str


@dataclass
class Result:
    """What an analyzer found. `sections` are parts of the report; `causes` attribute time, per lane."""

    analyzer: str
    status: Literal["ok", "skipped", "failed"] = "ok"
    why: str = ""
    sections: dict[str, Any] = field(default_factory=dict)
    """Parts of the report by their key (docs/report.md), as the report holds them."""
    causes: dict[LaneKey, dict[str, Attributed]] = field(default_factory=dict)
    findings: list[FindingEntry] = field(default_factory=list)
    problems: list[ProblemEntry] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    """Tables of a Trace that the analysis derived, for those that come after it."""
    assumed: tuple[str, ...] = ()
    """Causes that rest on assumed figures rather than on the trace: less confidence."""

    def problem(self, severity: Severity, code: str, count: int, message: str) -> None:
        """Tell of something uncertain, as a source tells its builder."""
        self.problems.append({"severity": severity, "code": code, "count": count, "message": message})


@dataclass(frozen=True)
class Analyzer(Generic[Lane]):
    """One analysis. A `FileAnalyzer` sees one file's ranks with all their events; a `RunAnalyzer` sees all
    ranks of the run, of which only the summaries and the tables that `Trace.reduced` keeps are left."""

    name: str
    run: Callable[[Trace, Sequence[Lane]], Result]
    needs: tuple[Need, ...] = ()

    def missing(self, trace: Trace) -> str:
        """What the trace lacks for this analysis and how to record it; empty if nothing."""
        return "; ".join(f"no {need.table}: {need.how}" for need in self.needs if not len(trace[need.table]))


class FileAnalyzer(Analyzer[LaneView]):
    """An analysis of one file's ranks."""


class RunAnalyzer(Analyzer[LaneSummary]):
    """An analysis of all ranks of a run together."""


ROOMS = ("device_time", "topology", "collectives", "nccl", "pipelines", "slowdown", "hangs", "allocator")
"""Folders of this package that hold analyses; the others hold what those stand on, or what stands on them."""

Kind = TypeVar("Kind", FileAnalyzer, RunAnalyzer)


@cache
def analyzers_of(kind: type[Kind]) -> tuple[Kind, ...]:
    """The analyzers of this package of one kind, in order of name."""
    found = (part for room in ROOMS for part in listed(f"gpuscope.analyzers.{room}", "ANALYZER"))
    return tuple(sorted((part for part in found if isinstance(part, kind)), key=lambda analyzer: analyzer.name))


def run_one(analyzer: Analyzer[Lane], trace: Trace, lanes: Sequence[Lane]) -> Result:
    """One analysis: skipped where it lacks something, failed where it breaks; never in another's way."""
    missing = analyzer.missing(trace)
    if missing:
        return Result(analyzer.name, "skipped", missing)
    try:
        return analyzer.run(trace, lanes)
    except GpuscopeError:
        raise
    except Exception as error:  # a bug in one analysis hides no other; it is shown and exits with 4
        return Result(analyzer.name, "failed", f"{type(error).__name__}: {error}")


def attribute(spans: Spans, view: LaneView | LaneSummary, evidence: Sequence[Evidence] = ()) -> Attributed:
    """Measure spans over a lane's window and its steps."""
    starts = np.array([step.start for step in view.steps], np.int64)
    ends = np.array([step.end for step in view.steps], np.int64)
    return Attributed(spans.total, measure_within(spans, starts, ends), tuple(evidence))


EVIDENCE = 5
"""Places that a finding shows."""


def longest(spans: Spans, count: int = EVIDENCE) -> Times:
    """Indices of the longest spans, the longest first."""
    return np.argsort(spans.start - spans.end, kind="stable")[:count]


def only_present(causes: Mapping[str, Attributed]) -> dict[str, Attributed]:
    """Without the causes that took no time."""
    return {cause: found for cause, found in causes.items() if found.total}
