"""Memory, messages and bubble against the papers' own figures; the choice against what they recommend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.analyzers.planning.advising import advise
from gpuscope.analyzers.planning.candidates import Question, beats, best_of_each, layouts, place, scored
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.plan import goodput
from gpuscope.analyzers.planning.plan_memory import (
    FULL,
    NO,
    SELECTIVE,
    SQRT,
    Layout,
    Rates,
    bubble,
    layer_activations,
    memory,
    split,
)
from gpuscope.analyzers.planning.step_estimate import SENDING_SHARE, Estimate, estimate, stages_of
from gpuscope.analyzers.planning.transformer import PRESETS, Model
from gpuscope.errors import UsageError
from gpuscope.schema.plan_document import Plan

FLAT = Model(layers=64, width=3072, heads=32, ffn=12288, vocabulary=1000, sequence=1024, tied=True)
"""About 7.25e9 parameters, next to all of them in layers."""


def took(model: Model, spec: str, layout: Layout, batch: int, network: str | None = None):  # type: ignore[no-untyped-def]
    return estimate(model, cluster_of(spec, network), layout, batch, Rates())


def needs(model: Model, layout: Layout, batch: int) -> dict[str, float]:
    return memory(model, layout, stages_of(model, layout), batch)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama-2-7b", 6.74, 6.74),
        ("llama-2-70b", 68.98, 68.98),
        ("llama-3-8b", 8.03, 8.03),
        ("llama-3-70b", 70.55, 70.55),
        ("llama-3.1-405b", 405.85, 405.85),
        ("mixtral-8x7b", 46.70, 12.88),
        ("mixtral-8x22b", 140.63, 39.16),
        ("deepseek-v3", 671.03, 37.55),
        ("nemotron-4-340b", 341.03, 341.03),
    ],
)
def test_parameters_are_the_published_ones(name: str, billions: float, active: float) -> None:
    model = PRESETS[name]
    ends = 2 * model.embedding
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.005)
    assert (model.layers * model.active + ends) / 1e9 == pytest.approx(active, abs=0.01)


@pytest.mark.parametrize(("zero", "per_weight"), [(0, 18), (1, 6 + 12 / 64), (2, 2 + 16 / 64), (3, 16 / 64)])
def test_model_states_as_megatron_counts_them(zero: int, per_weight: float) -> None:
    """Its `theoretical_memory_usage.py`: 18 bytes per weight, with the distributed optimizer 6 + 12 / ranks.
    ZeRO-3 divides the master weight, and holds the weights of two gathered layers and the gradient of one."""
    found = needs(FLAT, Layout(data=64, zero=zero), batch=64)
    gathered = 3 * 2 * FLAT.layer if zero == 3 else 0
    states = found["parameters"] + found["gradients"] + found["optimizer"] - gathered
    assert states / FLAT.parameters == pytest.approx(per_weight, rel=1e-5)


def test_hybrid_sharding_divides_inside_the_host_alone() -> None:
    found = needs(FLAT, Layout(data=64, zero=3, shard=8), batch=64)
    assert found["optimizer"] == pytest.approx(12 * (FLAT.layers * FLAT.layer + FLAT.embedding) / 8)


def test_activations_as_korthikanti_counts_them() -> None:
    """GPT-3, one sequence of 2048, tensor and sequence parallel over 8: 34·s·b·h / 8 less two dropout masks of one
    byte, 32 · 2048 · 12288 / 8 bytes a layer; the first of 8 stages keeps 8 micro-batches of 12 layers."""
    gpt = PRESETS["gpt3-175b"]
    own = Layout(data=1, tensor=8, pipeline=8)
    one = 32 * 2048 * 12288 / 8
    assert layer_activations(gpt, own) == one
    assert needs(gpt, own, batch=64)["activations"] == 96 * one
    # With v chunks per stage 1 + (p − 1) / (p·v) times as many.
    assert needs(gpt, replace(own, chunks=3), batch=64)["activations"] == pytest.approx(96 * one * (1 + 7 / 24))
    # Recomputed, a layer keeps its input of 2 bytes; one layer is worked on.
    recomputed = needs(gpt, replace(own, recompute=FULL), batch=64)["activations"]
    assert recomputed == 96 * 2 * 2048 * 12288 / 8 + one
    # Without the outputs of two norms: 32 − 2·2. In FP8 what products alone need is a byte: 32 − 7.
    assert layer_activations(gpt, replace(own, recompute=SELECTIVE)) == one * 28 / 32
    assert layer_activations(gpt, own, "fp8") == one * 25 / 32
    # Of 12 layers the inputs of 3 groups of 4 are kept, and what the 4 keep while they are computed again.
    grouped = needs(gpt, replace(own, recompute=SQRT), batch=64)["activations"]
    assert grouped == 3 * 8 * 2 * 2048 * 12288 / 8 + 4 * one


def test_bubble() -> None:
    """4 stages and 12 micro-batches: 3 of 15 slots are empty; with 2 chunks per stage 3 of 27."""
    assert bubble(Layout(data=1, pipeline=4), batch=12) == 3 / 15
    assert bubble(Layout(data=1, pipeline=4, chunks=2), batch=12) == 3 / 27
    assert bubble(Layout(data=8), batch=64) == 0
    # DualPipe: (4/2 − 1)(3F + 2F − 3F) = 2F beside 12 · 3F.
    assert bubble(Layout(data=1, pipeline=4, expert=2, overlap=True), batch=12) == 2 / 38


def test_stages_are_uneven_where_they_must_be() -> None:
    """Llama 3's 126 layers on 16 stages (arXiv:2407.21783, section 3.3.2: one fewer on the first and the last)."""
    assert split(126, 16, 1, 0.66).stages == (7, *(8,) * 14, 7)
    assert split(80, 8, 1, 0.0).stages == (10,) * 8
    assert sum(split(61, 16, 1, 1.5).stages) == 61
    assert max(split(126, 16, 6, 0.66).stages) == 8


