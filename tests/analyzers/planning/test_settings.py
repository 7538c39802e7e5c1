"""Files of DeepSpeed, torchtitan and Accelerate: written, read back, and held against the frameworks' own parsers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from gpuscope.analyzers.commands.advise import command
from gpuscope.analyzers.planning import deepspeed, torchtitan
from gpuscope.analyzers.planning.advising import advise, setup_of, values_of
from gpuscope.analyzers.planning.plan_memory import CPU, FULL, SELECTIVE, ULYSSES, Layout
from gpuscope.analyzers.planning.step_estimate import stages_of
from gpuscope.analyzers.planning.torchtitan import commands
from gpuscope.analyzers.planning.transformer import PRESETS
from gpuscope.errors import InputError

BATCH = 512
LAYOUTS = (
    ("llama-3-8b", "bf16", Layout(8, zero=2, micro_batch=2)),
    ("llama-3-8b", "bf16", Layout(8, zero=3, micro_batch=4, recompute=FULL)),
    ("llama-3-8b", "bf16", Layout(16, zero=3, shard=8, recompute=FULL)),
    ("llama-3-8b", "bf16", Layout(4, context=2, exchange=ULYSSES, zero=2)),
    ("llama-3-8b", "bf16", Layout(8, zero=2, offload=CPU)),
    ("llama-3-8b", "bf16", Layout(16, zero=3, secondary=8, gradients=2)),
    ("llama-3-70b", "bf16", Layout(2, 8, 4, zero=1, chunks=2, recompute=SELECTIVE)),
    ("llama-3-70b", "bf16", Layout(2, 4, 8, zero=1, chunks=5, recompute=FULL)),
    ("llama-3-70b", "bf16", Layout(4, 4, context=2, zero=3, recompute=FULL, repeated=0.5)),
    ("llama-3.1-405b", "fp8", Layout(2, 8, 16, zero=1, chunks=4, recompute=FULL, repeated=0.5)),
    ("deepseek-v3", "fp8", Layout(64, 1, 4, expert=64, zero=1, chunks=2, recompute=FULL)),
    ("mixtral-8x7b", "bf16", Layout(16, expert=8, zero=3, recompute=FULL, repeated=0.5)),
)


def told(framework: str) -> list[tuple[str, str, Layout, str]]:
    """What is printed for the layouts that a framework can do."""
    found = []
    for name, precision, own in LAYOUTS:
        model = PRESETS[name]
        text = commands(model, own, stages_of(model, own), BATCH, precision).get(framework)
        if text:
            found.append((name, precision, own, text))
    return found


def as_file(framework: str, text: str) -> str:
    """Options of torchtitan as the JSON that it saves, with the mode of recomputation; other texts are files."""
    if framework != "torchtitan":
        return text
    nested: dict[str, dict[str, object]] = {}
    words = text.split()
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--") and "." in word:
            part, key = word[2:].split(".")
            number = value.removeprefix("-").isdecimal()
            nested.setdefault(part, {})[key] = True if value[:2] in ("--", "") else int(value) if number else value
        elif ":" in word:
            part, mode = word.split(":")
            nested[part] = {"mode": mode}
    return json.dumps(nested)


@pytest.mark.parametrize(("framework", "least"), [("deepspeed", 4), ("torchtitan", 7), ("accelerate", 3)])
def test_what_is_printed_is_read_back(framework: str, least: int, tmp_path: Path) -> None:
    found = told(framework)
    assert len(found) >= least
    for name, _, own, text in found:
        path = tmp_path / "config.json"
        path.write_text(as_file(framework, text))
        gpus = own.data * own.tensor * own.pipeline * own.context
        setup = setup_of(values_of(path), gpus, PRESETS[name])
        unsaid = {
            "deepspeed": {"recompute": own.recompute, "exchange": own.exchange},
            "torchtitan": {},
            "accelerate": {"micro_batch": own.micro_batch},
        }[framework]
        assert replace(setup.layout or own, **unsaid) == own  # type: ignore[arg-type]
        assert setup.layout is not None
        assert setup.batch == (None if framework == "accelerate" else BATCH)
        assert {remark["kind"] for remark in setup.remarks} <= {"assumed"}, setup.remarks


_PARSE = """
import json, sys
from torchtitan.config.manager import ConfigManager
found = []
for line in json.loads(sys.argv[1]):
    config = ConfigManager().parse_args(line)
    found.append([config.parallelism.tensor_parallel_degree, config.parallelism.pipeline_parallel_degree,
                  config.parallelism.expert_parallel_degree, config.training.global_batch_size,
                  type(config.activation_checkpoint).__qualname__])
