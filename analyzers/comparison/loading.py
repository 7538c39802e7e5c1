"""What the user names as a run: a trace, the JSON of a report, or a number in the run store."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from typing import cast

from gpuscope import when_used
from gpuscope.analyzers.comparison.compare import Side
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.errors import AnalysisError, UsageError
from gpuscope.progress import Reading as Progress
from gpuscope.progress import reading as progress_bar
from gpuscope.report.json_report import dumps
from gpuscope.report.read_report import read_report
from gpuscope.schema.document import Report
from gpuscope.sources.opening import PathLike
from gpuscope.when_used import dataclass

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