def test_volume_of_data_parallelism() -> None:
    """Gradients of 4 bytes reduced and weights of 2 gathered, of which each of 64 ranks sends 63/64: 8Ψ for an
    all-reduce, 6Ψ with ZeRO-1, and with ZeRO-3 8Ψ: weights are gathered twice."""
    sent = {zero: took(FLAT, "8x8xH100", Layout(data=64, zero=zero), 64).sent["data"] for zero in (0, 1, 3)}
    one = FLAT.parameters * 63 / 64
    assert sent == pytest.approx({0: 8 * one, 1: 6 * one, 3: 8 * one}, rel=1e-3)


def test_recomputation_repeats_what_tensor_parallelism_sends() -> None:
    """Two all-gathers and two reduce-scatters a layer forward and backward, each sending 7/8 of s·b·h activations."""
    own = Layout(data=1, tensor=8)
    sent = took(FLAT, "8xH100", own, 1).sent["tensor"]
    assert sent == 64 * 8 * (7 / 8) * 2 * 1024 * 3072
    assert took(FLAT, "8xH100", replace(own, recompute=FULL), 1).sent["tensor"] == 1.5 * sent


def test_an_all_to_all_has_the_ports_of_its_own_gpu() -> None:
    """Of 64 ranks on 8 hosts with a 48 GB/s port each: 56 of the 63 others are on other hosts."""
    cluster = cluster_of("8x8xH100")
    assert cluster.all_to_all(64, 1) == pytest.approx(48 * 63 / 56)
    assert cluster.all_to_all(8, 1) == cluster.inside.usable
    assert cluster_of("8x8xH100", ports=4).all_to_all(64, 1) == pytest.approx(24 * 63 / 56)
    assert cluster.ring(64, 1) == cluster.inside.usable  # all 8 ports of a host serve one ring


def test_zero3_hides_behind_compute_where_the_link_is_quick_enough() -> None:
    model, own = PRESETS["llama-3-70b"], Layout(data=16, tensor=4, zero=3)
    fast, slow = (took(model, "8x8xA100", own, 512, network) for network in ("ib_hdr", "ethernet_100"))
    # Hidden messages still take their share of the multiprocessors.
    assert fast.exposed["data"] < (SENDING_SHARE + 0.05) * fast.in_flight["data"]
    assert slow.exposed["data"] > (SENDING_SHARE + 0.1) * slow.in_flight["data"]
    assert slow.seconds > 1.1 * fast.seconds


def test_parts_sum_to_the_step() -> None:
    own = Layout(data=8, tensor=4, pipeline=4, zero=1, chunks=2)
    found = took(PRESETS["llama-3-70b"], "16x8xH100", own, 512)
    assert found.seconds == pytest.approx(found.compute + found.bubble + sum(found.exposed.values()))