print("FOUND" + json.dumps(found))
"""


@pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed")
def test_torchtitan_takes_its_options() -> None:
    """Its own configurations in FP8 need a GPU to be made: their bf16 siblings take the same options."""
    found = told("torchtitan")
    lines = []
    for *_, text in found:
        words = text.replace("_405b", "_70b").replace("_float8", "").split()
        lines.append([*(["--module", "qwen3", "--config", "qwen3_30b_a3b"] if words[0] != "--module" else ()), *words])
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, json.dumps(lines)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    policies = {0.0: "NoneType", 0.5: "SelectiveAC.Config", 1.0: "FullAC.Config"}
    assert json.loads(done.stdout.partition("FOUND")[2]) == [
        [own.tensor, own.pipeline, own.expert, BATCH, policies[own.again]] for _, _, own, _ in found
    ]


def test_deepspeed_takes_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    for _, _, own, text in told("deepspeed"):
        monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
        monkeypatch.setattr(config.dist, "get_world_size", lambda own=own: own.data * own.context)
        read = config.DeepSpeedConfig(json.loads(text))
        assert (read.zero_optimization_stage, read.train_micro_batch_size_per_gpu) == (own.zero, own.micro_batch)
        assert (read.zero_config.offload_optimizer is not None) == (own.offload == CPU)
        summed = None if own.gradients == 2 else "fp32"
        assert (read.grad_accum_dtype, read.communication_data_type) == (summed, summed and torch.float32)


def test_accelerate_takes_its_files(tmp_path: Path) -> None:
    config = pytest.importorskip("accelerate.commands.config.config_args")
    for _, _, own, text in told("accelerate"):
        path = tmp_path / "accelerate.json"
        path.write_text(text)
        read = config.load_config_from_file(str(path))
        assert (str(read.distributed_type.value), read.num_processes) == ("FSDP", own.data)


def test_settings_are_those_of_the_package() -> None:
    """Every key that is known here is one of torchtitan 0.3's, every one of its keys is known."""
    configs = pytest.importorskip("torchtitan.config.configs")
    parts = {"parallelism": configs.ParallelismConfig, "training": configs.TrainingConfig}
    assert {f"{part}.{field.name}" for part, kind in parts.items() for field in fields(kind)} == torchtitan.SETTINGS


def test_settings_of_zero_are_those_of_the_package() -> None:
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    known = {key.split(".")[1] for key in deepspeed.SETTINGS if key.startswith(f"{deepspeed.ZERO}.")}
    named = {field.alias or name for name, field in config.DeepSpeedZeroConfig.model_fields.items()}
    removed = {"mics_shard_size", "mics_hierarchical_params_gather"}
    assert named - {"zenflow", "leaf_module", "offload_param", "offload_optimizer"} <= known
    assert {key for key in known if not key.startswith("offload_")} - named <= removed


DS = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}


