"""Figures: pure functions of a report or of marks."""

from __future__ import annotations

import pytest

from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.figures import gains_figure, heatmap_figure, steps_figure
from gpuscope.dashboards.pages import ranks_page
from gpuscope.report.view import report_rows
from gpuscope.report.view.first_lines import first_lines
from gpuscope.report.view.headline import SEEN, changed, culprits, pieces


def test_the_pieces_of_a_bar_sum_to_the_window(slow_rank: OpenRun, pair: OpenRun) -> None:
    for entry in (*slow_rank.report["ranks"], *pair.report["ranks"]):
        assert sum(pieces(entry).values()) == entry["window_ns"]


def test_the_late_rank_is_marked_and_the_change_stands_beneath(slow_rank: OpenRun) -> None:
    report = slow_rank.report
    change = changed(first_lines(report).told)
    assert change is not None
    step = report_rows.step_ns(report)
    fig = steps_figure.bars(report["ranks"], False, step_ns=step, late=culprits(report), change=change)
    assert [label for label in fig.data[0].y if "late" in label] == ["<b>▸ rank 1 (CPU), late</b>"]
    after = next(bar for bar in fig.data if list(bar.y) == ["after"])
    assert after.x[0] == change.after / 1e6  # ms, as the bars above
    assert sum(bar.x[1] for bar in fig.data if len(bar.y) > 1) == pytest.approx(change.before / 1e6)
    in_legend = {bar.name: max(bar.x) for bar in fig.data if len(bar.y) > 1 and bar.showlegend}
    assert "data loader" not in in_legend  # 0.2 % of the step: no eye finds it
    assert min(in_legend.values()) > SEEN * change.before / 1e6


def test_of_many_ranks_who_makes_others_wait_stands_alone() -> None:
    """64 ranks, of which 40 and 9 are waited for: they come first, the others share rows of two."""
    waits = {(rank, 0): {40: 7, 9: 3}.get(rank, 0) for rank in range(64)}
    rows = heatmap_figure.rows_of(waits, [9])
    assert [label for label, _ in rows[:4]] == ["9", "40", "0-1", "2-3"]
    assert sorted(rank for _, some in rows for rank in some) == list(range(64))
    (drawn,) = heatmap_figure.heatmap({**waits, (3, 0): 5}, "waits", dark=False, rows=rows, marked=[9]).data
    assert [line[0] for line in drawn.z[:4]] == [3, 7, 0, 5]
    assert drawn.customdata[3][0] == "3"


def test_steps_are_drawn_per_rank(slow_rank: OpenRun) -> None:
    fig = steps_figure.series(slow_rank.report["steps"], dark=False)
    assert [trace.name for trace in fig.data] == ["rank 0", "rank 1"]
    assert list(fig.data[0].x) == [4, 5, 6]


@pytest.mark.parametrize(
    ("numbers", "ends"), [([None, 7], [6.5, 7.5]), ([0, 3, 2], [-0.5, 3.5]), ([], None), ([0, 21], None)]
)
def test_an_axis_of_few_steps_has_whole_ones(numbers: list[int | None], ends: list[float] | None) -> None:
    assert steps_figure.whole_steps(numbers).get("range") == ends


def test_a_heatmap_starts_at_nothing_and_leaves_gaps_empty() -> None:
    fig = heatmap_figure.heatmap({(0, 1): 2_000_000, (3, 1): 4_000_000, (3, 2): 1_000_000}, "step time", dark=True)
    (cells,) = fig.data
    assert (list(cells.y), list(cells.x)) == (["0", "3"], ["1", "2"])
    assert [list(row) for row in cells.z] == [[2, None], [4, 1]]  # ms
    assert (cells.zmin, cells.zmax) == (0, 4)


def test_cells_come_from_the_report(pair: OpenRun) -> None:
    waited = ranks_page.cells(pair.report, "wait_suffered_ns")
    # Rank 0 waits 100 µs for rank 1 in each step.
    assert waited == {(0, 0): 100_000, (0, 1): 100_000, (1, 0): 0, (1, 1): 0}


def test_names_are_text_in_a_figure(pair: OpenRun) -> None:
    rates = gains_figure.categories(pair.report["kernels"], dark=False)
    assert "<script" not in str(rates.to_json())
