"""Memory that stays free, turned into larger batches or activations that are not computed twice."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Refused
from gpuscope.schema.document import FindingEntry
from gpuscope.words import units

FILLED = 0.2
"""Share of the step in stalls that a larger batch spreads over more work (launches, latency, the pipeline's bubble),
from which it is worth a try."""
_SPREAD = ("launch", "host_other", "latency", "pipeline_bubble", "exposed_communication", "straggler")


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding: no recomputation; a larger batch where the step is not compute."""
    if finding["code"] == "needless_checkpointing":
        yield _kept(case, finding)
        return
    spread = [one for one in case.report["findings"] if one["code"] in _SPREAD]
    share = sum(one["share_frac"] for one in spread)
    if case.report["verdict"]["abstained"] or share < FILLED:
        return
    names = ", ".join(one["code"] for one in spread if one["share_frac"] >= FILLED / 4)
    pipelined = any(one["code"] == "pipeline_bubble" for one in spread)
    setting = in_dialect(
        case,
        {
            "megatron": config("--micro-batch-size", "twice as large"),
            "deepspeed": config("train_micro_batch_size_per_gpu", "twice as large"),
            "transformers": python("TrainingArguments.per_device_train_batch_size", "twice as large"),
        },
    )
    yield Proposal(
        code="larger_batch",
        action="Use the free memory: more micro-batches in flight, or a larger batch per rank" if pipelined
        else "Use the free memory for a larger batch per rank",
        why=f"{finding['message']}; {names} take as long for more samples",
        setting=setting or python("batch size per rank", "twice as large, with the learning rate scaled to it"),
        risk="another batch size trains differently: scale the learning rate, or accumulate fewer micro-batches",
        verify="record again: samples per second, and the peak of reserved memory",
        outcome=Refused(f"it shortens no step, but {units.share(share)} of it then costs the same for more samples, at "
                        f"most {1 / max(1 - share, 0.01):.1f} times as many per second; what memory a "
                        "sample takes is not recorded"),
        alters_training=True,
    )  # fmt: skip


def _kept(case: Case, finding: FindingEntry) -> Proposal:
    setting = in_dialect(
        case,
        {
            "megatron": config("--recompute-granularity", "unset, or selective for full"),
            "transformers": python("TrainingArguments.gradient_checkpointing", "False"),
        },
    )
    return Proposal(
        code="no_checkpointing",
        action="Keep activations instead of computing them again, at least of some layers",
        why=finding["message"],
        setting=setting or python("torch.utils.checkpoint.checkpoint", "only around as many layers as memory requires"),
        risk="the peak of memory rises by the activations kept",
        verify="record again: fewer kernels in the backward pass, a step up to a quarter shorter; peak of memory",
        outcome=Refused("how much memory the activations take is not recorded: take it off layer by layer; full "
                        "recomputation is up to a third of forward and backward (arXiv:1604.06174)"),
    )  # fmt: skip


RULE = Rule(
    "headroom",
    (
        Knob("larger_batch", ("memory_headroom",), "a larger batch per rank, where most of the memory stays free "
             "and the step is not compute"),
        Knob("no_checkpointing", ("needless_checkpointing",), "activation checkpointing off, where there is room"),
    ),
    propose,
    place=100,
)  # fmt: skip
