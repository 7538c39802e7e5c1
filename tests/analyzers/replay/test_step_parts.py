"""What a step of a replay holds, worked by hand in ns."""

from __future__ import annotations

import numpy as np
from helpers.jobs import Host, Issue, Launch, Step, Wait, job

from gpuscope.analyzers.changes import EvenStages, MicroBatches
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Node
from gpuscope.analyzers.replay.ranks_joined import unmatched_messages
from gpuscope.analyzers.replay.step_parts import compute_floor, parts

ONE = np.array([True])


def test_a_device_computes_on_all_its_streams() -> None:
    """Stream 7 computes for 100, then stream 9 for 80, of which a third kernel on stream 7 runs beside 30."""
    graph = job([
        Step(), Host(10), Launch(100), Wait(stream=7), Launch(80, stream=9), Launch(30), Wait(stream=9), Step(),
    ])  # fmt: skip
    done = replay(graph)
    assert compute_floor(graph, done, ONE) == 180
    assert parts(graph, done, ONE) == {
        "compute": 180, "exposed_communication": 0, "exposed_memory": 0, "idle": 10,
    }  # fmt: skip


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
