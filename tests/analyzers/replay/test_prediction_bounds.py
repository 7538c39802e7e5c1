"""Ranges: from the best to the worst case, and beyond by independent errors, which add up as squares do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuscope.analyzers.replay.contention import INFERRED, MARGINS, NOT_FITTED, ON_ONE_LINK, TOGETHER, margin
from gpuscope.analyzers.replay.engine import LEAST_CHANCE, bounds, by_chance, median_by_chance
from gpuscope.analyzers.replay.graph import Call, Graph, Node, edge_columns, node_columns
from gpuscope.analyzers.what_if_changes import KeepParameters, MicroBatches, PaddedProducts


@pytest.mark.parametrize(
    ("cases", "errors", "expected"),
    [
        ([100], [], (100, 100)),
        ([100], [3, 4], (95, 105)),  # 3-4-5
        ([100, 97, 112], [3, 4], (92, 117)),  # from the best and the worst case on
        ([100, 120, 140], [], (100, 140)),  # all assumptions are worse than expected
        ([100], [200], (0, 300)),  # no step is shorter than nothing
    ],
)
def test_bounds(cases: list[float], errors: list[float], expected: tuple[int, int]) -> None:
    assert bounds(cases, errors) == expected


def test_one_slow_step_says_nothing_of_the_median() -> None:
    """Quartiles 99 and 101: σ 1.48; of a median of seven 0.70, of the difference of two 0.99, times t, 1.943."""
    times = np.array([98, 99, 99, 100, 101, 101, 500], np.float64)
    assert median_by_chance(times) == pytest.approx(0.0193, abs=1e-4)
    assert (by_chance(times) or 0.0) > 1.0


def test_few_or_equal_steps_are_not_taken_to_be_certain() -> None:
    assert median_by_chance(np.array([100.0])) is None
    assert median_by_chance(np.array([100.0, 110.0])) == by_chance(np.array([100.0, 110.0]))
    assert median_by_chance(np.array([100.0] * 8)) == LEAST_CHANCE


def _crowded(streams: int, *, inferred: int = 0) -> Graph:
    """One rank with collectives on so many streams."""
    nodes = [{"kind": Node.TRANSFER, "rank": 0, "lane": lane, "call": lane} for lane in range(streams)]
    calls = tuple(Call(0, "all_reduce", 0, 0, 64, str(lane), 2, True) for lane in range(streams))
    return replace(Graph(node_columns(nodes), edge_columns([]), calls, (), {}), inferred=inferred)


def test_a_margin_is_that_of_the_least_certain_change() -> None:
    gather, pipeline = KeepParameters(), MicroBatches(8)
    assert margin([gather], None) == MARGINS[KeepParameters].share
    assert margin([gather, pipeline], None) == pytest.approx(MARGINS[MicroBatches].share + TOGETHER.share)
    assert margin([gather], _crowded(1)) == MARGINS[KeepParameters].share
    assert margin([gather], _crowded(2)) == max(ON_ONE_LINK.share, 0.0)
    assert margin([gather], _crowded(1, inferred=3)) == INFERRED * MARGINS[KeepParameters].share
    assert margin([PaddedProducts()], None) == NOT_FITTED.share
    assert margin([], None) == 0.0