@pytest.mark.parametrize(
    ("suffix", "text", "kind", "key"),
    [
        (".json", json.dumps(DS | {"train_batch_size": 9}), "contradiction", "train_batch_size"),
        (
            ".json",
            json.dumps(DS | {"zero_optimization": {"stage": 3}, "pipeline": {"stages": 2}}),
            "contradiction",
            "zero_optimization.stage",
        ),
        (".json", json.dumps(DS | {"fp16": {"enabled": True}}), "contradiction", "fp16.enabled"),
        (".json", json.dumps(DS | {"sequence_parallel_size": 3}), "contradiction", "sequence_parallel_size"),
        (
            ".json",
            json.dumps(DS | {"activation_checkpointing": {"partition_activations": True}}),
            "no_effect",
            "activation_checkpointing.partition_activations",
        ),
        (
            ".json",
            json.dumps(DS | {"zero_optimization": {"reduce_bucket_size": 5e8}}),
            "no_effect",
            "zero_optimization.reduce_bucket_size",
        ),
        (".json", json.dumps(DS | {"zero_optimization": {"stage": 2}}), "slow", "zero_optimization.overlap_comm"),
        (".json", json.dumps(DS | {"zero_optimisation": {"stage": 2}}), "unknown", "zero_optimisation.stage"),
        (".json", json.dumps({"train_batch_size": "auto", "bf16": {"enabled": "auto"}}), "assumed", "train_batch_size"),
        (".toml", "[training]\nbatch_size = 1", "renamed", "training.batch_size"),
        (".toml", "[parallelism]\ntensor_parallel_degree = 3", "contradiction", "parallelism.tensor_parallel_degree"),
        (".toml", "[parallelism]\nexpert_parallel_degree = 2", "no_effect", "parallelism.expert_parallel_degree"),
        (
            ".toml",
            "[parallelism]\ndata_parallel_shard_degree = 4",
            "contradiction",
            "parallelism.data_parallel_shard_degree",
        ),
        (".toml", "[training]\nglobal_batch_size = 100", "contradiction", "training.global_batch_size"),
        (".toml", "[training]\nsequence = 100", "unknown", "training.sequence"),
        (
            ".toml",
            "[parallelism]\npipeline_parallel_schedule = 'ZBV'",
            "no_effect",
            "parallelism.pipeline_parallel_schedule",
        ),
        (
            ".json",
            '{"distributed_type": "FSDP", "use_parallelism_config": true}',
            "contradiction",
            "use_parallelism_config",
        ),
        (".json", '{"distributed_type": "MULTI_GPU", "fsdp_config": {"fsdp_version": 2}}', "no_effect", "fsdp_config"),
    ],
)
def test_what_is_wrong_is_said(suffix: str, text: str, kind: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / f"config{suffix}"
    path.write_text(text)
    setup = setup_of(values_of(path), 8, PRESETS["llama-3-8b"])
    assert (kind, key) in {(remark["kind"], remark["key"]) for remark in setup.remarks}


@pytest.mark.parametrize(
    ("suffix", "text", "said"),
    [
        (".json", "{", "is not JSON"),
        (".json", "[1]", "no named values"),
        (".json", '{"layers": 32}', "is no config"),
        (".json", '{"train_batch_size": "many"}', "train_batch_size = 'many' is not a whole number"),
        (".json", '{"train_batch_size": 1, "zero_optimization": {"stage": 4}}', "stage = 4 is not"),
        (".json", '{"train_batch_size": 1, "bf16": {"enabled": 1}}', "true or false"),
        (".toml", "[parallelism]\ntensor_parallel_degree = 0", "whole number from 1"),
        (".toml", "[activation_checkpoint]\nmode = 'some'\n[training]\nsteps = 1", "one of none, selective, full"),
        (".yaml", "a: [", "is not YAML"),
    ],
)
def test_bad_files_are_named(suffix: str, text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / f"config{suffix}"
    path.write_text(text)
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    with pytest.raises(InputError, match=rf"config\{suffix}.*{said}"):
        advise("llama-3-8b", "8xH100", config=path)


def test_a_file_beside_the_candidates(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    text = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\nglobal_batch_size = 64\n"
    path.write_text(text + "seq_len = 4096\n[activation_checkpoint]\nmode = 'full'")
    plan = advise(cluster="8xH100", config=path).document
    given, first = plan["given"], plan["candidates"][0]
    assert (plan["global_batch"], plan["sequence"], plan["model"]["name"]) == (64, 4096, "llama3-8B")
    assert given is not None
    assert given["entry"] is not None
    assert given["fits"]
    assert given["place"] is not None
    assert given["place"] > 1
    assert given["entry"]["estimate_ns"] > first["estimate_ns"]
    assert given["entry"]["recompute"] == "full"
    path.write_text(
        text.replace("local_batch_size = 1", "local_batch_size = 8") + "[activation_checkpoint]\nmode='none'"
    )
    large = CliRunner().invoke(command, ["--config", str(path), "--cluster", "8xH100"])
    assert "does not fit" in large.output
