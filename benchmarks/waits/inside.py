"""What no whole process shows: predictions once a run is read, beside reading it, in one process of their own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpuscope.analyzers.run import reporting
from gpuscope.analyzers.run.file_part import Options
from gpuscope.analyzers.run.runner import run
from gpuscope.analyzers.what_if_changes import Predicted, ReplacedRank
from gpuscope.sources.opening import Input, inputs, read_file
from gpuscope.sources.source import ReadOptions


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def what_if(items: list[Input], rounds: int) -> Iterator[float]:
    """One change predicted, a round after the other."""
    replayer = run(items, Options(advice=False)).replayer
    assert replayer is not None
    for _ in range(rounds):
        took, told = _timed(lambda: replayer.predict(ReplacedRank(0)))
        assert isinstance(told, Predicted), told
        yield took


def tries(items: list[Input], rounds: int) -> Iterator[float]:
    """All changes that advice tries on a run."""
    advise, took = reporting.advise, 0.0

    def timed(*words: Any, **named: Any) -> Any:
        nonlocal took
        took, made = _timed(lambda: advise(*words, **named))
        return made

    with patch.object(reporting, "advise", timed):
        for _ in range(rounds):
            run(items, Options())
            yield took


if __name__ == "__main__":
    _, name, path, rounds = sys.argv
    read = inputs([Path(path)])
    own = {"what-if": what_if, "tries": tries}[name](list(read), int(rounds))
    print(json.dumps([(one, _timed(lambda: [read_file(item, ReadOptions()) for item in read])[0]) for one in own]))
