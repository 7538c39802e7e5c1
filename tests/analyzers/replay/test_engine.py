"""Start times follow from durations and from what waits for what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import needs
from helpers.jobs import Host, Issue, Launch, Step, Wait, job, steps

from gpuscope.analyzers.replay import engine
from gpuscope.analyzers.replay.engine import CircleError, replay
from gpuscope.analyzers.replay.graph import Edge, edge_columns, empty, join, node_columns
from gpuscope.trace.schema import NA


def test_the_host_waits_for_the_device_and_the_device_for_the_host() -> None:
    """Host 10, kernel 10–110, queued kernel 110–160, the host waits until 160, works 5: 165, kernel 165–185."""
    graph = job(
        [Step(), Host(10), Launch(100), Launch(50), Wait(stream=7), Host(5), Launch(20), Wait(stream=7), Step()]
    )
    assert steps(graph) == [185]


def test_a_collective_begins_when_the_last_rank_has_arrived() -> None:
    """Rank 0 arrives at 10, rank 1 at 70; 5 of transfer: both go on at 75."""
    programs = [[Step(), Host(busy), Issue("all_reduce", 8, 5), Wait(calls=(0,)), Step()] for busy in (10, 70)]
    graph = job(*programs)
    assert steps(graph, 0) == steps(graph, 1) == [75]


def test_a_shorter_kernel_moves_all_that_waits_for_it() -> None:
    graph = job([Step(), Host(10), Launch(100), Wait(stream=7), Host(5), Step()])
    dur = graph.nodes["dur"].copy()
    dur[dur == 100] = 40
    assert (steps(graph), steps(graph.with_nodes(dur=dur))) == ([115], [55])


def test_a_circle_is_told() -> None:
    graph = job([Step(), Host(1), Host(1), Step()])
    with pytest.raises(CircleError, match="circle"):
        replay(graph.add([], [(3, 2, 0, Edge.EVENT)]))


@pytest.mark.skipif(engine._CORE is None, reason=needs.NATIVE_CORE)
@pytest.mark.parametrize("seed", range(5))
def test_the_native_core_and_python_agree_to_the_nanosecond(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random graphs: edges lead from lower to higher numbers, a few nodes begin at a fixed time."""
    random = np.random.default_rng(seed)
    count, edges = 400, 900
    src, dst = np.sort(random.integers(0, count, (edges, 2)), axis=1).T
    apart = src < dst
    nodes = node_columns([{"dur": int(ns)} for ns in random.integers(0, 1_000, count)])
    nodes["release"] = np.where(random.random(count) < 0.1, random.integers(0, 5_000, count), NA)
    rows = zip(src[apart].tolist(), dst[apart].tolist(), random.integers(-50, 500, edges).tolist(), strict=False)
    graph = replace(empty(), nodes=nodes, edges=edge_columns([(*row, Edge.EVENT) for row in rows]))
    compiled = replay(graph)
    monkeypatch.setattr(engine, "_CORE", None)
    plain = replay(graph)
    assert (compiled.start == plain.start).all()
    assert (compiled.end == plain.end).all()


@pytest.mark.skipif(engine._CORE is None, reason=needs.NATIVE_CORE)
def test_the_native_core_refuses_edges_to_nowhere() -> None:
    one = np.zeros(1, np.int64)
    for src, lag in ((one + 1, one), (one - 1, one), (one, one[:0])):
        with pytest.raises(ValueError, match="not there"):
            engine._CORE(src, one, lag, one, one.copy(), one.copy())


def test_graphs_side_by_side_keep_their_own_calls_and_labels() -> None:
    one = job([Step(), Host(3), Issue("all_reduce", 8, 4), Wait(calls=(0,), label="x"), Step()])
    other = job([Step(), Host(1), Step()])
    both = join([other, one])
    assert len(both) == len(one) + len(other)
    assert (steps(both), [call.op for call in both.calls], both.labels) == ([7], ["all_reduce"], ("x",))
