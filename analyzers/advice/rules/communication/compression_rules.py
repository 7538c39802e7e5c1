"""Fewer bytes on the wire: gradients reduced in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, on_cpu, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import WireBytes
from gpuscope.report.schema.document import FindingEntry, Setting

HALF = 0.5
"""16 bits for 32; the replay refuses where gradients are not of 32 bits."""
HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """16-bit gradients by the framework's own means."""
    setting = in_dialect(case, names(on_cpu(case)))
    if setting is None:
        return
    yield Proposal(
        code="wire_bytes",
        action="Reduce gradients in 16 bits instead of 32",
        why=f"{cost(finding)}; half the bytes take half that part of the time",
        setting=setting,
        risk="rounds every gradient, and each partial sum, to 16 bits: compare the loss curve; fp16 can overflow",
        verify="record again: bytes of the gradient collectives halve; watch the loss for a few hundred steps",
        changes=(WireBytes(HALF),),
        alters_training=True,
    )


def names(cpu: bool) -> dict[str, Setting]:
    """The setting per framework."""
    hook = "fp16_compress_hook" if cpu else "bf16_compress_hook"
    return {
        "ddp": python("DistributedDataParallel.register_comm_hook", f"(None, {HOOKS}.{hook})"),
        "fsdp2": python("fully_shard.mp_policy", "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)"),
        "fsdp": python("FullyShardedDataParallel.mixed_precision", "MixedPrecision(reduce_dtype=torch.bfloat16)"),
        "deepspeed": config("communication_data_type", "bf16"),
        "megatron": config("--grad-reduce-in-bf16", ""),
        "horovod": python("DistributedOptimizer.compression", "hvd.Compression.fp16"),
    }


RULE = Rule(
    "compression",
    (
        Knob(
            "wire_bytes",
            ("bandwidth",),
            "bf16 or fp16 reduction: a DDP hook, FSDP2 `reduce_dtype`, DeepSpeed "
            "`communication_data_type`, Megatron `--grad-reduce-in-bf16`",
        ),
    ),
    propose,
)
