"""Figures: pure functions of a report or of marks."""

from __future__ import annotations

from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.figures import breakdown_figure, heatmap_figure, kernels_figure, steps_figure
from gpuscope.dashboards.pages import ranks_page


def test_the_pieces_of_a_bar_sum_to_the_window(slow_rank: OpenRun, pair: OpenRun) -> None:
    for run in (slow_rank, pair):
        entries = run.report["ranks"]
        pieces = breakdown_figure.pieces(entries)
        assert [sum(piece.values[i] for piece in pieces) for i in range(len(entries))] == [
            entry["window_ns"] for entry in entries
        ]


def test_steps_are_drawn_per_rank(slow_rank: OpenRun) -> None:
    fig = steps_figure.series(slow_rank.report["steps"], dark=False)
    assert [trace.name for trace in fig.data] == ["rank 0", "rank 1"]
    assert list(fig.data[0].x) == [4, 5, 6]


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
    rates = kernels_figure.categories(pair.report["kernels"], dark=False)
    assert "<script" not in str(rates.to_json())
