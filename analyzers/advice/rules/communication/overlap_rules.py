"""Gradient communication beside the backward pass instead of after it.

DDP and FSDP2 overlap unasked; DeepSpeed and Megatron do it on request; a program that reduces its gradients itself,
once the backward pass is over, gets it by DDP. Whether gradients are sent late a rank's own timeline settles: the
replay refuses where they go out during the backward pass already.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import UNDIVIDED, config, cost, in_dialect, python, seen_alone
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Overlap, Refused
from gpuscope.schema.document import FindingEntry, Setting

NAMES = {
    "deepspeed": config("zero_optimization.overlap_comm", "true"),
    "megatron": config("--overlap-grad-reduce", ""),
}
_WRAPPERS = {"deepspeed", "megatron", "horovod", "ddp", "fsdp", "fsdp2"}
"""Frameworks that reduce gradients for the program."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Overlap, by the name of the framework that asks for it."""
    yield from seen_alone(case, finding, _proposals(case, finding))


def _proposals(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    setting = in_dialect(case, NAMES)
    if setting is not None:
        yield _overlapped(finding, setting, "it needs further buffers of the bucket's size")
    elif _by_hand(case):
        by_ddp = python("torch.nn.parallel.DistributedDataParallel", "around the model, in place of the loop that "
                        "reduces its gradients")  # fmt: skip
        yield _overlapped(finding, by_ddp, "DDP averages gradients: leave out a division of your own; it keeps as much "
                          "memory again for its buckets")  # fmt: skip


def _overlapped(finding: FindingEntry, setting: Setting, risk: str) -> Proposal:
    return Proposal(
        code="overlap",
        action="Reduce gradients while the backward pass still computes",
        why=f"{cost(finding)}; the gradients of the last layers are ready long before those of the first",
        setting=setting,
        risk=f"{risk}; communication takes SMs from compute",
        verify="record again: overlap_frac of the ranks rises",
        changes=(Overlap(on=True),),
    )


def _by_hand(case: Case) -> bool:
    """Whether the program reduces its gradients without a framework, after its backward pass."""
    if case.program != "pytorch" or _WRAPPERS & set(case.frameworks):
        return False
    return not isinstance(case.predict((Overlap(on=True),)), Refused)


RULE = Rule(
    "overlap",
    (
        Knob(
            "overlap",
            ("latency", "bandwidth", UNDIVIDED),
            "DeepSpeed `overlap_comm`, Megatron `--overlap-grad-reduce`; `DistributedDataParallel` where the program "
            "reduces gradients itself behind the backward pass; DDP and FSDP2 overlap unasked",
        ),
    ),
    propose,
    place=190,
)
