"""The table of problems: one record per code, and a text that takes exactly the facts it is given."""

from __future__ import annotations

import sys

import pytest

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.problems.problem import TABLE, Problem, ProblemKind, kinds, merged
from gpuscope.trace.builder import TraceBuilder

ROWS_LOST = ProblemKind("rows_lost", "data_loss", "{file}: {lost:,} rows", about="Rows that were left out.")


def test_every_record_of_the_table_is_one_code() -> None:
    """Whatever its words: a record that says the same problem otherwise has the severity of its code."""
    found = kinds()
    records = [
        value
        for name, module in sys.modules.items()
        if name.startswith(f"{TABLE}.")
        for value in vars(module).values()
        if isinstance(value, ProblemKind)
    ]
    assert len(records) > len(found) > 0
    assert {(kind.code, kind.severity) for kind in records} == {(kind.code, kind.severity) for kind in found.values()}


def test_a_code_given_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules[f"{TABLE}.job"], "AGAIN", ProblemKind("truncated", "info", "again", "Again."), False
    )
    with pytest.raises(ValueError, match="truncated"):
        kinds.__wrapped__()


@pytest.mark.parametrize("facts", [{}, {"file": "a"}, {"file": "a", "lost": 1, "more": 2}])
def test_facts_that_the_text_does_not_take_are_refused_even_where_nothing_was_lost(facts: dict[str, object]) -> None:
    for told in (
        ROWS_LOST.of,
        lambda *a, **f: TraceBuilder().problem(ROWS_LOST, *a, **f),
        lambda *a, **f: Result("mine").problem(ROWS_LOST, *a, **f),
    ):
        with pytest.raises(ValueError, match=r"\['file', 'lost'\]"):
            told(0, **facts)


def test_a_problem_is_told_by_sources_and_analyses_alike() -> None:
    """Also a plug-in's own, which is in no table; nothing where its count is 0."""
    builder, result = TraceBuilder(), Result("mine")
    for told in (builder, result):
        told.problem(ROWS_LOST, 0, file="rank0.mine", lost=0)
        told.problem(ROWS_LOST, 2, file="rank0.mine", lost=1200)
        told.problem(ROWS_LOST.saying("{rows} without a time"), 3, rows="rows {of a plug-in}")
    expected = [
        Problem("data_loss", "rows_lost", 2, "rank0.mine: 1,200 rows"),
        Problem("data_loss", "rows_lost", 3, "rows {of a plug-in} without a time"),
    ]
    assert builder.finish().problems == result.problems == expected


def test_equal_problems_are_one_and_their_counts_added() -> None:
    one, other = (ROWS_LOST.of(2, file=file, lost=7) for file in ("a", "b"))
    assert merged([one, other, one]) == [ROWS_LOST.of(4, file="a", lost=7), other]