def test_layouts_use_every_gpu_and_divide_what_they_must() -> None:
    model, cluster = PRESETS["mixtral-8x7b"], cluster_of("4x8xH100")
    found = list(layouts(model, cluster, batch=512))
    assert found
    for own in found:
        assert own.data * own.tensor * own.pipeline * own.context == 32
        assert (own.tensor <= 8, own.pipeline <= model.layers, 512 % (own.data * own.micro_batch)) == (True, True, 0)
        assert (model.experts % own.expert, own.replicas * own.tensor % own.expert) == (0, 0)
        assert own.pipeline == 1 or own.zero <= 1


def made(name: str, spec: str, batch: int = 512, **more: object) -> Plan:
    return advise(name, spec, global_batch=batch, **more).document  # type: ignore[arg-type]


def test_a_small_model_is_only_replicated() -> None:
    best = made("gpt2-xl", "8xA100")["candidates"][0]
    assert (best["data"], best["zero"] <= 1, best["recompute"]) == (8, True, NO)


def test_a_model_whose_states_exceed_a_gpu_is_divided() -> None:
    """Llama 3 8B: 145 GB of states. Every candidate divides them, and fits 90 % of 80 GiB."""
    told = made("llama-3-8b", "8xH100")
    assert all(entry["zero"] or entry["tensor"] * entry["pipeline"] > 1 for entry in told["candidates"])
    assert all(sum(entry["memory_bytes"].values()) <= 0.9 * 80 * 2**30 for entry in told["candidates"])


def test_the_layout_of_llama_3_is_the_first_choice_of_those_with_whole_sequences() -> None:
    """arXiv:2407.21783, table 4: 16,384 H100, 16 Mi tokens of 8,192: TP 8, PP 16, DP 128, 41 % of the peak."""
    found = made("llama-3.1-405b", "2048x8xH100", batch=2048)["candidates"]
    best = next(one for one in found if one["context"] == 1)
    assert (best["tensor"], best["pipeline"], best["data"]) == (8, 16, 128)
    useful = 2.6254e12 * 2048 * 8192 / (16384 * 989.4e12)
    assert useful / (best["estimate_ns"] / 1e9) == pytest.approx(0.41, rel=0.2)


def test_tensor_parallelism_stays_inside_the_host() -> None:
    told = made("llama-3-70b", "16x8xH100")
    assert 1 < told["candidates"][0]["tensor"] <= 8
    assert told["placement"][0].startswith("tensor parallelism over")
    assert next(rule for rule in told["rules"] if "tensor" in rule["rule"])["applies"]


def test_infiniband_and_ethernet_lead_to_different_plans() -> None:
    plans = [made("llama-3-70b", "8x8xA100", network=network) for network in ("ib_hdr", "ethernet_100", "ethernet_25")]
    fast, middle, slow = (plan["candidates"][0] for plan in plans)
    assert fast["name"] != slow["name"]
    quickest = [min(entry["estimate_ns"] for entry in plan["candidates"]) for plan in plans]
    assert quickest[2] > 1.01 * quickest[0]
    quantised = made("llama-3-70b", "8x8xA100", network="ethernet_100", lossy=True, limit=50)["candidates"]
    assert any(entry["secondary"] > 1 for entry in quantised)
    assert quantised[0]["gradients"] == 2
    assert quantised[0]["estimate_ns"] < middle["estimate_ns"]


def test_what_fits_nowhere_is_said_with_what_is_nearest() -> None:
    told = made("llama-3.1-405b", "8xH100", batch=8)
    assert (told["feasible"], told["candidates"], told["commands"], told["sensitivity"]) == (0, [], {}, [])
    assert told["nearest"][0]["lacks_bytes"] > 0
    lacks = [entry["lacks_bytes"] for entry in told["nearest"]]
    assert lacks == sorted(lacks)


def test_the_optimizer_leaves_the_gpu_only_where_nothing_fits_otherwise() -> None:
    best = made("llama-3-8b", "4x4090", batch=64)["candidates"][0]
    assert best["offload"] == "cpu"
    assert all(entry["offload"] == NO for entry in made("gpt2-xl", "4x4090", batch=64)["candidates"])


def test_long_sequences_are_divided() -> None:
    best = made("llama-3-8b", "4x8xH100", batch=32, sequence=131072)["candidates"][0]
    assert best["context"] > 1
    assert best["exchange"] in ("ring", "ulysses")


