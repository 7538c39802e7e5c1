"""Gradients told by their sizes and their place in the step, where no backward pass is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from communication_jobs.engine import run
from communication_jobs.jobs import MIB, Job
from communication_jobs.recordings import write

from gpuscope.analyzers.replay.graph import Graph, UnreplayableError
from gpuscope.analyzers.replay.rewrites.transfer_cost import gradients
from gpuscope.analyzers.run.runner import analyze

PLAIN = Job(structure="buckets", layers=4, kernels=2, kernel_ns=120_000, layer_bytes=8 * MIB, message_bytes=8 * MIB)


def graph_of(job: Job, folder: Path) -> Graph:
    replayer = analyze(write(folder, job, run(job)), advice=False, replay=True).replayer
    assert replayer is not None
    assert replayer._graph is not None
    return replayer._graph


@pytest.mark.parametrize(
    ("job", "behind"),
    [
        (PLAIN, False),
        (replace(PLAIN, recorder="nsys"), False),
        (replace(PLAIN, structure="behind"), True),
        (replace(PLAIN, structure="sharded_optimizer", ranks=4), False),
    ],
    ids=("within", "nsys", "behind", "scattered"),
)
def test_reductions_that_return_in_each_step_are_gradients(job: Job, behind: bool, tmp_path: Path) -> None:
    graph = graph_of(job, tmp_path)
    calls = [graph.calls[call] for call in gradients(graph)]
    assert {call.op for call in calls} == {"reduce_scatter" if job.structure == "sharded_optimizer" else "all_reduce"}
    assert all(call.by_structure and call.behind is behind and call.backward is not behind for call in calls)


def test_reductions_of_activations_are_none(tmp_path: Path) -> None:
    graph = graph_of(replace(PLAIN, structure="tensor", ranks=4), tmp_path)
    assert {graph.calls[call].group[:2] for call in gradients(graph)} == {"dp"}


def test_what_is_too_small_is_none(tmp_path: Path) -> None:
    graph = graph_of(replace(PLAIN, layer_bytes=64, message_bytes=64), tmp_path)
    with pytest.raises(UnreplayableError, match="can't be identified"):
        gradients(graph)
