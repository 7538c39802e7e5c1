"""Compute, all-to-alls and links against what others measured; the printed commands against the frameworks' rules."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measured_layouts import table
from benchmarks.planner import SOURCES, published
from gpuscope.analyzers.planning.advising import advise
from gpuscope.analyzers.planning.candidates import Question
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.compute_time import Speed, _product
from gpuscope.analyzers.planning.plan_memory import FULL, SELECTIVE, SQRT, Layout, Rates, with_bench, with_link
from gpuscope.analyzers.planning.step_estimate import estimate, stages_of
from gpuscope.analyzers.planning.torchtitan import commands
from gpuscope.analyzers.planning.transformer import PRESETS
from gpuscope.errors import InputError, UsageError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("m", "n", "k", "tflops"),
    [
        (64, 2112, 7168, 206),
        (64, 24576, 1536, 289),
        (64, 32768, 512, 219),
        (64, 7168, 16384, 336),
        (128, 24576, 1536, 535),
        (128, 7168, 16384, 645),
        (128, 7168, 2048, 510),
        (4096, 2112, 7168, 1058),
        (4096, 24576, 1536, 990),
        (4096, 32768, 512, 590),
        (4096, 7168, 16384, 1358),
        (4096, 7168, 2048, 1025),
    ],
)
def test_products_of_deepgemm(m: int, n: int, k: int, tflops: float) -> None:
    """DeepGEMM's README of February 2025, FP8 on H800, whose largest product reaches 1,358 TFLOP/s."""
    speed = Speed(1.45e15, 0.0, 0.0, 0.8 * 3.352e12, 1.0, 0.0, 0.0)
    assert 2 * m * n * k / _product(speed, m, n, k)[0] / 1e12 == pytest.approx(tflops, rel=0.3)


def test_all_to_alls_go_to_four_hosts_at_most() -> None:
    """DeepSeek-V3's tokens over 8 hosts: 8 experts would touch 8·(1 − (7/8)^8) = 5.25 hosts; 7 of 8 are others. FP8 out
    and bf16 back are 1.5 bytes on average, four times a layer and micro-batch, in 58 of 61 layers."""
    model, cluster = PRESETS["deepseek-v3"], cluster_of("256x8xH800")
    own = Layout(128, pipeline=16, expert=64, zero=1)

    def sent(hosts: int) -> float:
        found = estimate(replace(model, expert_hosts=hosts), cluster, own, 15360, Rates(), "fp8").sent["expert"]
        layers = stages_of(model, own).most
        return found / (120 * layers * 58 / 61 * 4 * 1.5 * 4096 * 7168 * 7 / 8)

    assert sent(4) == pytest.approx(4)
    assert sent(0) == pytest.approx(8 * (1 - (7 / 8) ** 8))


def test_overlapped_all_to_alls_cost_a_share_of_the_compute() -> None:
    model, cluster = PRESETS["deepseek-v3"], cluster_of("256x8xH800")
    own = Layout(128, pipeline=16, expert=64, zero=1)
    plain, beside = (estimate(model, cluster, one, 15360, Rates(), "fp8") for one in (own, replace(own, overlap=True)))
    assert beside.in_flight["expert"] == plain.in_flight["expert"] == plain.exposed["expert"]
    assert beside.exposed["expert"] == pytest.approx(20 / 132 * plain.exposed["expert"])


NCCL_TESTS = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 32(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
{devices}
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
{rows}
"""


def bench(path: Path, ranks: int, hosts: int, busbw: float, alpha_us: float) -> Path:
    """What all_reduce_perf prints where a call takes alpha and its bytes at that rate."""
    devices = "\n".join(
        f"#  Rank {rank:2} Group  0 Pid {100 + rank} on host{rank * hosts // ranks} device {rank % 8} [0x1b] H100"
        for rank in range(ranks)
    )
    rows = []
    for size in (1 << 20, 1 << 26, 1 << 30):
        wire = 2 * (ranks - 1) / ranks * size
        time = alpha_us + wire / busbw / 1e3
        figures = f"{time:.2f} {size / time / 1e3:.2f} {wire / time / 1e3:.2f} 0"
        rows.append(f"  {size} {size // 4} float sum -1 {figures} {figures}")
    path.write_text(
        "# Collective test starting: all_reduce_perf\n" + NCCL_TESTS.format(devices=devices, rows="\n".join(rows))
    )
    return path


def test_links_are_those_measured(tmp_path: Path) -> None:
    """16 ranks on two hosts, 40 GB/s on the bus: a ring leaves a host by its 8 members' ports, 5 GB/s each."""
    cluster = cluster_of("2x8xH100")
    found, told = with_bench(cluster, bench(tmp_path / "two.txt", 16, 2, 40.0, 100.0))
    assert found.port_over(2) == pytest.approx(5.0, rel=0.01)
    assert found.ring(16, 1) == pytest.approx(40.0, rel=0.01)
    assert found.inside.usable == cluster.inside.usable
    assert len(told) == 1
    within, _ = with_bench(cluster, bench(tmp_path / "one.txt", 8, 1, 200.0, 20.0))
    assert (within.inside.usable, within.measured) == (pytest.approx(200.0, rel=0.01), False)
    assert with_link(cluster, 5.0).port_gbps == pytest.approx(5.0)


def test_our_own_document_is_read(tmp_path: Path) -> None:
    rows = [
        {"op": "all_reduce", "ranks": 16, "nbytes": size, "time_ns": 100_000 + round(1.875 * size / 40)}
        for size in (1 << 20, 1 << 26, 1 << 30)
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"tool": "collectives", "rows": rows}))
    assert with_bench(cluster_of("2x8xH100"), path)[0].port_over(2) == pytest.approx(5.0, rel=0.01)
    for wrong in ("{}", "no table", '{"rows": [{"op": "all_reduce"}]}'):
        path.write_text(wrong)
        with pytest.raises(InputError, match=r"bench\.json"):
            with_bench(cluster_of("2x8xH100"), path)


