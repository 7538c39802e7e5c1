"""Start times follow from durations and from what waits for what."""

from __future__ import annotations

import pytest
from helpers.jobs import Host, Issue, Launch, Step, Wait, job, steps

from gpuscope.analyzers.replay.engine import CircleError, replay
from gpuscope.analyzers.replay.graph import Edge, join


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


def test_graphs_side_by_side_keep_their_own_calls_and_labels() -> None:
    one = job([Step(), Host(3), Issue("all_reduce", 8, 4), Wait(calls=(0,), label="x"), Step()])
    other = job([Step(), Host(1), Step()])
    both = join([other, one])
    assert len(both) == len(one) + len(other)
    assert (steps(both), [call.op for call in both.calls], both.labels) == ([7], ["all_reduce"], ("x",))
