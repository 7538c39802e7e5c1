"""Kernels and collectives that slow each other, and what that makes of a change; by hand, times in ns."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.jobs import Host, Issue, Launch, Program, Step, Wait, job, steps

from gpuscope.analyzers.replay.contention import NONE as NOT_CONTENDED
from gpuscope.analyzers.replay.contention import Contended, Slowdown, slowdown
from gpuscope.analyzers.replay.device_contention import NONE, UNKNOWN, Disturbed
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.analyzers.replay.rewrite import nodes_by_call


def of_one_name(graph: Graph) -> Graph:
    return graph.with_nodes(kernel=np.where(graph.of(Node.DEVICE), 1, -1))


def recorded(beside: int) -> Graph:
    """Three kernels of 100 alone, then three beside a collective of three times `beside`."""
    return of_one_name(
        job(
            [
                Step(),
                *[Launch(100)] * 3,
                Wait(stream=7),
                Issue("all_reduce", 8, 3 * beside),
                *[Launch(beside)] * 3,
                Wait(stream=7),
                Step(),
            ]
        )
    )


def test_the_same_kernel_alone_and_beside_a_collective() -> None:
    """125 beside it, 100 alone."""
    graph = recorded(125)
    assert Disturbed(graph, replay(graph)).found.kernels == pytest.approx((1.25, 1.25, 1.25))


def test_batches_that_change_from_step_to_step_hide_it_only_over_all_of_them() -> None:
    """The same with runs of twice the length in the second step."""
    steps = [
        [
            Step(),
            *[Launch(times * 100)] * 3,
            Wait(stream=7),
            Issue("all_reduce", 8, times * 375),
            *[Launch(times * 125)] * 3,
            Wait(stream=7),
        ]
        for times in (1, 2)
    ]
    graph = of_one_name(job([*steps[0], *steps[1], Step()]))
    assert Disturbed(graph, replay(graph)).found.kernels == pytest.approx((1.25, 1.25, 1.25))


def test_kernels_as_fast_beside_a_collective_are_known_not_to_be_disturbed() -> None:
    graph = recorded(100)
    assert Disturbed(graph, replay(graph)).found.kernels == NONE


def test_kernels_that_never_ran_beside_a_collective_leave_it_open() -> None:
    graph = of_one_name(job([Step(), *[Launch(100)] * 6, Wait(stream=7), Issue("all_reduce", 8, 50), Step()]))
    assert Disturbed(graph, replay(graph)).found.kernels == UNKNOWN


@pytest.mark.parametrize("bias", [-1, 0, 1])
def test_without_the_collective_kernels_take_what_they_take_alone(bias: int) -> None:
    """3 · 100 + 3 · 125 becomes 6 · 100."""
    graph = recorded(125)
    contended = Disturbed(graph, replay(graph))
    dur = graph.nodes["dur"].copy()
    dur[nodes_by_call(graph, Node.TRANSFER)] = 0
    changed, done, basis = contended.replay(contended.as_fast(graph.with_nodes(dur=dur)), bias)
    assert (done.steps(changed)[0].tolist(), bool(basis)) == ([600], True)


def test_an_unchanged_job_stays_as_it_was() -> None:
    graph = recorded(125)
    disturbed = Disturbed(graph, replay(graph))
    changed, done, basis = disturbed.replay(disturbed.as_fast(graph))
    assert (done.steps(changed)[0].tolist(), basis) == ([675], [])


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
    assert slowdown(graph, replay(graph), {0: (3100,) * 4, 1: (3050,) * 4}) == NOT_CONTENDED
    assert slowdown(graph, replay(graph), {0: (4100,) * 4, 1: (4000,) * 4}) == NOT_CONTENDED
    assert slowdown(graph, replay(graph), {0: (0, 0, 0, 40), 1: (0,) * 4}) == NOT_CONTENDED  # one step of eight: chance
    assert slowdown(graph, replay(graph), {}) == NOT_CONTENDED


def test_less_beside_is_faster() -> None:
    """All 4000 ran beside a collective, at 1.25 times what they take alone. Without it: 3200."""
    graph = computing(job(*beside(4000)))
    contended = Contended(graph, replay(graph), Slowdown(0.25, 0.05, 800))
    transfers = graph.of(Node.TRANSFER)
    gone = graph.with_nodes(dur=np.where(transfers, 0, graph.nodes["dur"]))
    assert steps(contended.replay(graph)[0]) == [6000]
    assert steps(contended.replay(gone)[0]) == [5200]
    assert steps(Contended(graph, replay(graph), NOT_CONTENDED).replay(gone)[0]) == [6000]


def test_more_beside_is_slower() -> None:
    """Nothing ran beside; then all does: 4000 become 5000. With the slowdown's error 5200, or 4800."""
    graph = computing(job(*beside(0)))
    contended = Contended(graph, replay(graph), Slowdown(0.25, 0.05, 800))
    busy = graph.with_nodes(dur=np.where(graph.of(Node.TRANSFER), 10_000, graph.nodes["dur"]))
    found = [contended.replay(busy, bias)[0] for bias in (-1, 0, 1)]
    compute = [int(one.nodes["dur"][(one.nodes["rank"] == 0) & one.of(Node.HOST)].max()) for one in found]
    assert compute == [4800, 5000, 5200]
    assert steps(found[1]) == [12_000]  # the wait for the collective hides it
