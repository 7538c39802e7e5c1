"""The critical path of recorded runs: one chain, nothing in it at once, through the rank that all wait for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from gpuscope.analyzers.run.runner import Options, run
from gpuscope.sources.opening import inputs


@pytest.mark.parametrize(
    ("name", "ranks", "mostly"), [("ddp_slow_rank", {1}, 1), ("pp_unbalanced_stage", {0, 1}, 1)]
)  # rank 1 is the slow one, and the stage that takes longer
def test_the_chain_goes_through_the_slow_rank(name: str, ranks: set[int], mostly: int, samples: Path) -> None:
    replayer = run(inputs([str(samples / name)], None), Options()).replayer
    assert replayer is not None
    path = replayer.critical_path
    assert {one.rank for one in path} == ranks
    spent = {rank: sum(one.end - one.start for one in path if one.rank == rank) for rank in ranks}
    assert max(spent, key=lambda rank: spent[rank]) == mostly
    assert all(before.end <= after.start for before, after in pairwise(path))  # one clock
    steps, measured = replayer.steps, replayer.measured_step_ns
    assert measured is not None
    assert 0.9 * steps * measured < sum(spent.values()) <= path[-1].end - path[0].start
