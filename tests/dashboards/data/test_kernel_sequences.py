"""Sequences of kernels that a stream repeats, by hand."""

from __future__ import annotations

from pathlib import Path

from helpers.kineto import call, kernel, write

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.kernel_sequences import sequences
from gpuscope.dashboards.data.open_runs import open_run


def test_a_layer_that_repeats_and_what_lies_between(tmp_path: Path) -> None:
    """x a b c a b c y d d: the layer «a b c» twice, 2 × 60 µs; «d d» is once, and part of it no sequence of two."""
    events = []
    for place, (name, lasts) in enumerate(
        [("x", 5), *2 * [("a", 10), ("b", 20), ("c", 30)], ("y", 5), ("d", 1), ("d", 1)]
    ):
        events += [call(1000 + 50 * place, 5, place + 1), kernel(1010 + 50 * place, lasts, place + 1, name)]
    events.append(kernel(3000, 500, 99, "ncclDevKernel_AllReduce_Sum_f32", stream=20))
    write(tmp_path / "rank0.json", *events, rank=0, world_size=1)
    run = open_run("1", str(tmp_path), Options())
    assert run.events is not None
    (found,) = sequences(run.events, 0)
    assert (found.names, found.count, found.time) == (("a", "b", "c"), 2, 120_000)
    assert found.share == 120 / 132
    assert sequences(run.events, 7) == []
