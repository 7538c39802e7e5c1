"""Gradient communication beside the backward pass instead of after it.

DDP and FSDP2 overlap unasked; DeepSpeed and Megatron do it on request; a program that reduces its gradients itself,
once the backward pass is over, gets it by DDP. Whether gradients are sent late a rank's own timeline settles: the
replay refuses where they go out during the backward pass already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gpuscope.analyzers.advice.framework_settings import in_dialect
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.rules.communication.bucket_rules import DEFAULT, DEFAULT_FIRST, messages
from gpuscope.analyzers.advice.settings import deepspeed_settings, megatron_settings, torch_settings
from gpuscope.analyzers.changes import SENT_EARLY, BucketSize, Change, Overlap, Refused
from gpuscope.catalogue.suggestion import UNDIVIDED, Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.naming.frameworks import WRAPPERS
from gpuscope.when_used import dataclass

NAMES = {
    "deepspeed": deepspeed_settings.OVERLAP_COMM.to("true"),
    "megatron": megatron_settings.OVERLAP_GRAD_REDUCE.to(""),
}
BY_DDP = torch_settings.DDP.to("around the model, in place of the loop that reduces its gradients")


@dataclass(frozen=True)
class Overlapped(Suggestion):
    """Gradients reduced during the backward pass, by the framework's option."""

    code = "overlap"
    answers: ClassVar[tuple[str, ...]] = ("latency", "bandwidth", UNDIVIDED)
    sets = """DeepSpeed `overlap_comm`, Megatron `--overlap-grad-reduce`; `DistributedDataParallel` where the program \
reduces gradients itself behind the backward pass; DDP and FSDP2 overlap unasked"""
    action = "Reduce gradients while the backward pass still computes"
    why = "{cost}; the gradients of the last layers are ready long before those of the first"
    risk = "it needs further buffers of the bucket's size; communication takes SMs from compute"
    verify = "record again: overlap_frac of the ranks rises"


@dataclass(frozen=True)
class OverlappedByDdp(Overlapped):
    """The same for a program that reduces its gradients itself."""

    risk = (
        "DDP averages gradients: leave out a division of your own; it keeps as much memory again for its buckets; "
        "communication takes SMs from compute"
    )


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Overlap, by the name of the framework that asks for it."""
    setting = in_dialect(case, NAMES)
    if setting is not None:
        yield Proposal(finding, Overlapped(), setting, (Overlap(on=True),))
    elif changes := _by_hand(case):
        yield Proposal(finding, OverlappedByDdp(), BY_DDP, changes)


def _by_hand(case: Case) -> tuple[Change, ...]:
    """What DDP would change of a program that reduces its gradients without a framework, after its backward pass: when
    they are sent, and in buckets where they are small, as far as the replay knows; empty of another program."""
    if case.program != "pytorch" or WRAPPERS & set(case.frameworks):
        return ()
    buckets, beside = BucketSize(DEFAULT, DEFAULT_FIRST), Overlap(on=True)
    late = case.predict((beside,))
    if isinstance(late, Refused) and late.code == SENT_EARLY:
        return ()
    small = messages(case)[2] < DEFAULT_FIRST
    for changes in ((buckets, beside), (buckets,), (beside,)) if small else ((beside,),):
        if not isinstance(case.predict(changes), Refused):
            return changes
    return ()


RULE = Rule("overlap", (Overlapped, OverlappedByDdp), propose, place=190)
