"""`gpuscope.diff`: two runs in, their comparison out."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.analyzers.comparison.compare import compare
from gpuscope.analyzers.comparison.judging import DEFAULT_THRESHOLD
from gpuscope.analyzers.comparison.loading import Reading, Run, load
from gpuscope.errors import UsageError
from gpuscope.plugins import followed
from gpuscope.report.section_tables import SectionTables, table
from gpuscope.report.terminal.diff_text import verdict_line
from gpuscope.schema import diff_document
from gpuscope.schema.diff_document import Diff, Outcome
from gpuscope.sources.opening import PathLike
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    import pandas as pd

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
