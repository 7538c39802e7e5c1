"""Start times follow from durations and what waits for what; what a step holds, by hand in ns; order of issue."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.jobs import Host, Issue, Launch, Step, Wait, job, steps

from gpuscope.analyzers.replay.engine import CircleError, compute_floor, parts, replay
from gpuscope.analyzers.replay.graph import Call, Edge, Graph, Node, edge_columns, join, node_columns
from gpuscope.analyzers.replay.recording import unmatched_messages
from gpuscope.analyzers.replay.rewrite import by_issue
from gpuscope.analyzers.what_if_changes import EvenStages, MicroBatches


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


def test_the_second_one_started_first() -> None:
    host = {"kind": Node.HOST, "rank": 0}
    nodes = [
        host | {"start": 0, "end": 10},
        host | {"start": 10, "end": 20},
        {"kind": Node.ARRIVAL, "rank": 0, "call": 0, "start": 35, "end": 35},
        {"kind": Node.ARRIVAL, "rank": 0, "call": 1, "start": 30, "end": 30},
    ]
    edges = [(0, 2, 25, Edge.LAUNCH), (1, 3, 10, Edge.LAUNCH)]
    calls = tuple(Call(0, "all_reduce", at, at, size, "0", 2, True) for at, size in ((35, 64), (30, 128)))
    graph = Graph(node_columns(nodes), edge_columns(edges), calls, (), {})
    assert by_issue(graph, [1, 0]) == [0, 1]


ONE = np.array([True])


def test_a_device_computes_on_all_its_streams() -> None:
    """Stream 7 computes for 100, then stream 9 for 80, of which a third kernel on stream 7 runs beside 30."""
    graph = job(
        [
            Step(),
            Host(10),
            Launch(100),
            Wait(stream=7),
            Launch(80, stream=9),
            Launch(30),
            Wait(stream=9),
            Step(),
        ]
    )
    done = replay(graph)
    assert compute_floor(graph, done, ONE) == 180
    assert parts(graph, done, ONE) == {
        "compute": 180,
        "exposed_communication": 0,
        "exposed_memory": 0,
        "idle": 10,
    }


def test_the_busiest_device_unless_the_work_is_evened_out() -> None:
    graph = job(*([Step(), Launch(busy), Wait(stream=7), Step()] for busy in (100, 40)))
    done = replay(graph)
    assert compute_floor(graph, done, ONE) == 100
    assert compute_floor(graph, done, ONE, (EvenStages(),)) == 70
    assert compute_floor(graph, done, ONE, (MicroBatches(8, keep_batch=False),)) == 0


def test_a_thread_that_waits_for_a_collective_communicates() -> None:
    """Rank 0 waits 20 for rank 1, and both 5 for the transfer; the mean of 25 and 5."""
    graph = job(*([Step(), Host(busy), Issue("all_reduce", 8, 5), Wait(calls=(0,)), Step()] for busy in (20, 40)))
    found = parts(graph, replay(graph), ONE)
    assert (found["exposed_communication"], sum(found.values())) == (15, 45)


def test_a_send_without_its_receive_is_unmatched() -> None:
    def program(op: str) -> list[Step | Issue | Host]:
        return [Step(), Host(10), Issue(op, 8, 5), Step()]

    both = job(program("send"), program("recv"))
    assert unmatched_messages(both) == 0
    apart = [graph.keep_edges(~graph.of(Node.JOIN)[graph.edges["dst"]]) for graph in (both, job(program("all_reduce")))]
    assert [unmatched_messages(graph) for graph in apart] == [2, 0]
