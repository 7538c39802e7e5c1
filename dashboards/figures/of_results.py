"""The dashboard's figures for notebooks: `gpuscope.figures`. Each takes an `Analysis` or a `Comparison`.

Every figure is a plotly `Figure`; needs the extra `dashboard`. `dark` is for notebooks with a dark theme. A figure
of a section that the run has not raises `UsageError` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from gpuscope.analyzers.comparison.comparison import Comparison
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.dashboards.figures import (
    bandwidth_figure,
    breakdown_figure,
    comparison_figure,
    gains_figure,
    heatmap_figure,
    kernels_figure,
    memory_figure,
    pipeline_figure,
    steps_figure,
    traffic_figure,
    waiting_figure,
)
from gpuscope.errors import UsageError
from gpuscope.report.section_tables import did_you_mean

__all__ = [
    "bandwidth",
    "breakdown",
    "changed",
    "gains",
    "kernels",
    "memory",
    "pipeline",
    "rank_steps",
    "steps",
    "traffic",
    "waiting",
]
_ROW, _FRAME, _MOST = 34, 150, 900


if not TYPE_CHECKING:  # to type checkers it would make every misspelt name one of ours

    def __getattr__(name: str) -> Any:
        raise AttributeError(f"'gpuscope.figures' has no attribute {name!r}{did_you_mean(name, __all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)


def breakdown(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Where each rank's window goes: compute, exposed communication, exposed memory, idle by cause."""
    ranks = analysis.report["ranks"]
    _some(ranks, "no work of any rank was recorded")
    return _high(breakdown_figure.bars(ranks, dark), len(ranks))


def steps(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """The length of each step, a line per rank."""
    _some(analysis.report["steps"], "no steps were found")
    return steps_figure.series(analysis.report["steps"], dark)


def rank_steps(analysis: Analysis, *, measure: str = "step_ns", dark: bool = False) -> go.Figure:
    """Rank by step: `step_ns`, coloured by what is off the step's median, `wait_caused_ns` or `wait_suffered_ns`.

    Raises `UsageError` for another measure too.
    """
    rows = analysis.report["rank_steps"]
    _some(rows, "no collective is matched over the ranks")
    if measure not in ("step_ns", "wait_caused_ns", "wait_suffered_ns"):
        raise UsageError(f"no measure {measure!r}", hint="step_ns, wait_caused_ns or wait_suffered_ns")
    cells = {(row["rank"], row["step"]): int(row[measure]) for row in rows}  # type: ignore[literal-required]
    fig = heatmap_figure.heatmap(cells, measure.removesuffix("_ns").replace("_", " "), dark, measure == "step_ns")
    return _high(fig, len({rank for rank, _ in cells}))


def waiting(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Per operation and group: rank time spent waiting for the last rank, and transferring."""
    rows = analysis.report["collectives"]
    _some(rows, "no collectives were recorded")
    return _high(waiting_figure.bars(rows, dark), len(rows))


def kernels(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Device time by kind of kernel."""
    _some(analysis.report["kernels"], "no device events were recorded")
    return kernels_figure.categories(analysis.report["kernels"], dark)


def gains(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """The recorded step, and what each suggestion would make of it, with the 90 % range."""
    found = analysis.report["suggestions"]
    _some(found, analysis.report["advice"]["why"] or "no suggestions")
    drawn = [
        gains_figure.Step(
            one["action"], one["predicted"]["step_ns_after"], one["predicted"]["low_ns"], one["predicted"]["high_ns"]
        )
        for one in found
    ]
    return _high(gains_figure.steps(found[0]["predicted"]["step_ns_before"], drawn, dark), len(drawn) + 1)


def bandwidth(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Bus bandwidth against message size, with the fits and the links' peaks."""
    rows = analysis.report.get("bandwidth", [])
    _some(rows, "no sizes of collectives were recorded")
    return bandwidth_figure.against_size(rows, analysis.report.get("fits", []), dark)


def traffic(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Who sends how much to whom."""
    rows = analysis.report.get("traffic", [])
    _some(rows, "no messages between two ranks were recorded")
    return traffic_figure.matrix(rows, dark)


def memory(analysis: Analysis, *, entry: int = 0, dark: bool = False) -> go.Figure:
    """Allocated and reserved memory over time, of one of `analysis.report["memory"]`."""
    entries = analysis.report.get("memory", [])
    _some(entries, "no allocator snapshot or memory events were read")
    if not 0 <= entry < len(entries):
        raise UsageError(f"entry={entry}: there are {len(entries)}", hint="they count from 0")
    return memory_figure.over_time(entries[entry], dark)


def pipeline(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """The mean bubble of each pipeline stage by part."""
    section = analysis.report.get("pipeline")
    rows = section.get("rows", []) if section is not None else []
    _some(rows, "the run is no pipeline")
    return pipeline_figure.bubbles(rows, dark)


def changed(comparison: Comparison, *, dark: bool = False) -> go.Figure:
    """The breakdown of both runs of `gpuscope.diff`, per step (or window) and rank."""
    return comparison_figure.parts(comparison.document, dark)


def _some(rows: Iterable[object], why: str) -> None:
    if not list(rows):
        raise UsageError(f"nothing to draw: {why}")


def _high(fig: go.Figure, rows: int) -> go.Figure:
    """As high as its rows need."""
    fig.update_layout(height=min(_FRAME + _ROW * rows, _MOST))
    return fig
