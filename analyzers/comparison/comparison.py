"""`gpuscope.diff`: two runs in, their comparison out."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from gpuscope import when_used
from gpuscope.analyzers.comparison.compare import DEFAULT_THRESHOLD, Side, compare
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.errors import AnalysisError, UsageError
from gpuscope.plugins import followed
from gpuscope.progress import Reading as Progress
from gpuscope.progress import reading as progress_bar
from gpuscope.report.read_report import dumps, read_report
from gpuscope.report.section_tables import SectionTables, table
from gpuscope.report.terminal.diff_text import verdict_line
from gpuscope.schema import diff_document
from gpuscope.schema.diff_document import CheckCase, Diff, Outcome
from gpuscope.schema.document import Report
from gpuscope.sources.opening import PathLike
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    import pandas as pd


# What the user names as a run: a trace, the JSON of a report, or a number in the run store.

Run = PathLike | int | Analysis
"""What can be named as a run: a trace (a file, a folder of ranks or a glob), a report's JSON, a number in the run
store (as an int or as text), or what `gpuscope.analyze` returned."""

_NUMBER = when_used.pattern(r"#?(\d+)")
_NEEDED = (
    "trace",
    "verdict",
    "ranks",
    "steps",
    "steps_basis",
    "collectives",
    "kernels",
    "findings",
    "suggestions",
)


@dataclass(frozen=True)
class Reading:
    """How traces are read, and where the run store is."""

    ranks: Collection[int] | None = None
    steps: tuple[int, int] | None = None
    partial: bool = False
    nsys: str | None = None
    store: Path | None = None
    workers: int = 1
    """Processes to read large runs with; see `gpuscope.analyze`."""
    progress: bool = False
    """Whether to draw a bar on stderr, where that is a terminal."""

    @property
    def selects(self) -> bool:
        """Whether only a part of the trace is asked for, which a finished report can't give."""
        return self.ranks is not None or self.steps is not None


def load(run: Run, reading: Reading, advice: bool = True) -> Side:
    """The report of a run named in any of these ways; a file called `12` comes before run 12 of the store.
    Without `advice` a trace's has no suggestions.

    Raises `InputError` where there is no such thing, `UsageError` where ranks or steps are asked of a finished report
    or the store has no such run, `AnalysisError` where an analysis of the run failed.
    """
    found = finished(run, reading)
    if found is not None:
        return _checked(found, reading)
    named = os.fspath(cast(PathLike, run))
    return Side(_plain(_analysed(named, reading, advice), named), named)


def finished(run: Run, reading: Reading) -> Side | None:
    """The report of a run of which one is at hand; None for a trace. Raises as `load`."""
    if isinstance(run, Analysis):
        return Side(_plain(run, _name(run)), _name(run))
    if isinstance(run, int):
        return _stored(run, reading)
    named = os.fspath(run)
    number = _NUMBER.fullmatch(named)
    if number and not os.path.exists(named):
        return _stored(int(number[1]), reading)
    report = read_report(Path(named), _NEEDED)
    return None if report is None else Side(report, named)


def refuse_same(one: str, other: str) -> None:
    """Raise `UsageError` where both name the very same run, by its number or its path: their comparison says nothing,
    and a check against itself would always pass."""
    numbers = [None if os.path.exists(named) else _NUMBER.fullmatch(named) for named in (one, other)]
    if numbers[0] is not None and numbers[1] is not None:
        same = int(numbers[0][1]) == int(numbers[1][1])
        named = f"run {int(numbers[0][1])}"
    else:
        same = os.path.exists(one) and os.path.realpath(one) == os.path.realpath(other)
        named = one
    if same:
        raise UsageError(
            f"{named} would be compared with itself: both are the same run",
            hint="name two runs; `gpuscope runs` lists those analysed before",
        )


def _stored(run: int, reading: Reading) -> Side:
    from gpuscope.store.location import located
    from gpuscope.store.store import opened

    with opened(located(reading.store)) as store:
        return Side(store.report(run), f"run {run}", run)


def _checked(side: Side, reading: Reading) -> Side:
    if reading.selects:
        raise UsageError(
            f"{side.name} is a finished report: --ranks and --steps can't apply to it", hint="name the trace instead"
        )
    return side


def _analysed(named: str, reading: Reading, advice: bool) -> Analysis:
    from gpuscope.analyzers.run.runner import Options, run
    from gpuscope.commands.options import cache_wanted
    from gpuscope.sources.opening import inputs, total_size
    from gpuscope.sources.source import ReadOptions

    items = inputs([named], reading.ranks)
    size, files = total_size(items), len(items)
    bar = progress_bar(size, "reading", files=files) if reading.progress else nullcontext(Progress(size, "", files))
    with bar as progress:
        read = ReadOptions(reading.partial, reading.nsys, progress, cache=cache_wanted(), status=progress.say)
        options = Options(reading.ranks, reading.steps, reading.workers, read, advice)
        return run(items, options, begun=progress.file)


