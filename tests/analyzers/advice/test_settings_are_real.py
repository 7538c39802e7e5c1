"""Every setting that a rule can propose is one that the real library takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import pytest
from helpers.advice import finding, report, steady

from gpuscope.analyzers.advice.rule import Case, rules
from gpuscope.analyzers.changes import Refused
from gpuscope.catalogue.cause_table import NAMED
from gpuscope.schema.document import Setting

torch = pytest.importorskip("torch")


def proposed(*frameworks: str, cpu: bool = False) -> Iterator[Setting]:
    """All settings of all rules for a job of these frameworks."""
    asked = report(frameworks=frameworks)
    asked = steady(asked, 1, 2)
    asked["ranks"][0]["device"] = None if cpu else 0
    case = Case(asked, lambda _: Refused("a test"))
    for rule in rules():
        for code in rule.answers & {*NAMED, "out_of_memory"} if rule.name != "memory" else ():
            yield from (proposal.setting for proposal in rule.propose(case, finding(code)))


def values(name: str, frameworks: Sequence[str]) -> list[str]:
    return [setting["value"] for setting in proposed(*frameworks) if setting["name"] == name]


def test_ddp_takes_its_bucket_sizes() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sizes = values("DistributedDataParallel.bucket_cap_mb", ["ddp"])
        assert len(set(sizes)) >= 4
        for size in sizes:
            DistributedDataParallel(torch.nn.Linear(2, 2), bucket_cap_mb=eval(size))
        for hook in {
            s["value"] for cpu in (True, False) for s in proposed("ddp", cpu=cpu) if s["name"].endswith("comm_hook")
        }:
            state, function = _hook(hook)
            if "bf16" in hook and not torch.cuda.is_available():
                continue  # DDP asks NCCL for it
            DistributedDataParallel(torch.nn.Linear(2, 2)).register_comm_hook(state, function)
    finally:
        dist.destroy_process_group()


def _hook(value: str) -> tuple[object, object]:
    import importlib

    if "PowerSGDState" in value:
        importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
        state, function = eval(value, {"torch": torch})
        return state, function
    path = value.removeprefix("(None, ").removesuffix(")")
    module, _, name = path.rpartition(".")
    return None, getattr(importlib.import_module(module), name)


def test_the_loader_takes_its_workers() -> None:
    from torch.utils.data import DataLoader

    numbers = values("DataLoader.num_workers", [])
    assert numbers
    for number in numbers:
        loader = DataLoader([1, 2], num_workers=int(number), persistent_workers=True, prefetch_factor=2)
        assert loader.num_workers == int(number)
    assert "True" in values("DataLoader.pin_memory", [])
    assert "pin_memory" in inspect.signature(DataLoader).parameters


def test_fsdp_has_what_is_proposed() -> None:
    from torch.distributed import fsdp

    names = {setting["name"] for setting in proposed("fsdp2")} | {setting["name"] for setting in proposed("fsdp")}
    ours = {name for name in names if name.startswith(("fully_shard", "FSDPModule", "FullyShardedDataParallel"))}
    assert len(ours) >= 6
    for name in ours:
        owner, _, member = name.partition(".")
        target = getattr(fsdp, owner)
        assert not member or hasattr(target, member) or member in inspect.signature(target).parameters
    assert fsdp.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    assert fsdp.ShardingStrategy.SHARD_GRAD_OP
    assert fsdp.CPUOffloadPolicy()


def test_transformers_has_its_arguments() -> None:
    transformers = pytest.importorskip("transformers")
    fields = inspect.signature(transformers.TrainingArguments).parameters
    names = {s["name"] for s in proposed("transformers", "ddp") if s["name"].startswith("TrainingArguments.")}
    assert names
    assert all(name.partition(".")[2] in fields for name in names)


def test_pipeline_schedules_exist() -> None:
    from torch.distributed.pipelining import schedules

    names = values("torch.distributed.pipelining", [])
    assert len(names) == 3
    for name in names:
        assert "n_microbatches" in inspect.signature(getattr(schedules, name)).parameters
    for name in values("parallelism.pipeline_parallel_schedule", ["torchtitan"]):
        assert schedules.get_schedule_class(name)
    assert values("pipelining schedule.n_microbatches", [])


def test_compile_and_checkpoint_have_what_is_proposed() -> None:
    import torch.distributed.checkpoint as dcp

    assert [eval(mode) for mode in values("torch.compile.mode", [])] == ["reduce-overhead"]
    assert "mode" in inspect.signature(torch.compile).parameters
    assert values("torch.utils.checkpoint.checkpoint.use_reentrant", []) == ["False"]
    assert "use_reentrant" in inspect.signature(torch.utils.checkpoint.checkpoint).parameters
    assert callable(dcp.async_save)
