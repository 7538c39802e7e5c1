"""A large run replayed by some of its ranks, beside the replay of all and the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simulator.catalogue import COMPUTE
from simulator.job import MIB
from simulator.judged import Case

from gpuscope.analyzers.replay import graph_builder
from gpuscope.analyzers.replay.replayer import Replayer
from gpuscope.analyzers.run.runner import analyze
from gpuscope.analyzers.what_if_changes import Change, Predicted, ReplacedRank, SharedWork, WireBytes

RANKS, LATE = 12, 5
DATA = replace(COMPUTE, name="data", ranks=RANKS, layers=2, rate=20.0, device_slow={LATE: 1.3})
TENSOR = replace(DATA, name="tensor", parallel="tensor", tensor_bytes=4 * MIB, rate=40.0)
KEPT = {"data": 1_000, "tensor": 1_500}
"""Device events: not of every rank three steps, but of some of them."""


def replayed(folder: Path) -> Replayer:
    replayer = analyze(folder, advice=False, replay=True).replayer
    assert replayer is not None
    return replayer


@pytest.mark.parametrize("job", [DATA, TENSOR], ids=lambda job: job.name)
def test_some_ranks_stand_for_all(job: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(job, "one slow device")  # type: ignore[arg-type]
    folder = case.write(tmp_path)
    whole = replayed(folder)
    monkeypatch.setattr(graph_builder, "RUN_KEPT", KEPT[case.job.name])
    part = replayed(folder)
    assert whole.ranks == RANKS
    assert 2 <= part.ranks < RANKS
    assert part.error_frac is not None
    assert part.error_frac < 0.01
    changes: tuple[list[Change], ...] = ([ReplacedRank(LATE)], [WireBytes(0.5)], [SharedWork()])
    for change in changes:
        told, of_all = part.predict(change), whole.predict(change)
        assert isinstance(told, Predicted), told
        assert isinstance(of_all, Predicted), of_all
        assert told.after == pytest.approx(of_all.after, rel=0.02), change
        assert "like one of these each" in told.basis
    mended = Case(replace(case.job, name="mended", device_slow={}), "").truth.step_ns
    told = part.predict(ReplacedRank(LATE))
    assert isinstance(told, Predicted)
    assert told.low <= mended <= told.high


def test_a_rank_that_another_stands_for_is_replaced_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More ranks are late alike than there is room for."""
    late = range(3, 10)
    job = replace(DATA, device_slow=dict.fromkeys(late, 1.3))
    monkeypatch.setattr(graph_builder, "RUN_KEPT", KEPT["data"])
    told = replayed(Case(job, "").write(tmp_path)).predict([ReplacedRank(rank) for rank in late])
    assert isinstance(told, Predicted), told
    assert told.after == pytest.approx(Case(replace(job, name="mended", device_slow={}), "").truth.step_ns, rel=0.02)
