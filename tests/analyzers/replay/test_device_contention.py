"""Kernels and collectives that slow each other, on jobs small enough to replay by hand; times in ns."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.jobs import Issue, Launch, Step, Wait, job

from gpuscope.analyzers.replay.device_contention import NONE, UNKNOWN, Disturbed
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.analyzers.replay.rewrite import nodes_by_call


def of_one_name(graph: Graph) -> Graph:
    return graph.with_nodes(kernel=np.where(graph.of(Node.DEVICE), 1, -1))


def recorded(beside: int) -> Graph:
    """Three kernels of 100 alone, then three beside a collective of three times `beside`."""
    return of_one_name(job([
        Step(), *[Launch(100)] * 3, Wait(stream=7),
        Issue("all_reduce", 8, 3 * beside), *[Launch(beside)] * 3, Wait(stream=7), Step(),
    ]))  # fmt: skip


def test_the_same_kernel_alone_and_beside_a_collective() -> None:
    """125 beside it, 100 alone."""
    graph = recorded(125)
    assert Disturbed(graph, replay(graph)).found.kernels == pytest.approx((1.25, 1.25, 1.25))


def test_batches_that_change_from_step_to_step_hide_it_only_over_all_of_them() -> None:
    """The same with runs of twice the length in the second step."""
    steps = [
        [Step(), *[Launch(times * 100)] * 3, Wait(stream=7), Issue("all_reduce", 8, times * 375),
         *[Launch(times * 125)] * 3, Wait(stream=7)]
        for times in (1, 2)
    ]  # fmt: skip
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
