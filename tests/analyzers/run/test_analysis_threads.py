"""A large file's analyses run in two threads: the same results, in the same order, with the same names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuscope.analyzers.base import analyzer as base
from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result, analyzers_of
from gpuscope.analyzers.base.lanes import LaneView, views
from gpuscope.analyzers.run import file_part
from gpuscope.errors import UsageError
from gpuscope.sources.opening import open_trace
from gpuscope.trace.trace import Trace

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "ddp_slow_rank" / "rank1.json.gz"


def found(alone: bool) -> tuple[list[Result], list[str]]:
    trace = open_trace(SAMPLE)
    results, beside = file_part.results_of(trace, views(trace), alone, lambda: "beside")
    assert beside == "beside"
    return results, trace.names.names


def test_two_threads_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    one, names = found(alone=False)
    monkeypatch.setattr(file_part, "LARGE", 0)
    two, names_of_two = found(alone=True)
    assert [result.analyzer for result in two] == [analyzer.name for analyzer in analyzers_of(FileAnalyzer)]
    assert [vars(result.sections) for result in two] == [vars(result.sections) for result in one]
    for own, other in zip(two, one, strict=True):
        assert own.tables.keys() == other.tables.keys()
        for name, table in own.tables.items():
            expected = other.tables[name]
            for column in table.schema.columns:
                pairs = ((table, names_of_two), (expected, names))
                shown = [
                    [pool[value] if value >= 0 else "" for value in source[column.name].tolist()]
                    if column.dtype == "name"
                    else source[column.name].tolist()
                    for source, pool in pairs
                ]
                assert shown[0] == shown[1], (name, column.name)


def test_an_error_of_the_user_is_raised_from_either_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Result:
        raise UsageError("refused")

    monkeypatch.setattr(file_part, "LARGE", 0)
    monkeypatch.setattr(file_part, "run_one", refuse)
    trace = open_trace(SAMPLE)
    with pytest.raises(UsageError, match="refused"):
        file_part.results_of(trace, views(trace), True, lambda: None)


def test_small_traces_and_runs_of_many_files_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_part, "_Left", None)  # what threads take analyses from
    assert len(found(alone=True)[0]) == len(base.analyzers_of(FileAnalyzer))
    monkeypatch.setattr(file_part, "LARGE", 0)
    assert len(found(alone=False)[0]) == len(base.analyzers_of(FileAnalyzer))


def test_of_a_huge_file_one_of_those_that_need_most_memory_runs_at_a_time() -> None:
    declared = {"idle": True, "compute": True, "kernels": False}
    left = file_part._Left([FileAnalyzer(name, _nothing, large=large) for name, large in declared.items()], True)
    first, second = left.take(), left.take()
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("idle", "kernels")
    assert left.take() is None  # the thread that runs `idle` takes the other large one itself
    left.done(second)
    assert left.take() is None
    left.done(first)
    last = left.take()
    assert last is not None
    assert last.name == "compute"
    assert left.take() is None


def _nothing(_: Trace, __: Sequence[LaneView]) -> Result:
    return Result("")