def _plain(analysis: Analysis, named: str) -> Report:
    """Its report as a report file would be: plain numbers, and null for what JSON has no word for."""
    if analysis.failed:
        raise AnalysisError(f"{named}: an analysis failed: {analysis.failed[0]}")
    return cast(Report, json.loads(dumps(analysis.report)))


def _name(analysis: Analysis) -> str:
    """The file that was analysed, or the folder that holds all of them."""
    paths = [source["path"] for source in analysis.report["trace"]["sources"]]
    try:
        return os.path.commonpath(paths) or "."
    except ValueError:  # no file at all, or relative and absolute paths side by side
        return paths[0] if paths else "the analysis"


AUTO = "auto"
"""As a suggestion: the one that the settings of both run folders show to be followed."""
SECTIONS: dict[str, type] = {
    "breakdown": diff_document.PartChange,
    "causes": diff_document.CauseChange,
    "collectives": diff_document.CollectiveChange,
    "kernels": diff_document.KernelChange,
    "operators": diff_document.OperatorChange,
    "suggestions": diff_document.Proof,
    "checks": diff_document.CheckCase,
}
"""Sections of the document that are tables, and what a row of each holds. `checks` is only in what `check` returns."""


class ChangeTables:
    """The tables of a comparison by name: of `Comparison` and of `Comparison.tables` alike."""

    breakdown: pd.DataFrame
    causes: pd.DataFrame
    collectives: pd.DataFrame
    kernels: pd.DataFrame
    operators: pd.DataFrame
    suggestions: pd.DataFrame
    checks: pd.DataFrame


class ComparisonTables(SectionTables, ChangeTables):
    """The sections of a comparison that are lists, as DataFrames: `tables.causes` or `tables["causes"]`."""


@dataclass(frozen=True, repr=False)
class Comparison(ChangeTables):
    """What `gpuscope.diff` found; every table of `tables` is an attribute too (`comparison.causes`)."""

    document: Diff
    """The document of `gpuscope diff --json` as a dict: every key is in docs/history.md, times are int ns."""

    @property
    def result(self) -> Outcome:
        """`improvement`, `regression` or `neutral`: the step time's change against the threshold."""
        return self.document["verdict"]["result"]

    @property
    def conclusive(self) -> bool:
        """Whether the traces settle it. A neutral result is conclusive only where a larger change is ruled out."""
        return self.document["verdict"]["conclusive"]

    @property
    def change_frac(self) -> float | None:
        """The step time's change as a fraction of the step before, positive for slower; None without times."""
        return self.document["step"]["change_frac"]

    @property
    def tables(self) -> ComparisonTables:
        """The document's sections that are lists, as DataFrames by name, nested keys dotted (`after.dur_ns`); ns."""
        return ComparisonTables(self.document, SECTIONS)

    if not TYPE_CHECKING:  # to type checkers it would make every misspelt name one of ours

        def __getattr__(self, name: str) -> pd.DataFrame:
            if name.startswith("_") or name == "document":  # asked for by copying and pickling, before there is one
                raise AttributeError(name)
            return table(self, name, self.tables)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.tables})

    def _repr_html_(self) -> str:
        """The verdict and what moved, for notebooks."""
        from gpuscope.report.html.html_report import render_comparison_cell

        return render_comparison_cell(self.document)

    def __repr__(self) -> str:
        return f"Comparison({verdict_line(self.document).lower()})"


def diff(
    before: Run,
    after: Run,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    suggestion: str | None = None,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    partial: bool = False,
    nsys: str | None = None,
    store: PathLike | None = None,
    workers: int = 1,
    progress: bool = False,
) -> Comparison:
    """Compare the step time of two runs, with its uncertainty, and say what moved.

    `before` and `after` are each a trace (a file, a folder of ranks or a glob), the JSON of a report, the number of a
    run in the run store, or an `Analysis`. `threshold` is a fraction of the step (0.01 is 1 %): smaller changes count
    as none. `suggestion` is the code of the suggestion of `before` that was followed, or `auto` where the settings of
    two run folders show it. `ranks`, `steps` (first and last,
    both included), `partial`, `nsys` and `workers` are those of `gpuscope.analyze`; `store` is the run store's file.
    `progress` draws a bar on stderr where that is a terminal.

    Raises `InputError` for what can't be read, `UsageError` for ranks or steps of a finished report, a run that the
    store has not, a negative threshold or a suggestion that `before` does not make, `AnalysisError` where an analysis
    failed.
    """
    check_fraction("threshold", threshold)
    reading = Reading(ranks, steps, partial, nsys, Path(store) if store is not None else None, workers, progress)
    sides = load(before, reading), load(after, reading, advice=False)  # what the run before suggests is compared
    if suggestion == AUTO:
        suggestion = followed(sides[0].report, sides[1].report)
    return Comparison(compare(*sides, threshold, suggestion))


