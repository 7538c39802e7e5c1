"""`gpuscope.figures`: each figure of an analysis draws what the report says, or says why there is nothing to draw."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuscope
from gpuscope.errors import UsageError

go = pytest.importorskip("plotly.graph_objects")
DRAWN = {"bandwidth", "breakdown", "steps", "rank_steps", "waiting", "kernels", "gains"}


@pytest.fixture(scope="module")
def slow(samples: Path) -> gpuscope.Analysis:
    return gpuscope.analyze(samples / "ddp_slow_rank")


@pytest.mark.parametrize("name", [name for name in gpuscope.figures.__all__ if name != "changed"])
def test_a_figure_or_the_reason_why_there_is_none(slow: gpuscope.Analysis, name: str) -> None:
    draw = getattr(gpuscope.figures, name)
    if name in DRAWN:
        assert isinstance(draw(slow), go.Figure)
        assert len(draw(slow, dark=True).data) > 0
    else:
        with pytest.raises(UsageError, match="nothing to draw: "):
            draw(slow)


def test_the_bars_are_the_report_s_shares(slow: gpuscope.Analysis) -> None:
    compute = next(bar for bar in gpuscope.figures.breakdown(slow).data if bar.name == "compute")
    entries = slow.report["ranks"]
    assert list(compute.x) == [100 * one["breakdown_ns"]["compute"] / one["window_ns"] for one in entries]


def test_a_pipeline_and_a_comparison(samples: Path, slow: gpuscope.Analysis) -> None:
    assert len(gpuscope.figures.pipeline(gpuscope.analyze(samples / "pp_1f1b")).data) > 0
    assert len(gpuscope.figures.changed(gpuscope.diff(slow, samples / "ddp_healthy")).data) > 0


def test_wrong_use(slow: gpuscope.Analysis) -> None:
    with pytest.raises(UsageError, match="no measure 'x'"):
        gpuscope.figures.rank_steps(slow, measure="x")
