"""Scaling efficiency: the arithmetic, the plans, and one run on one and two processes."""

import pytest

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.bench.processes import measure, rows, tokens_per_step
from gpuscope.instrumented_runtime.bench.topology_links import ScalingOptions, plan


def test_efficiency_of_weak_scaling() -> None:
    # One process: 1000 tokens in 1 ms. Four: 4000 tokens in 1.25 ms, so 3.2 times as many per second.
    one, four = rows([(1, "single", 1000, 1_000_000), (4, "replicate=4", 4000, 1_250_000)])
    assert (one.tokens_per_s, one.speedup, one.efficiency) == (1e6, 1.0, 1.0)
    assert four.tokens_per_s == pytest.approx(3.2e6)
    assert four.speedup == pytest.approx(3.2)
    assert four.efficiency == pytest.approx(0.8)


def test_without_one_process_the_smallest_number_is_the_base() -> None:
    two, four = rows([(2, "tp=2", 1000, 1_000_000), (4, "tp=4", 1000, 800_000)])
    assert (two.speedup, two.efficiency) == (2.0, 1.0)
    assert four.efficiency == pytest.approx(0.625)  # 1.25 times as fast on twice as many


@pytest.mark.parametrize(("strong", "batch", "tokens"), [(False, 8, 2 * 8 * 64), (True, 4, 2 * 4 * 64)])
def test_batches_of_weak_and_strong_scaling(strong: bool, batch: int, tokens: int) -> None:
    options = ScalingOptions(settings=("data.batch=8", "data.sequence=64"), strong=strong)
    config, degrees = plan(options, 2)
    assert config.data.batch == batch
    assert tokens_per_step(config, degrees) == tokens
    assert not config.capture.profile  # a profiler would be what is measured


def test_a_batch_that_can_not_be_shared() -> None:
    with pytest.raises(UsageError, match="can't be shared by 3 ranks"):
        plan(ScalingOptions(settings=("data.batch=8",), strong=True), 3)


@pytest.mark.parametrize("bad", [{"nprocs": (2, 1)}, {"nprocs": ()}, {"nprocs": (0, 1)}, {"warmup": 0}])
def test_options_check_themselves(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ScalingOptions(**bad)  # type: ignore[arg-type]


def test_one_and_two_processes() -> None:
    small = ("model.layers=1", "model.width=16", "data.batch=2", "data.sequence=16")
    report = measure(ScalingOptions(nprocs=(1, 2), settings=small, steps=3, warmup=1))
    assert [(row.processes, row.mesh, row.tokens_per_step) for row in report.rows] == [
        (1, "single", 2 * 16),
        (2, "replicate=2", 2 * 2 * 16),
    ]
    one, two = report.rows
    assert two.efficiency == pytest.approx(two.tokens_per_s / (2 * one.tokens_per_s))
