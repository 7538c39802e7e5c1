"""The analyses of one large file, in two threads: nearly all of their time is numpy's and the native core's, which run
at once. More would mostly wait for the interpreter, and each needs memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpuscope.analyzers.collectives.activity import IDLE
from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result, analyzers_of, run_one
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.phases import name_phases
from gpuscope.trace.trace import Trace

LARGE = 1 << 18
"""Events from which threads pay for waiting for each other."""
_FIRST = ("idle", "activity", "compute", "operators")
"""Those that take longest come first, so that none ends alone; the two that need most memory not at once."""


def results_of(trace: Trace, lanes: Sequence[LaneView], alone: bool) -> list[Result]:
    """The results of all analyses of a file, in order of their names; `alone` says that no other file is being read."""
    analyzers = analyzers_of(FileAnalyzer)

    def result(analyzer: FileAnalyzer) -> Result:
        return run_one(analyzer, trace, trace, lanes)

    events = len(trace["host_events"]) + len(trace["device_events"])
    if not alone or events < LARGE or os.cpu_count() == 1:
        return [result(analyzer) for analyzer in analyzers]
    # What they add to the names comes before them all: codes don't depend on which thread is quicker.
    name_phases(trace.names)
    trace.names.code(IDLE)
    rank = {name: place for place, name in enumerate(_FIRST)}
    left = deque(sorted(analyzers, key=lambda analyzer: rank.get(analyzer.name, len(rank))))
    found: dict[str, Result] = {}

    def work() -> None:
        while True:
            try:
                analyzer = left.popleft()
            except IndexError:  # none is left
                return
            found[analyzer.name] = result(analyzer)

    with ThreadPoolExecutor(1, "gpuscope-analyze") as pool:
        other = pool.submit(work)
        work()  # here too, where freed memory is at hand
        other.result()
    return [found[analyzer.name] for analyzer in analyzers]
