"""What bundled and shared traces are analysed to, once per test process: many tests look at the same few runs."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import gpuscope
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.schema.document import Report
from gpuscope.trace.trace import Trace


@lru_cache(maxsize=32)
def analysis(path: Path) -> Analysis:
    """`gpuscope.analyze(path)`, shared: to be looked at and not to be changed."""
    return gpuscope.analyze(path)


def report(path: Path) -> Report:
    """A copy of its report, the caller's own."""
    return deepcopy(analysis(path).report)


def problems(trace: Trace) -> dict[str, int]:
    """How often each occurred, by code."""
    return {problem.code: problem.count for problem in trace.problems}
