"""What trying changes costs beside reading the trace, and how soon a what-if answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from rich.table import Table

from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.frame.changes import BucketSize, CapturedGraphs, Change, LinkSpeed, ReplacedRank, WireBytes
from gpuscope.analyzers.run.runner import analyze
from gpuscope.sources.opening import inputs, read_file
from gpuscope.sources.source import ReadOptions

ASKED: Sequence[Change] = (WireBytes(0.5), LinkSpeed(2.0), BucketSize(25 << 20), ReplacedRank(0), CapturedGraphs())


@dataclass(frozen=True)
class Cost:
    """Processor seconds."""

    run: str
    nodes: int
    reading: float
    analysing: float
    """Reading included, without advice."""
    tries: int
    trying: float
    answer: float
    """The slowest of `ASKED`, asked for the second time."""


def cost(path: Path, name: str) -> Cost:
    """Raises what `gpuscope.analyze` does."""
    reading, _ = _timed(lambda: [read_file(item, ReadOptions()) for item in inputs([path])])
    analysing, analysis = _timed(lambda: analyze(path, advice=False, replay=True))
    replayer = analysis.replayer
    asked: list[object] = []

    def counted(ask: Callable[[Sequence[Change]], Any]) -> Callable[[Sequence[Change]], Any]:
        def asking(changes: Sequence[Change]) -> Any:
            asked.append(changes)
            return ask(changes)

        return asking

    assert replayer is not None
    predict, estimate = counted(replayer.predict), counted(replayer.estimate)
    trying, _ = _timed(lambda: advise(analysis.report, predict, estimate=estimate))
    answer = max(_timed(lambda own=change: replayer.predict(own))[0] for change in ASKED for _ in range(2))
    return Cost(name, replayer.nodes, reading, analysing, len(asked), trying, answer)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    before = process_time()
    done = work()
    return process_time() - before, done


def cost_table(costs: Sequence[Cost]) -> Table:
    """Run by run, with the ratio of trying to reading."""
    table = Table("run", "nodes", "reading s", "analysing s", "tries", "trying s", "of reading", "a what-if s")
    for one in costs:
        table.add_row(
            one.run, f"{one.nodes:,}", f"{one.reading:.2f}", f"{one.analysing:.2f}", str(one.tries),
            f"{one.trying:.2f}", f"{one.trying / one.reading:.0%}" if one.reading else "", f"{one.answer:.2f}",
        )  # fmt: skip
    return table