def test_a_mixture_of_experts_whose_experts_do_not_fit_shares_them_out() -> None:
    best = made("deepseek-v3", "256x8xH800", batch=15360, precision="fp8")["candidates"][0]
    assert best["expert"] > 1
    assert best["pipeline"] > 1


@pytest.mark.parametrize("spec", ["4x4090", "8xMI300X", "72xGB200", "8xA100-40GB", "8xH800", "2x8xB300", "144xGB300"])
def test_clusters_of_the_table(spec: str) -> None:
    told = advise("gpt2-xl", spec, tokens=1024 * 144 * 4).document
    assert told["candidates"]
    assert told["cluster"]["usable_bytes"] < told["cluster"]["memory_bytes"]


def test_tokens_are_those_that_the_user_says() -> None:
    assert advise("llama-3-8b", "2x8xH100", tokens=16 * 8192 * 5).document["tokens"] == 16 * 8192 * 5
    assert advise("llama-3-8b", "1024x8xH100").document["tokens"] == 4 << 20
    with pytest.raises(UsageError, match="no whole number of sequences"):
        advise("llama-3-8b", "8xH100", tokens=10_000)


def test_sensitivity_compares_tokens_per_second() -> None:
    rows = {row["change"]: row for row in made("llama-3-70b", "8x8xA100")["sensitivity"]}
    assert rows["half the network"]["factor"] < 1 <= rows["twice the network"]["factor"]
    assert rows["a fifth more memory"]["factor"] >= rows["a fifth less memory"]["factor"]


def test_young_and_daly() -> None:
    """1,000 GPUs at 50,000 h each fail every 50 h; a checkpoint of 60 s: √(2 · 60 · 180000) = 4648 s, by Daly's higher
    terms less 60 and more by a few."""
    cluster = replace(cluster_of("125x8xH100"), gpu_mtbf_hours=50_000.0, restart_minutes=10.0, checkpoint_gbps=14.0)
    found = goodput(60e9, cluster)
    assert (found.mtbf, found.checkpoint) == (180_000, 60)
    assert found.interval == pytest.approx(4648 - 60 + 4648 * (60 / 360_000) ** 0.5 / 3, abs=1)
    assert found.frac == pytest.approx((1 - 60 / (found.interval + 60)) * (1 - (2354 + 600) / 180_000), rel=1e-3)


def test_candidates_go_before_others_by_what_they_do_not_share() -> None:
    question = Question(PRESETS["llama-3-8b"], cluster_of("2x8xH100"), 512, Rates())
    rows = scored(question)
    best = best_of_each(rows)
    assert all(row.lacks == 0 for row in best)
    order = [(place(row, best), row.layout.simplicity) for row in best]
    assert order == sorted(order)
    for one in best:
        assert place(one, [one]) == 1
        beaten = [other for other in best if beats(one, other)]
        assert all(one.estimate.seconds < other.estimate.seconds for other in beaten)
    quickest = min(rows, key=lambda row: row.estimate.seconds if row.lacks == 0 else float("inf"))
    assert place(best[0], [quickest]) == 1


def test_ties_are_by_what_two_estimates_do_not_share() -> None:
    """Half a second in ten: clear where only compute differs, not where the quicker one has five seconds of messages
    more to hide; that the slower one has them is no excuse for it."""
    one = Estimate(9.0, 0.0, {"data": 0.5}, 0.0, 0.0, {}, {"data": 0.5})
    slower, much = replace(one, compute=9.5), {"data": 5.5}
    assert one.beats(slower, 0.15)
    assert not slower.beats(one, 0.15)
    assert not replace(one, in_flight=much).beats(slower, 0.15)
    assert one.beats(replace(slower, in_flight=much), 0.15)


def test_gradients_in_bf16_take_half() -> None:
    own = Layout(data=64, zero=1)
    whole, half = needs(FLAT, own, 64), needs(FLAT, replace(own, gradients=2), 64)
    assert half["gradients"] == whole["gradients"] / 2
    sent = [took(FLAT, "8x8xH100", one, 64).sent["data"] for one in (own, replace(own, gradients=2))]
    assert sent[1] / sent[0] == pytest.approx(4 / 6)  # gradients and weights: 4 + 2 bytes, 2 + 2
    assert {one.gradients for one in layouts(FLAT, cluster_of("8xH100"), 64, lossy=True)} == {2}
