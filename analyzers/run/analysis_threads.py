"""The analyses of one large file, in two threads, one of which first makes what else is kept of it: nearly all of their
time is numpy's and the native core's, which run at once. More would mostly wait for the interpreter, and each needs
memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TypeVar

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result, analyzers_of, run_one
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.phases import name_phases
from gpuscope.analyzers.collectives.activity import IDLE
from gpuscope.native import release_memory
from gpuscope.trace.trace import Trace

LARGE = 1 << 18
"""Events from which threads pay for waiting for each other."""
HUGE = 1 << 23
"""Events from which two analyses that need much memory don't run at once: of fewer, both need a few megabytes more."""


Kept = TypeVar("Kept")


def results_of(
    trace: Trace, lanes: Sequence[LaneView], alone: bool, beside: Callable[[], Kept]
) -> tuple[list[Result], Kept]:
    """The results of all analyses of a file, in order of their names, and what `beside` returns, which needs none of
    them. `alone` says that no other file is being read."""
    analyzers = analyzers_of(FileAnalyzer)

    def result(analyzer: FileAnalyzer) -> Result:
        return run_one(analyzer, trace, trace, lanes)

    events = len(trace["host_events"]) + len(trace["device_events"])
    if not alone or events < LARGE or os.cpu_count() == 1:
        return [result(analyzer) for analyzer in analyzers], beside()
    from concurrent.futures import ThreadPoolExecutor

    # What they add to the names comes before them all: codes don't depend on which thread is quicker.
    name_phases(trace.names)
    trace.names.code(IDLE)
    # The large ones one after another, the others beside them, so that neither thread ends alone.
    left = _Left(sorted(analyzers, key=lambda analyzer: (not analyzer.large, -analyzer.cost)), events >= HUGE)
    found: dict[str, Result] = {}

    def work() -> None:
        while (analyzer := left.take()) is not None:
            try:
                found[analyzer.name] = result(analyzer)
            finally:
                left.done(analyzer)

    def other() -> Kept:
        kept = beside()
        release_memory()
        work()
        return kept

    with ThreadPoolExecutor(1, "gpuscope-analyze") as pool:
        running = pool.submit(other)
        work()  # here too, where freed memory is at hand
        kept = running.result()
    release_memory()
    return [found[analyzer.name] for analyzer in analyzers], kept


class _Left:
    """The analyses that are still to be run, for several threads to take from."""

    def __init__(self, analyzers: list[FileAnalyzer], large_alone: bool) -> None:
        self._analyzers, self._lock, self._large_alone = analyzers, Lock(), large_alone
        self._large_runs = False

    def take(self) -> FileAnalyzer | None:
        """The next one; None where none is left but what the thread that runs a large one will take itself."""
        with self._lock:
            for place, analyzer in enumerate(self._analyzers):
                if not (self._large_alone and analyzer.large and self._large_runs):
                    self._large_runs |= analyzer.large
                    return self._analyzers.pop(place)
            return None

    def done(self, analyzer: FileAnalyzer) -> None:
        """One that was taken has been run."""
        if analyzer.large:
            release_memory()
            self._large_runs = False
