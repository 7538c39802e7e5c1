"""Suggestions of reports as changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.analyzers.advice.rule import config, env, python, suggestions
from gpuscope.analyzers.advice.rules import staging_rules
from gpuscope.instrumented_runtime.record.applied import KNOBS, from_suggestion, in_environment, knob
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.suggested import _BY_CODE, _BY_SETTING
from gpuscope.schema.document import Setting

ROOT = Path(__file__).resolve().parents[4]
SAMPLES = ROOT / "sample_traces"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("setting", "code", "facts", "changes"),
    [
        (
            python("DistributedDataParallel.bucket_cap_mb", "50"),
            "bucket_size",
            {"bytes": 50 * MIB, "first_bytes": 50 * MIB},
            "ddp.bucket_cap_mb=50",
        ),
        (
            python("DistributedDataParallel.bucket_cap_mb", "None  # the default: 25 MiB"),
            "bucket_size",
            {"bytes": 25 * MIB, "first_bytes": MIB},
            "ddp.bucket_cap_mb=default",
        ),
        (
            python("DistributedDataParallel.bucket_cap_mb_list", "[1, 50]"),
            "bucket_size",
            {"bytes": 50 * MIB, "first_bytes": MIB},
            "ddp.bucket_cap_mb=1,50",
        ),
        (
            config("zero_optimization.reduce_bucket_size", "1000"),
            "bucket_size",
            {},
            "deepspeed.zero_optimization.reduce_bucket_size=1000",
        ),
        (config("--ddp-bucket-size", "1000"), "bucket_size", {}, "megatron.ddp-bucket-size=1000"),
        (env("HOROVOD_FUSION_THRESHOLD", "1000"), "bucket_size", {}, "env.HOROVOD_FUSION_THRESHOLD=1000"),
        (
            python("DataLoader.num_workers", "4"),
            "loader_workers",
            {"workers": 4},
            "dataloader.num_workers=4 dataloader.persistent_workers=true",
        ),
        (
            python("the workers of the data loader", "twice as many as now"),
            "loader_workers",
            {"times": 2.0},
            "dataloader.num_workers=x2",
        ),
        (config("--num-workers", "4"), "loader_workers", {"workers": 4}, "megatron.num-workers=4"),
        (config("--overlap-grad-reduce", ""), "overlap", {}, "megatron.overlap-grad-reduce=true"),
        (
            config("zero_optimization.overlap_comm", "true"),
            "overlap",
            {},
            "deepspeed.zero_optimization.overlap_comm=true",
        ),
        (
            python("gc", "gc.freeze(); gc.disable(); gc.collect(1) every 100 steps"),
            "manual_gc",
            {"steps": 100},
            "gc.mode=every:100",
        ),
        (
            config("--manual-gc --manual-gc-interval", "100"),
            "manual_gc",
            {"steps": 100},
            "megatron.manual-gc=true megatron.manual-gc-interval=100",
        ),
        (
            python("FSDPModule.set_modules_to_forward_prefetch", "the next 2 modules"),
            "fsdp_prefetch",
            {"modules": 2},
            "fsdp.forward_prefetch=2 fsdp.backward_prefetch=2",
        ),
        (
            python("FullyShardedDataParallel.sharding_strategy", "ShardingStrategy.SHARD_GRAD_OP"),
            "fsdp_keep_parameters",
            {},
            "fsdp.reshard_after_forward=false",
        ),
        (config("zero_optimization.stage", "2"), "fsdp_keep_parameters", {}, "deepspeed.zero_optimization.stage=2"),
        (
            python("FullyShardedDataParallel.sharding_strategy", "ShardingStrategy.HYBRID_SHARD"),
            "hybrid_shard",
            {},
            None,
        ),
        (staging_rules.names(cpu=True)["ddp"], "wire_bytes", {}, "ddp.comm_hook=fp16"),
        (staging_rules.names(cpu=False)["ddp"], "wire_bytes", {}, "ddp.comm_hook=bf16"),
        (staging_rules.names(cpu=False)["fsdp2"], "wire_bytes", {}, None),
        (staging_rules.names(cpu=False)["deepspeed"], "wire_bytes", {}, "deepspeed.communication_data_type=bf16"),
        (staging_rules.names(cpu=False)["megatron"], "wire_bytes", {}, "megatron.grad-reduce-in-bf16=true"),
        (
            python("DistributedDataParallel.register_comm_hook", "(…)"),
            "power_sgd",
            {"approximation_rank": 32},
            "ddp.comm_hook=powersgd:32",
        ),
        (python("torch.optim.SGD.fused", "True"), "fused_optimizer", {}, "optimizer.fused=true"),
        (python("torch.optim.NAdam.foreach", "True"), "foreach_optimizer", {}, "optimizer.foreach=true"),
        (python("torch.set_float32_matmul_precision", '"high"'), "tf32", {}, "torch.float32_matmul_precision=high"),
        (python("torch.compile.mode", '"reduce-overhead"'), "cuda_graphs", {}, "cuda_graphs=true"),
        (config("torchrun --numa-binding", "node"), "numa_binding", {}, "cpu.numa_bind=node"),
        (
            config("parallelism.pipeline_parallel_schedule", "Interleaved1F1B"),
            "pipeline_schedule",
            {},
            "torchtitan.parallelism.pipeline_parallel_schedule=Interleaved1F1B",
        ),
        (env("NCCL_ALGO", "allreduce:Tree"), "nccl_algorithm", {}, "env.NCCL_ALGO=allreduce:Tree"),
        (env("NCCL_P2P_DISABLE", "unset"), "nccl_transport", {}, "env.NCCL_P2P_DISABLE=unset"),
        (env("CUDA_MODULE_LOADING", "EAGER"), "module_loading", {}, "env.CUDA_MODULE_LOADING=EAGER"),
        (env("TORCHINDUCTOR_CACHE_DIR", "a folder that outlives the job"), "compile_cache", {}, None),
        (env("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING"), "nccl_log", {}, None),
        (env("XLA_PYTHON_CLIENT_ALLOCATOR", "unset"), "allocate_once", {}, None),
        (config("--micro-batch-size", "half of it"), "smaller_micro_batch", {}, None),
        (python("DistributedDataParallel.bucket_cap_mb", "50"), "bucket_size", {}, None),
        (python("batch size per rank", "twice as large"), "larger_batch", {}, None),
    ],
)
def test_changes_that_carry_out_a_suggestion(
    setting: Setting, code: str, facts: Mapping[str, Any], changes: str | None
) -> None:
    found = from_suggestion(setting, code, facts)
    assert found == ([Change.parse(one) for one in changes.split()] if changes is not None else None)


@pytest.mark.parametrize("sample", ["ddp_slow_loader", "ddp_healthy", "ddp_slow_rank"])
def test_suggestions_of_whole_reports_are_changes_that_may_be_asked_for(sample: str) -> None:
    report = gpuscope.analyze(SAMPLES / sample).report
    for one in [*report["suggestions"], *report["advice"]["unpredicted"]]:
        for change in from_suggestion(one["setting"], one["code"], one.get("facts", {})) or []:
            knob(change.name).check(change.value)


def test_the_slow_loader_of_the_samples_gets_workers() -> None:
    report = gpuscope.analyze(SAMPLES / "ddp_slow_loader").report
    (one,) = [one for one in report["suggestions"] if one["code"] == "loader_workers"]
    changes = from_suggestion(one["setting"], one["code"], one["facts"])
    assert changes is not None
    assert [change.name for change in changes] == ["dataloader.num_workers", "dataloader.persistent_workers"]


def test_settings_are_named_as_the_rules_name_them() -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "analyzers" / "advice").rglob("*.py"))
    assert [name for name in _BY_SETTING if f'"{name}"' not in rules] == []
    assert set(_BY_CODE) <= set(suggestions())


def test_facts_are_those_of_the_records() -> None:
    """What the mapping takes of a suggestion is declared there."""
    taken = {
        "bucket_size": {"bytes", "first_bytes"},
        "loader_workers": {"workers", "times"},
        "manual_gc": {"steps"},
        "fsdp_prefetch": {"modules"},
        "power_sgd": {"approximation_rank"},
    }
    for code, names in taken.items():
        assert names <= {name for record in suggestions()[code] for name in record.__dataclass_fields__}


def test_the_environment_of_the_command() -> None:
    given = {"PATH": "/bin", "NCCL_PROTO": "LL", "GPUSCOPE_CHANGES": "{}"}
    changes = [Change("env.NCCL_PROTO", "unset"), Change("cpu.threads", "4"), Change("megatron.manual-gc", "true")]
    assert in_environment(changes, given) == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "4",
        "GPUSCOPE_CHANGES": '{"env.NCCL_PROTO": "unset", "cpu.threads": "4"}',
    }
    assert in_environment([], given) == {"PATH": "/bin", "NCCL_PROTO": "LL"}


def test_every_knob_names_a_test_that_mentions_it() -> None:
    folder = Path(__file__).parent
    for one in KNOBS:
        name = one.name.removesuffix("NAME")
        assert name in (folder / one.shown_by).read_text(encoding="utf-8"), name
