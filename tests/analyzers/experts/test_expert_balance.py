"""Uneven all-to-alls: experts with more tokens; bytes by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.collectives import collective, run_of

import gpuscope


def findings(folder: Path) -> list[tuple[list[int], str]]:
    report = gpuscope.analyze(folder).report
    return [(one["ranks"], one["message"]) for one in report["findings"] if one["code"] == "expert_imbalance"]


def test_the_rank_with_more_tokens_is_named(tmp_path: Path) -> None:
    """Two all-to-alls; rank 1 receives 3 × 4 KiB each, rank 0 4 KiB: 1.5 times the mean."""
    ranks = [
        [
            collective(ts, 50, 8192, seq, op="alltoall", **{"Out msg nelems": elements})
            for seq, ts in enumerate((100, 300))
        ]
        for elements in (1024, 3072)
    ]
    ((named, message),) = findings(run_of(tmp_path, *ranks))
    assert named == [1]
    assert "1.5 times the mean" in message


@pytest.mark.parametrize("second", [1024, 1228])
def test_even_and_nearly_even_ones_are_not(tmp_path: Path, second: int) -> None:
    """1,228 of a mean of 1,126 elements is 1.09 times."""
    ranks = [
        [collective(100, 50, 8192, 0, op="alltoall", **{"Out msg nelems": elements})] for elements in (1024, second)
    ]
    assert findings(run_of(tmp_path, *ranks)) == []
