"""The plan as a document, on the terminal, as options of frameworks, and calibrated by a run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest
from helpers.cli import call

from gpuscope.analyzers.planning.advising import advise
from gpuscope.analyzers.planning.calibrating import Job, efficiencies, scaled
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.plan_memory import Layout, Rates, measured_links
from gpuscope.analyzers.planning.step_estimate import estimate, stages_of
from gpuscope.analyzers.planning.torchtitan import commands
from gpuscope.analyzers.planning.transformer import PRESETS, model_named
from gpuscope.analyzers.what_if_changes import MoreRanks, Predicted
from gpuscope.errors import GpuscopeError
from gpuscope.schema.plan_document import Plan

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "sample_traces" / "ddp_healthy"


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("advise", "--model", "llama-3-8b,layers=16", "--cluster", "8xH100")
    text, document = call(capsys, *args).stdout, json.loads(call(capsys, *args, "--json").stdout)
    assert text.startswith(document["candidates"][0]["name"])
    assert "What the literature says" not in text
    assert "What the literature says" in call(capsys, *args, "--full").stdout
    assert set(document) == set(get_type_hints(Plan))


def test_options_of_the_frameworks() -> None:
    model, own = PRESETS["llama-3.1-405b"], Layout(128, 8, 16, zero=1, chunks=6)
    told = commands(model, own, stages_of(model, own), 2048)
    assert "torchtitan" not in told  # 126 layers are no whole number of layers in each of 96 stages
    told["torchtitan"] = commands(model, one := replace(own, chunks=1), stages_of(model, one), 2048)["torchtitan"]
    for option in ("tensor_parallel_degree 8", "pipeline_parallel_degree 16", "data_parallel_shard_degree 128"):
        assert f"--parallelism.{option}" in told["torchtitan"]
    assert "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16" in told["megatron"]
    layers = re.search(r"--pipeline-model-parallel-layout 'E(.*)L'", told["megatron"])
    assert layers is not None
    chunks = layers[1].split("|")
    assert len(chunks) % 16 == 0
    assert sum(int(chunk[2:]) if "*" in chunk else len(chunk) for chunk in chunks) == 126
    assert "deepspeed" not in told  # it has no tensor parallelism for any model
    model, own = PRESETS["llama-3-8b"], Layout(16, zero=2, micro_batch=2)
    config = json.loads(commands(model, own, stages_of(model, own), 512)["deepspeed"])
    assert config["train_batch_size"] == 512
    micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    assert micro * steps * 16 == 512


def test_a_run_calibrates_the_plan() -> None:
    """Two gloo ranks: the same layout is estimated as it was measured, and every candidate has a range."""
    told = advise(run=RUN, global_batch=16).document
    own = told["calibration"]
    assert own is not None
    assert own["layout"] == "dp 2, micro-batch 8"
    assert own["estimated_step_ns"] == pytest.approx(own["measured_step_ns"], rel=0.15)
    for entry in told["candidates"]:
        low, high = entry["low_ns"], entry["high_ns"]
        assert low is not None
        assert high is not None
        assert low < entry["estimate_ns"] < high
    assert told["goodput"] is None
    assert own["scaled"] is None
    four = advise(run=RUN, cluster="4xCPU", global_batch=16).document
    assert four["cluster"]["gpus"] == 4
    assert four["calibration"] is not None
    grown = four["calibration"]["scaled"]
    assert grown is not None
    assert (grown["data_before"], grown["data_after"], grown["global_batch"]) == (2, 4, 32)
    assert grown["step_ns_before"] == own["measured_step_ns"]
    assert grown["step_ns_after"] is not None
    assert grown["low_ns"] is not None
    assert grown["high_ns"] is not None
    assert grown["step_ns_before"] < grown["step_ns_after"]
    assert grown["low_ns"] < grown["step_ns_after"] < grown["high_ns"]


@pytest.mark.parametrize(
    ("layout", "batch", "world", "wanted", "factor", "across", "why"),
    [
        (Layout(8), 64, 8, "2x8xH100", 2, True, ""),
        (Layout(8), 64, 8, "64x8xH100", 64, True, ""),
        (Layout(16), 64, 16, "4x8xH100", 2, False, ""),  # over two hosts already
        (Layout(2, tensor=4), 8, 8, "8x8xH100", 8, True, ""),
        (Layout(2, tensor=4), 8, 8, "16xH100", 2, False, ""),
        (Layout(8), 64, 8, "12xH100", 0, False, "no multiple of the 8 recorded"),
        (Layout(8), 64, 8, "2x8xMI300X", 0, False, "how fast the kernels recorded on NVIDIA H100"),
        (Layout(1, tensor=8), 8, 8, "2x8xH100", 0, False, "no rank of the run exchanges gradients"),
        (Layout(8, expert=4), 8, 8, "2x8xH100", 0, False, "which tokens go to which experts"),
        (Layout(16, zero=3, shard=8), 16, 16, "4x8xH100", 0, False, "hybrid sharding"),
    ],
)
def test_a_run_is_replayed_on_more_ranks_or_it_is_said_why_not(
    layout: Layout, batch: int, world: int, wanted: str, factor: int, across: bool, why: str
) -> None:
    """By the change that its replay is asked for. Over hosts a ring has the ports of all its members there."""
    asked: list[MoreRanks] = []
    cluster = cluster_of(wanted)

    class Run:
        hosts: tuple[str, ...] = ()

        def predict(self, change: MoreRanks) -> Predicted:
            asked.append(change)
            return Predicted(100, 125, 110, 150, "replayed")

    job = Job(model_named("llama-3-8b", None), layout, batch, 0, 0)
    found = scaled(Run(), job, world, cluster_of(f"{world}xNVIDIA H100 80GB HBM3"), cluster)  # type: ignore[arg-type]
    assert found is not None
    assert why in found["why"]
    assert bool(asked) == (not why)
    if asked:
        assert (asked[0].factor, bool(asked[0].links), found["efficiency_frac"]) == (factor, across, 0.8)
        assert found["global_batch"] == batch * factor
    for link in asked[0].links if asked else ():
        best, expected, worst = link.gbps
        assert best == expected == min(cluster.inside.usable, cluster.port_gbps * (8 // layout.tensor))
        assert worst == pytest.approx(0.2 * expected)


def test_what_a_run_does_not_say_can_be_given(tmp_path: Path) -> None:
    for name in ("rank0.json.gz", "rank1.json.gz"):
        (tmp_path / name).write_bytes((RUN / name).read_bytes())
    model = "layers=2,width=128,heads=4,ffn=512,vocabulary=512,sequence=128"
    for wrong, says in (
        (lambda: advise(run=tmp_path), "what model"),
        (lambda: advise(model, run=tmp_path), "how the model was spread"),
        (lambda: advise(model, run=tmp_path, layout="tp=3,batch=16"), "does not divide 2 ranks"),
        (lambda: advise(model, run=tmp_path, layout="tp=2"), "lacks batch"),
        (lambda: advise(model, run=tmp_path, layout="depth=2,batch=16"), "no part of a layout"),
        (lambda: advise(model, "8xH100", run=tmp_path, layout="batch=16"), "a run on a CPU says nothing of GPUs"),
    ):
        with pytest.raises(GpuscopeError, match=says):
            wrong()
    named = advise(model, run=tmp_path, layout="micro_batch=8,batch=16", global_batch=16).document["calibration"]
    whole = advise(run=RUN, global_batch=16).document["calibration"]
    assert named is not None
    assert whole is not None
    assert named["measured_step_ns"] == whole["measured_step_ns"]


def test_attention_is_apart_where_its_kernels_are_known() -> None:
    """One H100, where the multiplications took twice and attention four times what the peak allows."""
    model = PRESETS["gpt2-xl"]
    job, cluster = Job(model, Layout(1, micro_batch=8), 8, 0, 0), cluster_of("1xH100")
    both, gemm = (
        estimate(model, cluster, job.layout, 8, Rates(1.0, attention)).compute * 1e9
        for attention in (1.0, float("inf"))
    )
    attention = 4 * (both - gemm)
    ranks = [{"breakdown_ns": {"compute": 2 * gemm + attention}, "steps": 1}]
    parts = [{"category": "attention", "dur_ns": attention}, {"category": "gemm", "dur_ns": 2 * gemm}]
    found = efficiencies({"compute": [{"parts": parts}]}, job, cluster, ranks, RUN)  # type: ignore[typeddict-item, list-item, arg-type]
    assert found == pytest.approx((0.5, 0.25))
    alike = efficiencies({}, job, cluster, ranks, RUN)  # type: ignore[typeddict-item, arg-type]
    assert alike[0] == alike[1] == pytest.approx(both / (2 * gemm + attention))


def test_a_link_is_fitted_to_its_sizes() -> None:
    """1 ms and 2 GB/s: 2 ranks all-reduce 4, 8 and 40 MB in 3, 5 and 21 ms, factor 1."""

    def entry(nbytes: int, ns: int) -> dict[str, object]:
        return {
            "tool": "trace",
            "op": "all_reduce",
            "group": "default_pg",
            "group_size": 2,
            "bytes": nbytes,
            "count": 4,
            "busbw_gbps": nbytes / ns,
        }

    rows = [entry(4_000_000, 3_000_000), entry(8_000_000, 5_000_000), entry(40_000_000, 21_000_000)]
    links, told = measured_links(rows)  # type: ignore[arg-type]
    assert links["any"].alpha_ns == pytest.approx(1e6)
    assert links["any"].busbw_gbps == pytest.approx(2.0)
    assert told == ["all collectives: 2.000 GB/s busbw and 1.000 ms per call"]
    alone, _ = measured_links(rows[:1])  # type: ignore[arg-type]
    assert (alone["any"].alpha_ns, alone["any"].busbw_gbps) == (0, pytest.approx(4 / 3))
