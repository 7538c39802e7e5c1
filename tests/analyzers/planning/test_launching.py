"""Hosts that launch more slowly than GPUs compute, and estimates held to measured steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gpuscope
from benchmarks.measured_steps import rows, summary
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.compute_time import HOST_PER_LAUNCH, LAUNCHES
from gpuscope.analyzers.planning.plan_memory import COMPILED, EAGER, FULL, GRAPHS, Layout, Rates
from gpuscope.analyzers.planning.step_estimate import Estimate, estimate
from gpuscope.analyzers.planning.transformer import model_named
from gpuscope.errors import InputError, UsageError

MEASURED = Path(__file__).parents[4] / "shared" / "planning"
SMALL = "layers=24,width=1024,heads=16,ffn=4096,vocabulary=51200,sequence=1024"


def step(model: str = SMALL, layout: Layout | None = None, batch: int = 16, **rates: object) -> Estimate:
    own = replace(Rates(), **rates)  # type: ignore[arg-type]
    return estimate(model_named(model), cluster_of("8xA100 80GB"), layout or Layout(8), batch, own)


def test_a_small_layer_is_bound_by_its_host() -> None:
    """24 layers of 30 launches forward and 60 backward, 28 µs each: 60.48 ms a micro-batch, and there are two."""
    host, device = step().launching
    assert LAUNCHES * 3 * 24 * HOST_PER_LAUNCH[EAGER] == pytest.approx(0.06048)
    assert host == pytest.approx(0.06048)
    assert step().host == pytest.approx(2 * (host - device))


def test_recomputation_launches_the_forward_pass_again() -> None:
    assert step(layout=Layout(8, recompute=FULL)).launching[0] == pytest.approx(0.06048 * 4 / 3)


def test_compiled_code_launches_sooner_and_graphs_cost_nothing() -> None:
    eager, compiled, graphs = (step(launched=kind) for kind in (EAGER, COMPILED, GRAPHS))
    assert eager.host > compiled.host >= graphs.host == 0
    assert eager.compute == graphs.compute


def test_a_large_layer_is_not_bound_by_its_host() -> None:
    assert step("llama-3-8b", batch=8).host == 0


def test_the_parts_still_sum_to_the_step() -> None:
    found = step(layout=Layout(4, 1, 2))
    parts = found.compute + found.host + found.bubble + sum(found.exposed.values()) + found.offload + found.other
    assert found.host > 0
    assert found.seconds == pytest.approx(parts)


def test_a_host_bound_plan_says_what_would_help() -> None:
    best = gpuscope.advise(SMALL, "8xA100", global_batch=16).best
    assert best is not None
    sentence = next(text for text in best["why"] if text.startswith("host-bound"))
    assert "CUDA graphs give" in sentence
    assert "torch.compile gives" in sentence
    graphs = gpuscope.advise(SMALL, "8xA100", global_batch=16, launch="graphs").best
    assert graphs is not None
    assert graphs["host_ns"] == 0
    assert not any(text.startswith("host-bound") for text in graphs["why"])


def test_the_rate_of_a_layout_is_told() -> None:
    """16 sequences of 1,024 tokens by the step and 8 GPUs."""
    best = gpuscope.advise(SMALL, "8xA100", global_batch=16).best
    assert best is not None
    assert best["tokens_per_s_per_gpu"] == pytest.approx(16 * 1024 / 8 / best["estimate_ns"] * 1e9, rel=1e-6)
    assert 0 < best["mfu_frac"] < 1


def test_the_domain_of_nvlink_is_an_option() -> None:
    joined = gpuscope.advise("llama-3-8b", "18x4xGB200", nvlink_domain=72).document["cluster"]
    apart = gpuscope.advise("llama-3-8b", "18x4xGB200").document["cluster"]
    assert joined["network"] is None
    assert apart["network"] is not None


def test_wrong_launches_are_refused() -> None:
    with pytest.raises(UsageError, match="launch=fast is none of eager, compiled, graphs"):
        gpuscope.advise("llama-3-8b", "8xH100", launch="fast")


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="holds no columns of measured layouts"):
        rows(path)


@pytest.mark.skipif(not MEASURED.is_dir(), reason="no measured steps of others beside the checkout")
@pytest.mark.parametrize(
    ("name", "error"), [("vtrain-single.csv", 0.08), ("vtrain-multi.csv", 0.10), ("mlperf-5.1.csv", 0.08)]
)
def test_measured_steps_are_met(name: str, error: float) -> None:
    found = summary(name, rows(MEASURED / name))
    assert found["median_error"] <= error
    assert found["in_range"] >= 0.85