def test_the_range_is_as_wide_as_fabrics_differ_until_a_link_is_measured() -> None:
    def width(**given: float) -> float:
        best = advise("llama-3-70b", "8x8xA100", global_batch=128, **given).document  # type: ignore[arg-type]
        first = best["candidates"][0]
        assert (best["settling"] is None) == bool(given)
        return (first["high_ns"] - first["low_ns"]) / first["estimate_ns"]

    assert width() > width(link_gbps=24.0)


def megatron(text: str) -> argparse.Namespace:
    """Options of Megatron-LM, and what its `validate_args` and `TransformerConfig` demand of them (core 0.16,
    megatron/training/arguments.py, megatron/core/transformer/transformer_config.py)."""
    parser = argparse.ArgumentParser()
    for name in (
        "tensor-model-parallel-size",
        "pipeline-model-parallel-size",
        "micro-batch-size",
        "global-batch-size",
        "seq-length",
        "context-parallel-size",
        "expert-model-parallel-size",
        "expert-tensor-parallel-size",
        "num-layers-per-virtual-pipeline-stage",
        "recompute-num-layers",
        "num-distributed-optimizer-instances",
    ):
        parser.add_argument(f"--{name}", type=int)
    for name in (
        "bf16",
        "sequence-parallel",
        "tp-comm-overlap",
        "use-distributed-optimizer",
        "overlap-grad-reduce",
        "overlap-param-gather",
        "use-megatron-fsdp",
        "overlap-moe-expert-parallel-comm",
        "delay-wgrad-compute",
        "optimizer-cpu-offload",
        "grad-reduce-in-bf16",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    for name, choices in (
        ("recompute-granularity", ("full", "selective")),
        ("recompute-method", ("uniform", "block")),
        ("cp-comm-type", ("p2p", "a2a", "allgather", "a2a+p2p")),
        ("fp8-format", ("e4m3", "hybrid")),
        ("fp4-format", ("e2m1",)),
        ("ckpt-format", ("torch", "torch_dist", "fsdp_dtensor")),
        ("data-parallel-sharding-strategy", ("no_shard", "optim", "optim_grads", "optim_grads_params")),
        ("moe-token-dispatcher-type", ("allgather", "alltoall", "flex")),
        ("moe-flex-dispatcher-backend", ("deepep", "hybridep")),
    ):
        parser.add_argument(f"--{name}", choices=choices)
    parser.add_argument("--pipeline-model-parallel-layout")
    modules = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
    parser.add_argument("--recompute-modules", nargs="*", choices=modules, default=[])
    args = parser.parse_args(shlex.split(text))
    if args.use_megatron_fsdp:
        assert args.ckpt_format == "fsdp_dtensor"
        assert args.use_distributed_optimizer
    if args.sequence_parallel or args.tp_comm_overlap:
        assert args.tensor_model_parallel_size > 1
    if args.recompute_granularity == "full":
        assert args.recompute_method is not None
        assert args.recompute_num_layers >= 1
    if args.overlap_moe_expert_parallel_comm:
        assert args.expert_model_parallel_size > 1
        chunked = args.num_layers_per_virtual_pipeline_stage or args.pipeline_model_parallel_layout
        assert args.pipeline_model_parallel_size == 1 or chunked
        assert args.recompute_granularity != "full"
    return args


@pytest.mark.parametrize(
    ("framework", "others"),
    [("torchtitan", "selective|ulysses"), ("deepspeed", "tp|pp|ring"), ("accelerate", "tp|cp")],
)
def test_a_framework_is_given_what_it_runs(framework: str, others: str) -> None:
    given = {"model": "llama-3-8b", "cluster": "8xH100", "global_batch": 64, "limit": 99}
    free = advise(**given).document["candidates"]  # type: ignore[arg-type]
    told = advise(**given, framework=framework).document  # type: ignore[arg-type]
    assert set(told["commands"]) == {framework}
    assert 0 < len(told["candidates"]) <= len(free)
    assert not any(re.search(others, entry["name"]) for entry in told["candidates"])
    assert framework in told["assumptions"][0]
    with pytest.raises(UsageError, match="none of"):
        advise(**given, framework="other")  # type: ignore[arg-type]


def test_overlapped_all_to_alls_leave_no_layer_to_repeat() -> None:
    question = Question(PRESETS["qwen3-30b-a3b"], cluster_of("2x8xH100"), 256, Rates())
    own = Layout(16, expert=8, zero=1, overlap=True, recompute=SELECTIVE)
    assert question.allows(own)
    assert not any(question.allows(replace(own, recompute=kind)) for kind in (FULL, SQRT))
    assert "megatron" not in commands(question.model, replace(own, recompute=FULL), stages_of(question.model, own), 256)


def test_a_host_that_launches_kernels_pays_for_each_model_chunk() -> None:
    """As long as for two layers of experts: a stage of 12 layers in four chunks takes as long as 20, in one 14."""
    model = PRESETS["qwen3-235b-a22b"]

    def compute(cluster: str, chunks: int) -> float:
        own = Layout(32, pipeline=8, expert=8, zero=1, chunks=chunks)
        return estimate(model, cluster_of(cluster), own, 8192, Rates(), "fp8").compute

    assert compute("32x8xB200", 4) / compute("32x8xB200", 1) == pytest.approx(19.75 / 13.75, rel=0.02)
    assert compute("4x64xGB200", 4) == pytest.approx(compute("4x64xGB200", 1), rel=0.05)


@pytest.mark.parametrize(
    ("name", "own", "precision"),
    [
        ("llama-3-70b", Layout(16, 4, 2, zero=1, recompute=SELECTIVE), "bf16"),
        ("llama-3-70b", Layout(16, 8, zero=3, recompute=FULL), "fp8"),
        ("llama-3-70b", Layout(4, 8, 4, zero=1, chunks=2, recompute=SQRT), "fp4"),
        ("deepseek-v3", Layout(64, pipeline=2, expert=32, zero=1, chunks=2, recompute=SELECTIVE, overlap=True), "fp8"),
        ("llama-3-8b", Layout(128, zero=2), "bf16"),
        ("llama-3-70b", Layout(16, 4, 2, zero=1, gradients=2), "bf16"),
    ],
)
def test_the_commands_run_the_plan(name: str, own: Layout, precision: str) -> None:
    model = PRESETS[name]
    told = commands(model, own, stages_of(model, own), 1024, precision)
    args = megatron(told["megatron"])
    assert (args.fp8_format is not None, args.fp4_format is not None) == (precision == "fp8", precision == "fp4")
    assert (args.recompute_granularity == "full") == (own.recompute in (FULL, SQRT))
    assert args.grad_reduce_in_bf16 == (own.gradients == 2)
    assert "mlp" not in args.recompute_modules
    assert ("mla_up_proj" in args.recompute_modules) == (own.recompute == SELECTIVE and model.kv_rank > 0)
    if own.recompute == SQRT:
        assert args.recompute_num_layers == 5  # of 20 layers
    if "torchtitan" in told:
        assert told["torchtitan"].endswith(f"activation_checkpoint:{own.recompute}")
        assert own.recompute != SELECTIVE  # torchtitan's repeats every second product
    assert ("deepspeed" in told) == (own.tensor * own.pipeline * own.expert == 1)
    if "accelerate" in told:
        config = json.loads(told["accelerate"])
        assert config["fsdp_config"]["fsdp_reshard_after_forward"] == (own.zero == 3)


def test_a_third_of_the_published_rows_is_never_fitted() -> None:
    rows = list(published())
    assert {row.source for row in rows} == set(SOURCES)
    assert len(rows) >= 40
    assert sum(row.held_out for row in rows) >= len(rows) / 3
    rates = [row.tokens for row in rows if row.tokens]
    assert len(rates) >= len(rows) - 1


def test_a_link_fitted_to_one_measured_set_ranks_another() -> None:
    """The preferred layout is in the best third, or of two the better one, for most pairs of sets."""
    path = ROOT.parent / "shared" / "planning" / "measured-layouts.csv"
    if not path.is_file():
        pytest.skip("no ../shared/planning beside this checkout")
    places = [(int(place), int(of)) for *_, text in table(path) for place, of in [text.split(" of ")]]
    assert sum(place == 1 or place <= of / 3 for place, of in places) >= 0.75 * len(places)
