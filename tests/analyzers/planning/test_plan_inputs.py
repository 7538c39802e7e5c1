"""A model and a cluster by name, by parts and by file: every field is read, every wrong one named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpuscope.analyzers.planning.advising import advise
from gpuscope.analyzers.planning.cluster import Cluster, ClusterFile, cluster_of
from gpuscope.analyzers.planning.compute_time import speed_of
from gpuscope.analyzers.planning.plan import _host
from gpuscope.analyzers.planning.plan_memory import Rates
from gpuscope.analyzers.planning.transformer import PRESETS, Model, model_named
from gpuscope.errors import GpuscopeError, InputError, UsageError

MODEL: dict[str, object] = {
    "layers": 4,
    "width": 64,
    "heads": 4,
    "ffn": 128,
    "vocabulary": 100,
    "sequence": 32,
    "kv_heads": 2,
    "head_width": 16,
    "gated": True,
    "tied": True,
    "experts": 8,
    "experts_per_token": 2,
    "expert_ffn": 32,
    "shared_experts": 1,
    "expert_hosts": 2,
    "dense_layers": 1,
    "q_rank": 24,
    "kv_rank": 16,
    "rope_width": 8,
    "value_width": 16,
}
CLUSTER = {
    "gpu": "Mine",
    "gpus_per_host": 4,
    "hosts": 2,
    "memory_gb": 64.0,
    "usable_frac": 0.8,
    "bf16_tflops": 300.0,
    "fp8_tflops": 600.0,
    "fp4_tflops": 1200.0,
    "memory_gbps": 2000.0,
    "cuda_graphs": True,
    "oversubscription": 2.0,
    "leaf_hosts": 1,
    "nvlink_domain": 4,
    "host_cores": 64,
    "pcie_lanes": 16,
    "inside": "pcie5",
    "inside_gbps": 100.0,
    "network": "ib_ndr",
    "network_gbit": 200.0,
    "ports": 2,
    "power_w": 500.0,
    "power_limit_w": 400.0,
    "pue": 1.2,
    "gpu_hour_price": 2.0,
    "gpu_mtbf_hours": 10_000.0,
    "restart_minutes": 5.0,
    "checkpoint_gbps": 4.0,
    "host_memory_gb": 512.0,
    "host_link_gbps": 20.0,
    "nvme_gbps": 10.0,
}


def write(path: Path, values: dict[str, object]) -> str:
    if path.suffix == ".json":
        path.write_text(json.dumps(values))
    else:
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return str(path)


def test_the_files_here_have_every_field() -> None:
    assert set(MODEL) == {field.name for field in fields(Model)}
    assert set(CLUSTER) == {field.name for field in fields(ClusterFile)}


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_every_field_of_a_file_is_read(tmp_path: Path, suffix: str) -> None:
    model = model_named(write(tmp_path / f"model{suffix}", MODEL))
    assert {name: getattr(model, name) for name in MODEL} == MODEL
    cluster = cluster_of(write(tmp_path / f"cluster{suffix}", CLUSTER))
    assert (cluster.gpus, cluster.memory, cluster.usable) == (8, 64 * 10**9, 0.8 * 64e9)
    assert cluster.peaks == {"bf16": 3e14, "fp8": 6e14, "fp4": 1.2e15}
    assert (cluster.memory_bandwidth, cluster.launched_singly) == (2e12, False)
    assert (cluster.host_cores, cluster.pcie_lanes) == (64, 16)
    assert not any(rule["applies"] for rule in _host(cluster))
    poor = _host(replace(cluster, host_cores=8, pcie_lanes=8, host_memory=10**9, ports=1))
    assert [(rule["host"], rule["applies"]) for rule in poor] == 4 * [(True, True)]
    assert (cluster.port_over(1), cluster.port_over(2)) == (cluster.port_gbps, cluster.port_gbps / 2)
    assert (cluster.inside.usable, cluster.port_gbps) == (100.0, 200 / 8 * 0.96 * 2 / 4)
    assert (cluster.power_w, cluster.pue, cluster.gpu_hour_price) == (500, 1.2, 2)
    assert (cluster.gpu_mtbf_hours, cluster.restart_minutes, cluster.checkpoint_gbps) == (10_000, 5, 4)
    assert (cluster.host_memory, cluster.host_link_gbps, cluster.nvme_gbps) == (512 * 10**9, 20, 10)


def test_figures_behind_a_spec() -> None:
    """Half the power leaves half the third root of the clock, for products and attention alike."""
    plain, held = cluster_of("2x8xH100"), cluster_of("2x8xH100,memory_gb=96,power_limit_w=350,cuda_graphs=1")
    assert (held.gpus, held.memory, held.launched_singly) == (16, 96 * 10**9, False)
    assert held.clock == pytest.approx(0.5 ** (1 / 3))
    for one, other in zip(speeds(plain), speeds(held), strict=True):
        assert other == pytest.approx(held.clock * one)
    for wrong in ("memory=96", "hosts=2", "ports=many", "memory_gb", "memory_gb=-1", "ports=0"):
        with pytest.raises(UsageError, match=wrong.partition("=")[0]):
            cluster_of(f"8xH100,{wrong}")


def speeds(cluster: Cluster) -> tuple[float, ...]:
    found = speed_of(cluster, Rates(), "fp8")
    return found.product, found.plain, found.attention


def test_a_plan_for_files(tmp_path: Path) -> None:
    told = advise(write(tmp_path / "m.toml", MODEL), write(tmp_path / "c.json", CLUSTER), global_batch=64).document
    best, cost = told["candidates"][0], told["cost"]
    assert best["data"] * best["tensor"] * best["pipeline"] == 8
    assert cost is not None
    assert cost["price"] == pytest.approx(2 * cost["gpu_hours"])
    assert cost["joules"] == pytest.approx(cost["gpu_hours"] * 3600 * 500 * 1.2)


@pytest.mark.parametrize("name", MODEL)
def test_a_wrong_field_of_a_model_is_named(tmp_path: Path, name: str) -> None:
    for wrong in ("many", -1, 1.5, [1]):
        with pytest.raises(InputError, match=name):
            model_named(write(tmp_path / "model.json", {**MODEL, name: wrong}))


@pytest.mark.parametrize("name", CLUSTER)
def test_a_wrong_field_of_a_cluster_is_named(tmp_path: Path, name: str) -> None:
    wrongs: tuple[object, ...] = (7, [1]) if name in ("gpu", "inside", "network") else ("many", -1, [1])
    for wrong in wrongs:
        with pytest.raises(InputError, match=name):
            cluster_of(write(tmp_path / "cluster.json", {**CLUSTER, name: wrong}))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda path: model_named(write(path / "m.toml", {**MODEL, "layer": 3})), "did you mean 'layers'"),
        (lambda path: model_named(write(path / "m.toml", {"layers": 3})), "lacks width, heads"),
        (lambda path: model_named(str(path / "absent.toml")), "No such file"),
        (lambda path: cluster_of(write(path / "c.toml", {"gpu": "Mine", "gpus_per_host": 2})), "memory_gb and bf16"),
        (lambda path: cluster_of(write(path / "c.toml", {"gpus_per_host": 2})), "lacks gpu"),
        (lambda path: cluster_of(write(path / "c.toml", {**CLUSTER, "usable_frac": 1.5})), "usable_frac=1.5"),
    ],
)
def test_wrong_files(tmp_path: Path, wrong: Callable[[Path], object], says: str) -> None:
    with pytest.raises(GpuscopeError) as caught:
        wrong(tmp_path)
    assert says in str(caught.value)


def test_a_file_that_is_neither_toml_nor_an_object(tmp_path: Path) -> None:
    broken, listed = tmp_path / "broken.toml", tmp_path / "listed.json"
    broken.write_text("layers = = 3")
    listed.write_text("[1]")
    with pytest.raises(InputError, match="is not TOML"):
        model_named(str(broken))
    with pytest.raises(InputError, match="no named values"):
        cluster_of(str(listed))


def test_the_configuration_of_transformers(tmp_path: Path) -> None:
    """Mixtral's and DeepSeek-V3's `config.json`, less what says nothing of the shape."""
    mixtral = {
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
        "rope_theta": 1000000.0,
    }
    assert model_named(write(tmp_path / "config.json", mixtral)) == PRESETS["mixtral-8x7b"]
    deepseek = {
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "max_position_embeddings": 4096,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "tie_word_embeddings": False,
    }
    found = model_named(write(tmp_path / "deepseek.json", deepseek))
    assert found.parameters == PRESETS["deepseek-v3"].parameters


def test_names_as_people_write_them() -> None:
    for written, known in (
        ("llama-3-405b", "llama-3.1-405b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("DeepSeek_V3", "deepseek-v3"),
    ):
        assert model_named(written) == PRESETS[known]
    for written in ("8x4090", "8xRTX4090", "8xRTX-4090", "8xGeForce RTX 4090"):
        assert cluster_of(written).peaks == cluster_of("8xRTX 4090").peaks
    whole, part = cluster_of("1xH100"), cluster_of("1xH100-MIG-3g.40gb")
    assert part.peaks["bf16"] == pytest.approx(3 / 7 * whole.peaks["bf16"])
    assert (part.memory, part.memory_bandwidth) == (whole.memory // 2, whole.memory_bandwidth / 2)


def test_hosts_that_nvlink_joins_are_one(tmp_path: Path) -> None:
    """18 hosts of 4 GPUs in a rack: its 72 GPUs are taken for one host, with the ports of all."""
    values = {"gpu": "GB200", "gpus_per_host": 4, "hosts": 36, "ports": 4, "nvlink_domain": 72}
    cluster = cluster_of(write(tmp_path / "racks.toml", values))
    assert (cluster.hosts, cluster.gpus_per_host, cluster.ports) == (2, 72, 72)
    with pytest.raises(InputError, match="nvlink_domain=70"):
        cluster_of(write(tmp_path / "racks.toml", {**values, "nvlink_domain": 70}))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: cluster_of("2xH100-MIG-3g.40gb"),
        lambda: cluster_of("1xH100-MIG-9g.40gb"),
        lambda: cluster_of("H100"),
        lambda: cluster_of("8xH99"),
        lambda: cluster_of("0x8xH100"),
        lambda: cluster_of("2x8xL40S"),  # nobody knows what joins the hosts
        lambda: model_named("llama-99"),
        lambda: model_named("layers=2,width=8"),
        lambda: model_named("llama-3-8b,heads=7"),
        lambda: model_named("llama-3-8b,layers=0"),
        lambda: advise("gpt2-xl,layers=5", "7xA100", global_batch=3),  # 3 sequences on 7 GPUs
        lambda: advise("gpt2-xl", "8xA100", precision="fp8"),  # it has none
        lambda: advise("gpt2-xl", "8xA100", precision="fp4"),
        lambda: advise("gpt2-xl", "8xA100", global_batch=8, tokens=8192),
        lambda: advise("gpt2-xl"),
        lambda: advise("gpt2-xl", "8xA100", layout="tp=2"),
    ],
)
def test_wrong_use(wrong: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        wrong()
