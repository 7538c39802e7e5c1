"""A loop that reduces each gradient by itself: DDP in its place, or one message."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.rules.communication.bucket_rules import DEFAULT, DEFAULT_FIRST
from gpuscope.analyzers.advice.rules.communication.overlap_rules import BY_DDP, OverlappedByDdp
from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.analyzers.changes import BucketSize, Overlap
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass

WHOLE = 1 << 50
"""Bytes of a bucket that holds all gradients."""


@dataclass(frozen=True)
class BucketsOfDdp(OverlappedByDdp):
    """DDP in place of the loop: in buckets, beside the backward pass."""

    answers = ("separate_reductions",)
    why = "{message}; DDP sends them in buckets of 25 MiB while the backward pass still computes"
    verify = "record again: a few all-reduces per step within the backward pass; overlap_frac of the ranks rises"


@dataclass(frozen=True)
class OneReduction(Suggestion):
    """All gradients in one message."""

    code = "one_reduction"
    answers = ("separate_reductions",)
    sets = "one all-reduce of all gradients in one flat tensor, where a loop reduces each by itself"
    action = "Reduce all gradients in one message instead of one each"
    why = "{message}; every message has a fixed cost, which one large message pays once"
    risk = (
        "the flat tensor needs as much memory as the gradients, and parameters without a gradient must be left out on "
        "all ranks alike; a tensor for each element type; nothing of it is hidden behind the backward pass"
    )
    verify = "record again: one all-reduce behind the backward pass"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """DDP first, which hides messages as well; what it gains beside the backward pass alone, where buckets are not
    known."""
    del case
    for changes in ((Overlap(on=True), BucketSize(DEFAULT, DEFAULT_FIRST)), (Overlap(on=True),)):
        yield Proposal(finding, BucketsOfDdp(), BY_DDP, changes)
    value = (
        "flat = torch.nn.utils.parameters_to_vector(grads); all_reduce(flat); "
        "torch.nn.utils.vector_to_parameters(flat, grads)"
    )
    yield Proposal(finding, OneReduction(), torch_settings.ALL_REDUCE.to(value), (BucketSize(WHOLE),))


RULE = Rule("separate_reductions", (BucketsOfDdp, OneReduction), propose, place=45)
