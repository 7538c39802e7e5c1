"""Which changes carry out a suggestion of a report, by its code, the name of its setting and its facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuscope.catalogue.suggestion import RECORDS
from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change, knob
from gpuscope.instrumented_runtime.record.applied.knobs import environment, launchers
from gpuscope.schema.document import Setting

Facts = Mapping[str, Any]
Named = list[tuple[str, str]]
MIB = 1 << 20
TO_BE_MADE = ("compile_cache", "nccl_by_size")
"""Suggestions whose value is a file or folder that is not there yet."""
PREFIXES = (launchers.MEGATRON_PREFIX, launchers.DEEPSPEED_PREFIX, launchers.TORCHTITAN_PREFIX, launchers.PREFIX)
"""Frameworks whose own names reports give, options without their dashes."""


def from_suggestion(setting: Setting, code: str, facts: Facts) -> list[Change] | None:
    """The changes that carry it out; None where it has to be made by hand."""
    try:
        named = _named(setting, code, facts)
        changes = [Change(name, value) for name, value in named or []]
        for change in changes:
            knob(change.name).check(change.value)
    except (KeyError, UsageError):  # facts of an older report, or a value in words
        return None
    return changes or None


def _named(setting: Setting, code: str, facts: Facts) -> Named | None:
    name, value = setting["name"], setting["value"]
    if setting["kind"] == "env":
        return None if " " in value or code in TO_BE_MADE + RECORDS else [(f"{environment.PREFIX}{name}", value)]
    if name in _BY_SETTING:
        return _BY_SETTING[name](facts)
    if code in _BY_CODE:
        return _BY_CODE[code](facts, value)
    if setting["kind"] == "config":
        if code == "manual_gc":
            return [("megatron.manual-gc", "true"), ("megatron.manual-gc-interval", str(facts["steps"]))]
        for prefix in PREFIXES:
            change = (f"{prefix}{name.removeprefix('--')}", value or "true")
            if _known(change[0]):
                return [change]
    return None


def _known(name: str) -> bool:
    try:
        knob(name)
    except UsageError:
        return False
    return True


def _fixed(*named: tuple[str, str]) -> Callable[[Facts], Named]:
    return lambda _facts: list(named)


def _buckets(facts: Facts) -> Named:
    size, first = facts["bytes"], facts["first_bytes"]
    return [("ddp.bucket_cap_mb", f"{size // MIB}" if size == first else "default")]


def _two_buckets(facts: Facts) -> Named:
    return [("ddp.bucket_cap_mb", f"{facts['first_bytes'] // MIB},{facts['bytes'] // MIB}")]


def _workers(facts: Facts) -> Named:
    return [("dataloader.num_workers", str(facts["workers"])), ("dataloader.persistent_workers", "true")]


def _more_workers(facts: Facts) -> Named:
    return [("dataloader.num_workers", f"x{facts['times']:g}")]


def _collector(facts: Facts) -> Named:
    return [("gc.mode", f"every:{facts.get('steps', 100)}")]


def _prefetched(facts: Facts) -> Named:
    return [("fsdp.forward_prefetch", str(facts["modules"])), ("fsdp.backward_prefetch", str(facts["modules"]))]


_BY_SETTING: dict[str, Callable[[Facts], Named]] = {
    "DataLoader.num_workers": _workers,
    "TrainingArguments.dataloader_num_workers": _workers,
    "the workers of the data loader": _more_workers,
    "DataLoader.pin_memory": _fixed(("dataloader.pin_memory", "true")),
    "DistributedDataParallel.bucket_cap_mb": _buckets,
    "DDPStrategy.bucket_cap_mb": _buckets,
    "TrainingArguments.ddp_bucket_cap_mb": _buckets,
    "DistributedDataParallel.bucket_cap_mb_list": _two_buckets,
    "DistributedDataParallel.gradient_as_bucket_view": _fixed(("ddp.gradient_as_bucket_view", "true")),
    "DDPStrategy.gradient_as_bucket_view": _fixed(("ddp.gradient_as_bucket_view", "true")),
    "DDPStrategy.find_unused_parameters": _fixed(("ddp.find_unused_parameters", "false")),
    "DDPStrategy.broadcast_buffers": _fixed(("ddp.broadcast_buffers", "false")),
    "DistributedDataParallelKwargs.gradient_as_bucket_view": _fixed(("ddp.gradient_as_bucket_view", "true")),
    "DistributedDataParallel.find_unused_parameters": _fixed(("ddp.find_unused_parameters", "false")),
    "DistributedDataParallel.broadcast_buffers": _fixed(("ddp.broadcast_buffers", "false")),
    "FSDPModule.set_modules_to_forward_prefetch": _prefetched,
    "FullyShardedDataParallel.limit_all_gathers": _fixed(("fsdp.limit_all_gathers", "false")),
    "FullyShardedDataParallel.backward_prefetch": _fixed(("fsdp.backward_prefetch", "1")),
    "fully_shard.reshard_after_forward": _fixed(("fsdp.reshard_after_forward", "false")),
    "torch.set_float32_matmul_precision": _fixed(("torch.float32_matmul_precision", "high")),
    "torch.backends.cudnn.allow_tf32": _fixed(("torch.float32_matmul_precision", "high")),
    "torch.compile": _fixed(("torch.compile", "default")),
    "TrainingArguments.torch_compile": _fixed(("torch.compile", "default")),
    "torch.compile.mode": _fixed(("cuda_graphs", "true")),
    "gc": _collector,
    "torchrun --numa-binding": _fixed(("cpu.numa_bind", "node")),
}
"""By the setting's name, where that says what to do."""

HOOKS = {"fp16_compress_hook": "fp16", "bf16_compress_hook": "bf16"}


def _hook(value: str) -> Named | None:
    """By the function that the setting gives: `(None, ….bf16_compress_hook)`."""
    hook = HOOKS.get(value.rstrip(")").rpartition(".")[2])
    return [("ddp.comm_hook", hook)] if hook else None


def _power_sgd(facts: Facts, _value: str) -> Named:
    return [("ddp.comm_hook", f"powersgd:{facts['approximation_rank']}")]


def _kept(_facts: Facts, value: str) -> Named | None:
    """Of FSDP1's strategies this one; DeepSpeed's stage goes by its own name."""
    if value == "ShardingStrategy.SHARD_GRAD_OP":
        return [("fsdp.reshard_after_forward", "false")]
    return [("deepspeed.zero_optimization.stage", value)]


def _fused(_facts: Facts, _value: str) -> Named:
    return [("optimizer.fused", "true")]


def _foreach(_facts: Facts, _value: str) -> Named:
    return [("optimizer.foreach", "true")]


def _hook_or_key(_facts: Facts, value: str) -> Named | None:
    """16-bit gradients by DDP's hook, or by DeepSpeed's key or Megatron's option."""
    by_framework = {"bf16": ("deepspeed.communication_data_type", "bf16"), "": ("megatron.grad-reduce-in-bf16", "true")}
    return [by_framework[value]] if value in by_framework else _hook(value)


_BY_CODE: dict[str, Callable[[Facts, str], Named | None]] = {
    "wire_bytes": _hook_or_key,
    "power_sgd": _power_sgd,
    "fsdp_keep_parameters": _kept,
    "fused_optimizer": _fused,
    "foreach_optimizer": _foreach,
    "single_tensor_optimizer": _fused,
}
"""By the suggestion's code, where one name means several settings, or several names one."""
