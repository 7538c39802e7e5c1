"""Collectives issued earlier, on jobs small enough to replay by hand; times in ns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from helpers.jobs import Host, Issue, Launch, Step, Wait, job, steps

from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Edge, Gradient, Graph, Node
from gpuscope.analyzers.replay.rewrite import Setting
from gpuscope.analyzers.replay.rewrites.rewrite_table import rewrite
from gpuscope.analyzers.what_if_changes import Overlap

ON_GPU = Setting(backend="nccl", gpu="NVIDIA A100", complete=True)


def behind_the_backward(early: int) -> Graph:
    """The host launches kernels of 100 at 10 and 20, and issues at 20 what waits for both; its gradients were there
    `early` ns before."""
    graph = job(
        [
            Step(),
            Host(10),
            Launch(100),
            Host(10),
            Launch(100),
            Issue("all_reduce", 8, 50),
            Wait(calls=(0,)),
            Wait(stream=7),
            Step(),
        ]
    )
    (arrival,) = np.flatnonzero(graph.of(Node.ARRIVAL)).tolist()
    last = int(np.flatnonzero(graph.of(Node.DEVICE))[-1])
    graph = graph.add([], [(last, arrival, 0, int(Edge.EVENT))])
    (call,) = graph.calls
    done = replay(graph)
    return replace(
        graph.with_nodes(start=done.start, end=done.end), calls=(replace(call, gradients=(Gradient(8, early),)),)
    )


def test_an_earlier_issue_stands_behind_what_the_host_had_launched_by_then() -> None:
    """Kernels 10–110–210, then the collective: 260. Ready as the first was launched, it transfers beside the second,
    110–160, and the step ends with that one."""
    graph = behind_the_backward(early=10)
    assert (steps(graph), steps(rewrite(graph, Overlap(on=True), ON_GPU).graph)) == ([260], [210])


def test_an_issue_that_is_hardly_earlier_still_waits_for_the_last_kernel_launched_by_then() -> None:
    """At 15 only the first kernel was launched; at 20, as it was, both."""
    graph = behind_the_backward(early=5)
    assert steps(rewrite(graph, Overlap(on=True), ON_GPU).graph) == [210]