def check_fraction(name: str, value: float) -> None:
    """Raise `UsageError` where `value` is not a fraction of the step."""
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{name}={value} is no fraction of the step", hint=f"write 5 % as {name}=0.05")


# `gpuscope.check`: what a run must hold against its baseline to pass.

Severity = Literal["low", "medium", "high"]
Status = Literal["passed", "failed", "skipped"]
_ORDER = ("low", "medium", "high")
DEFAULT_FAIL_ON = 0.05
"""Slower by more than that, beyond its uncertainty, fails."""


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What `gpuscope.check` found."""

    comparison: Comparison
    """The run against its baseline; its document holds the cases under `checks`, as `gpuscope check --json` does."""
    cases: list[CheckCase]
    """One per thing checked: its name, whether it `passed`, `failed` or was `skipped`, and why."""

    @property
    def failed(self) -> bool:
        """Whether a case failed: `gpuscope check` then exits with 1."""
        return any(case["status"] == "failed" for case in self.cases)

    @property
    def conclusive(self) -> bool:
        """Whether the traces settle every case: with --strict `gpuscope check` exits with 1 where they don't."""
        return not any(case["status"] == "skipped" for case in self.cases)

    def __repr__(self) -> str:
        said = [f"{case['name']} {case['status']}" for case in self.cases]
        return f"CheckResult({', '.join(said)})"


def check(
    run: Run,
    *,
    baseline: Run,
    fail_on: float = DEFAULT_FAIL_ON,
    fail_on_finding: Severity | None = None,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    partial: bool = False,
    nsys: str | None = None,
    store: PathLike | None = None,
    workers: int = 1,
    progress: bool = False,
) -> CheckResult:
    """Check a run against its baseline, for continuous integration.

    `run` and `baseline` are each a trace (a file, a folder of ranks or a glob), the JSON of a report, the number of a
    run in the run store, or an `Analysis`. The step time fails where it is slower by more than `fail_on` (a fraction:
    0.05 is 5 %) beyond its uncertainty, and is skipped where the traces can't rule that out. With `fail_on_finding` a
    finding of that severity or a higher one that the baseline has not fails too. The other arguments are those of
    `gpuscope.diff`.

    Raises `InputError` for what can't be read, `UsageError` for ranks or steps of a finished report, a run that the
    store has not, or a limit that is none, `AnalysisError` where an analysis failed. A failed check raises nothing.
    """
    check_fraction("fail_on", fail_on)
    if fail_on_finding is not None and fail_on_finding not in _ORDER:
        raise UsageError(f"fail_on_finding={fail_on_finding!r} is no severity", hint=f"one of {', '.join(_ORDER)}")
    reading = Reading(ranks, steps, partial, nsys, Path(store) if store is not None else None, workers, progress)
    before, after = load(baseline, reading), load(run, reading, advice=False)
    document = compare(before, after, fail_on)
    cases = [step_time(document)]
    if fail_on_finding is not None:
        cases.append(new_findings(before.report, after.report, fail_on_finding))
    document["checks"] = cases
    return CheckResult(Comparison(document), cases)


def step_time(diff: Diff) -> CheckCase:
    """Failed where the step time got worse by more than the threshold beyond its uncertainty; skipped where the
    traces can't rule that out."""
    high = diff["step"]["high_frac"]
    result, threshold = diff["verdict"]["result"], diff["verdict"]["threshold_frac"]
    ruled_out = high is not None and high <= threshold
    if result == "different_jobs":
        return _case("step time", "skipped", f"{verdict_line(diff)}; {diff['verdict']['why']}")
    status: Status = "failed" if result == "regression" else "passed" if ruled_out else "skipped"
    return _case("step time", status, f"{verdict_line(diff)}; {diff['verdict']['why']}")


def new_findings(baseline: Report, report: Report, severity: Severity) -> CheckCase:
    """Failed where a finding of that severity or a higher one was none of the baseline's at that severity."""
    grave = _ORDER[_ORDER.index(severity) :]
    known = {finding["code"] for finding in baseline["findings"] if finding["severity"] in grave}
    new = [finding for finding in report["findings"] if finding["severity"] in grave and finding["code"] not in known]
    said = "; ".join(f"{finding['code']} ({finding['severity']}): {finding['message']}" for finding in new)
    return _case("new findings", "failed" if new else "passed", said or f"none of severity {severity} or higher")


def _case(name: str, status: Status, message: str) -> CheckCase:
    return {"name": name, "status": status, "message": message}
