"""Memory, volume and bubble against the papers' own figures; the choice against what they recommend."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest
from helpers.cli import call

from gpuscope.analyzers.planning.candidates import layouts
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.layout import Layout, activations, bubble, layer_activations, memory, volume
from gpuscope.analyzers.planning.plan import plan
from gpuscope.analyzers.planning.transformer import PRESETS, Model, model_named
from gpuscope.errors import UsageError
from gpuscope.report.schema.plan_document import Plan

FLAT = Model(layers=64, width=3072, heads=32, ffn=12288, vocabulary=1000, sequence=1024, tied=True)
"""About 7.25e9 parameters, next to all of them in layers."""


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-2-7b", 6.74), ("llama-2-70b", 68.98), ("llama-3-8b", 8.03), ("llama-3-70b", 70.55),
     ("llama-3.1-405b", 405.85), ("mixtral-8x7b", 46.70)],
)  # fmt: skip
def test_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert PRESETS[name].parameters / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.parametrize(("zero", "per_weight"), [(0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_model_states_as_in_the_zero_paper(zero: int, per_weight: float) -> None:
    """Its figure 1: 7.5e9 weights on 64 ranks take 120, 31.4, 16.6 and 1.9 GB: 16, 4.19, 2.22 and 0.25 bytes each.
    ZeRO-3 also holds two gathered layers."""
    needs = memory(FLAT, Layout(data=64, zero=zero), batch=64)
    gathered = 2 * 2 * FLAT.layer if zero == 3 else 0
    states = needs["parameters"] + needs["gradients"] + needs["optimizer"] - gathered
    assert states / FLAT.parameters == pytest.approx(per_weight, rel=1e-5)


def test_activations_as_korthikanti_counts_them() -> None:
    """GPT-3, one sequence of 2048, tensor and sequence parallel over 8: 34·s·b·h / 8 less two dropout masks of one
    byte, 32 · 2048 · 12288 / 8 bytes a layer; the first of 8 stages keeps 8 micro-batches of 12 layers."""
    gpt = PRESETS["gpt3-175b"]
    own = Layout(data=1, tensor=8, pipeline=8)
    assert layer_activations(gpt, own) == 32 * 2048 * 12288 / 8
    assert activations(gpt, own, batch=64) == 96 * 32 * 2048 * 12288 / 8
    # Recomputed, a layer keeps its input of 2 bytes; one layer is worked on.
    recomputed = activations(gpt, replace(own, recompute=True), batch=64)
    assert recomputed == 96 * 2 * 2048 * 12288 / 8 + 32 * 2048 * 12288 / 8


def test_bubble_of_1f1b() -> None:
    """4 stages and 12 micro-batches: 3 of 15 slots are empty."""
    assert bubble(Layout(data=1, pipeline=4), batch=12) == 3 / 15
    assert bubble(Layout(data=8), batch=64) == 0


def test_volume_of_data_parallelism() -> None:
    """2Ψ for an all-reduce, as with ZeRO-1; 3Ψ with ZeRO-3; of 64 ranks each sends 63/64; two bytes each."""
    sent = {zero: volume(FLAT, Layout(data=64, zero=zero), batch=64)["data"] for zero in (0, 1, 3)}
    one = 2 * FLAT.parameters * 63 / 64
    assert sent == pytest.approx({0: 2 * one, 1: 2 * one, 3: 3 * one}, rel=1e-5)


def test_volume_of_tensor_parallelism() -> None:
    """Four all-reduces a layer of s·b·h activations in bf16, each sending 2·(7/8) of them."""
    sent = volume(FLAT, Layout(data=1, tensor=8), batch=1)["tensor"]
    assert sent == 64 * 4 * 2 * (7 / 8) * 2 * 1024 * 3072


def test_layouts_use_every_gpu_and_divide_what_they_must() -> None:
    model, cluster = PRESETS["mixtral-8x7b"], cluster_of("4x8xH100")
    found = list(layouts(model, cluster, batch=512))
    assert found
    for own in found:
        assert own.data * own.tensor * own.pipeline * own.context == 32
        assert (own.tensor <= 8, model.layers % own.pipeline, 512 % (own.data * own.micro_batch)) == (True, 0, 0)
        assert (model.experts % own.expert, own.data % own.expert) == (0, 0)
        assert own.pipeline == 1 or own.zero <= 1


def made(name: str, spec: str, batch: int = 512) -> Plan:
    return plan(PRESETS[name], name, cluster_of(spec), batch, 5)


def test_a_small_model_is_only_replicated() -> None:
    best = made("gpt2-xl", "8xA100")["candidates"][0]
    assert (best["data"], best["zero"], best["recompute"]) == (8, 0, False)


def test_a_model_whose_states_exceed_a_gpu_is_divided() -> None:
    """Llama 3 8B: 128 GB of states. Every candidate divides them, and fits 90 % of 80 GB."""
    told = made("llama-3-8b", "8xH100")
    assert all(entry["zero"] or entry["tensor"] * entry["pipeline"] > 1 for entry in told["candidates"])
    assert all(sum(entry["memory_bytes"].values()) <= 72e9 for entry in told["candidates"])


def test_tensor_parallelism_stays_inside_the_host() -> None:
    told = made("llama-3-70b", "16x8xH100")
    assert 1 < told["candidates"][0]["tensor"] <= 8
    assert told["placement"][0].startswith("tensor parallelism over")
    assert next(rule for rule in told["rules"] if "tensor" in rule["rule"])["applies"]


def test_what_fits_nowhere_is_said() -> None:
    """405e9 · 16 bytes on 8 · 72 GB."""
    told = made("llama-3.1-405b", "8xH100")
    assert (told["feasible"], told["candidates"]) == (0, [])


def test_a_slower_network_costs() -> None:
    fast, slow = (
        plan(PRESETS["llama-3-8b"], "m", cluster_of("4x8xH100", network), 512, 1)["candidates"][0]["estimate_ns"]
        for network in ("ib_ndr", "ethernet_10")
    )
    assert slow > fast


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: cluster_of("H100"),
        lambda: cluster_of("8xH99"),
        lambda: cluster_of("2x8xL40S"),  # nobody knows what joins the hosts
        lambda: model_named("llama-99"),
        lambda: model_named("layers=2,width=8"),
        lambda: model_named("llama-3-8b,heads=7"),
        lambda: plan(PRESETS["gpt2-xl"], "m", cluster_of("7xA100"), 3, 1),  # 3 sequences on 7 GPUs
    ],
)
def test_wrong_use(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError):
        wrong()


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("advise", "--model", "llama-3-8b,layers=16", "--cluster", "8xH100")
    text, document = call(capsys, *args).stdout, json.loads(call(capsys, *args, "--json").stdout)
    assert text.startswith(document["candidates"][0]["name"])
    assert set(document) == set(get_type_hints(Plan))


def test_every_key_is_documented_and_no_other() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "planning.md").read_text(encoding="utf-8")
    documented = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    named: set[str] = set()
    for key, kind in get_type_hints(Plan).items():
        inner = kind.__args__[0] if hasattr(kind, "__args__") else kind
        below = get_type_hints(inner) if hasattr(inner, "__annotations__") else {}
        marks = "[]" if hasattr(kind, "__args__") else ""
        named |= {key} | {f"{key}{marks}.{name}" for name in below}
    assert documented == named
