"""Compute beside transfers: how much slower it was, and what that makes of a change; times in ns."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.jobs import Host, Issue, Program, Step, Wait, job, steps

from analyzers.replay.contention import NONE, Contended, Repeated, Slowdown, slowdown
from analyzers.replay.graph import Graph, Node
from gpuscope.trace.schema import Kind

STEPS, OPERATIONS = 8, 40


def made(factor: float, noise: float = 0.0, seed: int = 0) -> tuple[Graph, dict[int, Repeated]]:
    """A rank whose operations take 1000 to 5000 alone, and a transfer per step that begins and ends anywhere."""
    draw = np.random.default_rng(seed)
    alone = draw.integers(1000, 5000, OPERATIONS)
    starts, ends, transfers = [], [], []
    at = 0.0
    for _ in range(STEPS):
        begin, length = at + draw.uniform(0, 80_000), draw.uniform(20_000, 60_000)
        transfers.append((begin, begin + length))
        for own in alone:
            work = own * (1 + draw.normal(0, noise))
            before = min(max(begin - at, 0), work)
            beside = min((work - before) * (1 + factor), max(begin + length - max(at, begin), 0))
            took = before + beside + max(0.0, work - before - beside / (1 + factor))
            starts.append(at)
            ends.append(at + took)
            at += took
    graph = job([Step(), Host(1), Issue("all_reduce", 8, 1), Step()])
    nodes = {name: np.repeat(column[graph.of(Node.TRANSFER)], STEPS) for name, column in graph.nodes.items()}
    nodes["end"] = np.array([round(end) for _, end in transfers])
    nodes["dur"] = np.array([round(end - begin) for begin, end in transfers])
    told = Graph(nodes, {name: column[:0] for name, column in graph.edges.items()}, graph.calls, (), graph.marks)
    shape = (STEPS, OPERATIONS)
    rounded = (np.rint(np.array(column)).astype(np.int64).reshape(shape) for column in (starts, ends))
    return told, {0: Repeated(*rounded)}


@pytest.mark.parametrize("factor", [0.2, 0.5, 1.0])
def test_the_slowdown_is_found(factor: float) -> None:
    assert slowdown(*made(factor)).factor == pytest.approx(factor, rel=0.01)
    noisy = slowdown(*made(factor, noise=0.1))
    assert abs(noisy.factor - factor) < 3 * noisy.error < 1


def test_without_a_slowdown_hardly_ever_one_is_found() -> None:
    """Chance exceeds one standard error in one of six; what it then claims is small."""
    found = [slowdown(*made(0.0, noise=0.2, seed=seed)) for seed in range(20)]
    assert sum(one.told for one in found) <= 8
    assert max(one.factor for one in found) < 0.1


def test_what_never_ran_beside_a_transfer_tells_nothing() -> None:
    graph, work = made(0.5)
    far = {rank: own.shifted(10**9) for rank, own in work.items()}
    assert slowdown(graph, far) == NONE


def beside(transfer: int) -> list[Program]:
    """2000 of compute before the issue, 4000 behind it, then the wait."""
    return [[Step(), Host(2000), Issue("all_reduce", 1000, transfer), Host(4000), Wait(calls=(0,)), Step()]] * 2


def computing(graph: Graph) -> Graph:
    return graph.with_nodes(compute=np.where(graph.of(Node.HOST), graph.nodes["dur"], 0))


def test_less_beside_is_faster() -> None:
    """All 4000 ran beside a transfer of 4000, at 1.25 times what they take alone. Without the transfer: 3200."""
    graph = computing(job(*beside(4000)))
    contended = Contended(graph, Slowdown(0.25, 0.05, 100))
    transfers = graph.of(Node.TRANSFER)
    gone = graph.with_nodes(dur=np.where(transfers, 0, graph.nodes["dur"]))
    assert steps(contended.replay(graph)[0]) == [6000]
    assert steps(contended.replay(gone)[0]) == [5200]
    assert steps(Contended(graph, NONE).replay(gone)[0]) == [6000]


def test_more_beside_is_slower() -> None:
    """Nothing ran beside; then all does: 4000 become 5000. With the slowdown's error 5200, or 4800."""
    graph = computing(job(*beside(0)))
    contended = Contended(graph, Slowdown(0.25, 0.05, 100))
    busy = graph.with_nodes(dur=np.where(graph.of(Node.TRANSFER), 10_000, graph.nodes["dur"]))
    found = [contended.replay(busy, bias)[0] for bias in (-1, 0, 1)]
    compute = [int(one.nodes["dur"][(one.nodes["rank"] == 0) & one.of(Node.HOST)].max()) for one in found]
    assert compute == [4800, 5000, 5200]
    assert steps(found[1]) == [12_000]  # the wait for the transfer hides it
    assert int(busy.nodes["work"][busy.of(Node.TRANSFER)][0]) == Kind.COMMUNICATION
