"""Compute beside collectives: how much slower it was, and what that makes of a change; times in ns."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.jobs import Host, Issue, Program, Step, Wait, job, steps

from gpuscope.analyzers.replay.contention import NONE, Contended, Slowdown, slowdown
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Graph, Node


def beside(transfer: int, count: int = 1) -> list[Program]:
    """Per step 2000 of compute before the issue, 4000 behind it, then the wait."""
    program: list[Host | Issue | Wait | Step] = [Step()]
    for call in range(count):
        program += [Host(2000), Issue("all_reduce", 1000, transfer), Host(4000), Wait(calls=(call,)), Step()]
    return [program] * 2


def computing(graph: Graph) -> Graph:
    return graph.with_nodes(compute=np.where(graph.of(Node.HOST), graph.nodes["dur"], 0))


def test_the_slowdown_of_a_thread_that_waited_for_cores() -> None:
    """Of 4000 beside a collective it waited for 800, twice 790 and 810, in eight steps: it would have taken 3200."""
    graph = computing(job(*beside(4000, count=4)))
    found = slowdown(graph, replay(graph), {0: (800, 790, 810, 800), 1: (800, 800, 790, 810)})
    assert found.factor == pytest.approx(800 / 3200)
    assert 0 < found.error < 0.01
    assert found.waited == 8 * 800
    assert "25 % (± <1 %) slower" in found.text()


def test_who_waits_for_others_cores_tells_nothing() -> None:
    graph = computing(job(*beside(4000, count=4)))
    assert slowdown(graph, replay(graph), {0: (3100,) * 4, 1: (3050,) * 4}) == NONE
    assert slowdown(graph, replay(graph), {0: (4100,) * 4, 1: (4000,) * 4}) == NONE
    assert slowdown(graph, replay(graph), {0: (0, 0, 0, 40), 1: (0,) * 4}) == NONE  # one step of eight: chance
    assert slowdown(graph, replay(graph), {}) == NONE


def test_less_beside_is_faster() -> None:
    """All 4000 ran beside a collective, at 1.25 times what they take alone. Without it: 3200."""
    graph = computing(job(*beside(4000)))
    contended = Contended(graph, replay(graph), Slowdown(0.25, 0.05, 800))
    transfers = graph.of(Node.TRANSFER)
    gone = graph.with_nodes(dur=np.where(transfers, 0, graph.nodes["dur"]))
    assert steps(contended.replay(graph)[0]) == [6000]
    assert steps(contended.replay(gone)[0]) == [5200]
    assert steps(Contended(graph, replay(graph), NONE).replay(gone)[0]) == [6000]


def test_more_beside_is_slower() -> None:
    """Nothing ran beside; then all does: 4000 become 5000. With the slowdown's error 5200, or 4800."""
    graph = computing(job(*beside(0)))
    contended = Contended(graph, replay(graph), Slowdown(0.25, 0.05, 800))
    busy = graph.with_nodes(dur=np.where(graph.of(Node.TRANSFER), 10_000, graph.nodes["dur"]))
    found = [contended.replay(busy, bias)[0] for bias in (-1, 0, 1)]
    compute = [int(one.nodes["dur"][(one.nodes["rank"] == 0) & one.of(Node.HOST)].max()) for one in found]
    assert compute == [4800, 5000, 5200]
    assert steps(found[1]) == [12_000]  # the wait for the collective hides it
