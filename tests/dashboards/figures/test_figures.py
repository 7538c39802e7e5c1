"""Figures: pure functions of a report or of marks."""

from __future__ import annotations

from helpers.pair import IMAGE, SCRIPT

from gpuscope.dashboards.data.detail_levels import marks
from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.figures import breakdown_figure, heatmap_figure, kernels_figure, steps_figure, timeline_figure
from gpuscope.dashboards.pages import ranks_page
from gpuscope.dashboards.pages.timeline_page import draw
from gpuscope.dashboards.state import View


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
    events = pair.events
    assert events is not None
    fig = draw(events, events.choose(None, ["streams"]), events.window, View(), dark=False)
    texts = " ".join(text for bars in fig["data"] for text in [*bars["hovertext"], *bars["text"]])
    assert "&lt;script&gt;window.broken" in texts
    assert "&lt;img src=x" in texts
    assert SCRIPT not in texts
    assert IMAGE not in texts
    rates = kernels_figure.categories(pair.report["kernels"], dark=False)
    assert "<script" not in str(rates.to_json())


def test_the_selected_event_is_outlined(pair: OpenRun) -> None:
    events = pair.events
    assert events is not None
    choice = events.choose({0}, ["streams"])
    place = events.place_of("d0")
    assert place is not None
    frame = timeline_figure.Frame(events.window, events.first, selected=place)
    fig = timeline_figure.timeline(marks(choice.tracks, events.window), lambda *_: "x", frame)
    (outline,) = fig["layout"]["shapes"]
    # Kernel 0 runs from 1050 to 1350 µs; the axis starts with the first event, the step at 1000 µs.
    assert (outline["x0"], outline["x1"]) == (50_000, 350_000)
