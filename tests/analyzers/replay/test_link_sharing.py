"""Collectives at once on one link, on jobs small enough to replay by hand; times in ns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.jobs import Issue, Step, Wait, job

from gpuscope.analyzers.replay.device_contention import BOTH_WAYS, NONE, SHARED, Disturbed
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Edge, Graph, Node
from gpuscope.analyzers.replay.rewrite import Crowds, Reach, Reaches, can_crowd, nodes_by_call


def two_groups(*transfers: int, ops: tuple[str, str] = ("all_reduce", "all_reduce")) -> Graph:
    """Collectives one after the other; every second is of group `b` on a stream of its own, so that it runs beside
    the one before it."""
    issues = [Issue("all_reduce", 8, transfer) for transfer in transfers]
    graph = job([Step(), *issues, Wait(calls=tuple(range(len(issues)))), Step()])
    other = [number % 2 == 1 for number in range(len(issues))]
    calls = [
        replace(call, group="b" if apart else "a", op=ops[apart])
        for call, apart in zip(graph.calls, other, strict=True)
    ]
    call = graph.nodes["call"]
    lane = np.where((call >= 0) & np.array([*other, False])[call], 36, graph.nodes["lane"])
    graph = replace(graph.with_nodes(lane=lane), calls=tuple(calls))
    src, dst = graph.edges["src"], graph.edges["dst"]
    crossing = (graph.edges["why"] == Edge.STREAM) & (lane[src] != lane[dst])
    graph = graph.keep_edges(~crossing)
    done = replay(graph)
    return graph.with_nodes(start=done.start, end=done.end)


def beside(graph: Graph, reach: Reaches | None = None, *, opposite: bool = False) -> tuple[list[float], list[float]]:
    done = replay(graph)
    share, others = Crowds(graph, reach or {}, opposite=opposite).beside(done.start, done.end)
    nodes = nodes_by_call(graph, Node.TRANSFER)
    return share[nodes].tolist(), others[nodes].tolist()


def test_one_stream_holds_no_crowd() -> None:
    assert not can_crowd(job([Step(), Issue("all_reduce", 8, 10), Issue("all_reduce", 8, 10), Step()]))
    assert can_crowd(two_groups(10, 10))


def test_the_share_of_a_transfer_beside_another() -> None:
    """Both begin at 0: the one of 10 is beside the other all the time, that of 40 a quarter of it."""
    assert beside(two_groups(40, 10)) == ([0.25, 1.0], [1.0, 1.0])


def test_groups_inside_a_host_and_between_hosts_share_nothing() -> None:
    apart = {(0, "a"): Reach.INSIDE, (0, "b"): Reach.BETWEEN}
    assert beside(two_groups(40, 10), apart)[0] == [0.0, 0.0]
    assert beside(two_groups(40, 10), {(0, "a"): Reach.BETWEEN, (0, "b"): Reach.BETWEEN})[0] == [0.25, 1.0]


def test_what_is_sent_and_what_is_received_is_a_crowd_of_its_own() -> None:
    graph = two_groups(40, 10, ops=("send", "recv"))
    assert (beside(graph)[0], beside(graph, opposite=True)[0]) == ([0.0, 0.0], [0.25, 1.0])
    assert Disturbed(graph, replay(graph)).found.ways == BOTH_WAYS
    assert beside(two_groups(40, 10, ops=("send", "all_reduce")))[0] == [0.25, 1.0]


def test_a_fair_share_is_expected_where_nothing_ran_alone() -> None:
    graph = two_groups(*[100] * 12)
    assert Disturbed(graph, replay(graph)).found.links == SHARED


def test_a_job_of_one_stream_knows_no_crowd() -> None:
    graph = job([Step(), *[Issue("all_reduce", 8, 10)] * 8, Step()])
    assert Disturbed(graph, replay(graph)).found.links == NONE


@pytest.mark.parametrize(("bias", "expected"), [(-1, 100), (0, 50), (1, 40)])
def test_without_the_other_a_transfer_takes_its_share(bias: int, expected: int) -> None:
    """Of 100 beside another all the time: as long alone at best, half of it as expected, and 1 / 2.5 at most."""
    graph = two_groups(100, 100)
    disturbed = Disturbed(graph, replay(graph))
    dur = graph.nodes["dur"].copy()
    dur[nodes_by_call(graph, Node.TRANSFER)[1]] = 0
    changed, _, basis = disturbed.replay(disturbed.as_fast(graph.with_nodes(dur=dur)), bias)
    assert changed.nodes["dur"][nodes_by_call(graph, Node.TRANSFER)[0]] == expected
    assert basis[-1].startswith("two collectives at once on one link are taken to get half of it each") or bias < 0


def test_an_unchanged_crowd_stays_as_it_was() -> None:
    graph = two_groups(100, 80, 100, 80)
    disturbed = Disturbed(graph, replay(graph))
    changed, done, basis = disturbed.replay(disturbed.as_fast(graph))
    assert (done.end.tolist(), basis) == (replay(graph).end.tolist(), [])
    assert changed is graph
