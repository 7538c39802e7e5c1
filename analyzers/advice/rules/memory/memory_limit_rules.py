"""Memory is the wall: what frees some, at the price of time that only another run can tell."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import Refused
from gpuscope.report.schema.document import FindingEntry, Setting

UNKNOWN = "it saves memory, not time, and how much depends on the model: see `gpuscope advise --model … --cluster …`"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """From the cheapest in time to the dearest."""
    yield _freed(
        finding,
        code="smaller_micro_batch",
        action="Halve the micro-batch and accumulate gradients over twice as many",
        setting=_named(
            case,
            {
                "megatron": config("--micro-batch-size", "half of it"),
                "deepspeed": config("train_micro_batch_size_per_gpu", "half of it"),
                "transformers": python("TrainingArguments.per_device_train_batch_size", "half of it"),
            },
            python("batch size per rank", "half of it, with gradients accumulated over 2"),
        ),
        risk="smaller matrices use the device less well",
    )
    yield _freed(
        finding,
        code="activation_checkpointing",
        action="Recompute activations in the backward pass instead of keeping them",
        setting=_named(
            case,
            {
                "megatron": config("--recompute-granularity", "selective"),
                "transformers": python("TrainingArguments.gradient_checkpointing", "True"),
                "deepspeed": config("activation_checkpointing.partition_activations", "true"),
            },
            python("torch.utils.checkpoint.checkpoint.use_reentrant", "False"),
        ),
        risk="one more forward pass of what is recomputed, up to a third more compute (Chen et al., arXiv:1604.06174)",
    )
    yield _freed(
        finding,
        code="shard_states",
        action="Shard parameters, gradients and optimiser states over the data-parallel ranks",
        setting=_named(
            case,
            {
                "megatron": config("--use-distributed-optimizer", ""),
                "deepspeed": config("zero_optimization.stage", "3"),
            },
            python("torch.distributed.fsdp.fully_shard", "each layer, then the model"),
        ),
        risk="half as much communication again as plain data parallel (ZeRO stage 3, arXiv:1910.02054, 7.2)",
    )
    yield _freed(
        finding,
        code="cpu_offload",
        action="Keep parameters and optimiser states in host memory",
        setting=_named(
            case,
            {
                "deepspeed": config("zero_optimization.offload_optimizer.device", "cpu"),
                "fsdp2": python("fully_shard.offload_policy", "CPUOffloadPolicy()"),
            },
            python("fully_shard.offload_policy", "CPUOffloadPolicy()"),
        ),
        risk="every step copies over PCI Express: the last resort",
    )


def _named(case: Case, names: dict[str, Setting], otherwise: Setting) -> Setting:
    return in_dialect(case, names) or otherwise


def _freed(finding: FindingEntry, *, code: str, action: str, setting: Setting, risk: str) -> Proposal:
    outcome = Refused(f"{UNKNOWN}; the price: {risk}")
    return Proposal(
        code=code,
        action=action,
        why=finding["message"],
        setting=setting,
        risk=risk,
        verify="record again with an allocator snapshot: the peak falls",
        outcome=outcome,
    )


RULE = Rule(
    "memory_wall",
    (
        Knob("smaller_micro_batch", ("out_of_memory",), "half the micro-batch, gradients accumulated"),
        Knob("activation_checkpointing", ("out_of_memory",), "recompute in the backward pass, by the framework's name"),
        Knob("shard_states", ("out_of_memory",), "FSDP2, ZeRO stage 3, Megatron's distributed optimizer"),
        Knob("cpu_offload", ("out_of_memory",), "`CPUOffloadPolicy()`, ZeRO-Offload"),
    ),
    propose,
)
