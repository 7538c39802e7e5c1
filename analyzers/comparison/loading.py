"""What the user names as a run: a trace, the JSON of a report, or a number in the run store."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gpuscope.analyzers.comparison.compare import Side
from gpuscope.errors import AnalysisError, UsageError
from gpuscope.report.json_report import dumps
from gpuscope.report.read_report import read_report
from gpuscope.report.schema.document import Report

_NUMBER = re.compile(r"#?(\d+)")
_NEEDED = ("trace", "verdict", "ranks", "steps", "collectives", "kernels", "findings", "suggestions")


@dataclass(frozen=True)
class Reading:
    """How traces are read, and where the run store is."""

    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    partial: bool = False
    nsys: str | None = None
    store: Path | None = None

    @property
    def selects(self) -> bool:
        """Whether only a part of the trace is asked for, which a finished report can't give."""
        return self.ranks is not None or self.steps is not None


def load(named: str, reading: Reading) -> Side:
    """The report of a trace, of a report file, or of a run of the store (`12` or `#12`; files come first).

    Raises `InputError` where there is no such thing, `UsageError` where ranks or steps are asked of a report.
    """
    number = _NUMBER.fullmatch(named)
    if number and not os.path.exists(named):
        return _checked(_stored(int(number[1]), reading), reading)
    report = read_report(Path(named), _NEEDED)
    if report is not None:
        return _checked(Side(report, named), reading)
    return Side(_analysed(named, reading), named)


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


def _analysed(named: str, reading: Reading) -> Report:
    from gpuscope.analyzers.run.runner import Options, run
    from gpuscope.progress import reading as progress_of
    from gpuscope.sources.opening import inputs, total_size
    from gpuscope.sources.source import ReadOptions

    items = inputs([named], reading.ranks)
    with progress_of(total_size(items), "reading", files=len(items)) as progress:
        read = ReadOptions(partial=reading.partial, nsys=reading.nsys, advance=progress, status=progress.say)
        options = Options(reading.ranks, reading.steps, os.cpu_count() or 1, read)
        analysis = run(items, options, begun=progress.file)
    if analysis.failed:
        raise AnalysisError(f"{named}: an analysis failed: {analysis.failed[0]}")
    # As a report file would be: plain numbers, and null for what JSON has no word for.
    return cast(Report, json.loads(dumps(analysis.report)))
