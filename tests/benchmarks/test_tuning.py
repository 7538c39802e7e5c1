"""The benchmark of tuning: what is counted as removed, kept, and held."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.tuning.cases import CASES, SCRIPTS, Case
from benchmarks.tuning.judged import COLUMNS, Row, Truth, totals

SLOW = Case("loader", "settings", ("loader_workers",))
HEALTHY = Case("healthy_ddp", "nothing", processes=2)


def truth(*tuned: float) -> Truth:
    """Half of the step can be removed."""
    return Truth((100.0, 130.0), (60.0, 50.0), tuned, frozenset({"0.5"}))


def change(measured: int, *, kept: bool, low: int | None = 45, high: int | None = 60) -> dict[str, Any]:
    return {
        "code": "loader_workers",
        "setting": "num_workers=2",
        "before_ns": 100,
        "measured_ns": measured,
        "low_ns": low,
        "high_ns": high,
        "kept": kept,
        "outcome": "faster" if kept else "no_gain",
    }


def tuned(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"changes": list(changes), "by_hand": [], "runs": 4}


def test_the_share_of_what_settings_can_remove() -> None:
    """45 of 50 per cent; a range of 45 to 60 holds 55."""
    row = Row(SLOW, "4", truth(70, 55), tuned(change(55, kept=True)))
    assert row.share == pytest.approx(0.9)
    assert (row.regression, row.ranges) == (False, [True])
    assert len(row.cells()) == len(COLUMNS)
    assert "90% of what settings can remove" in totals([row])


@pytest.mark.parametrize(
    ("step", "document", "regression", "ranges"),
    [
        (110, tuned(change(110, kept=True)), True, [False]),
        (110, tuned(change(55, kept=True)), True, [True]),  # by the script's own clock
        (100, tuned(change(110, kept=False)), False, [False]),  # measured, and rolled back
        (80, tuned(change(120, kept=True), change(80, kept=True, low=None)), True, [False]),  # only together faster
    ],
)
def test_a_regression_is_what_was_kept_and_is_slower(
    step: int, document: dict[str, Any], regression: bool, ranges: list[bool]
) -> None:
    row = Row(SLOW, "4", truth(step), document)
    assert (row.regression, row.ranges) == (regression, ranges)


def test_what_can_not_be_gained_counts_only_as_left_alone() -> None:
    rows = [Row(HEALTHY, "4", truth(90), one) for one in (tuned(), tuned(change(90, kept=True)))]
    assert [row.share for row in rows] == [None, None]
    assert "1 of 2 scripts without slowness left alone" in totals(rows)


def test_a_run_that_failed_removes_nothing() -> None:
    row = Row(SLOW, "4", truth(), None, "failed: no steps")
    assert row.share == 0
    assert "failed: no steps" in row.notes()


def test_each_case_has_its_script_without_gpuscope() -> None:
    assert {case.name for case in CASES} | {"common"} == {path.stem for path in SCRIPTS.glob("*.py")}
    assert not [path for path in SCRIPTS.glob("*.py") if "import gpuscope" in path.read_text(encoding="utf-8")]
