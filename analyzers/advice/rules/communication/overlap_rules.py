"""Gradient communication beside the backward pass instead of after it.

DDP and FSDP2 overlap unasked; DeepSpeed and Megatron do it on request.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import Overlap
from gpuscope.report.schema.document import FindingEntry

NAMES = {
    "deepspeed": config("zero_optimization.overlap_comm", "true"),
    "megatron": config("--overlap-grad-reduce", ""),
}


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Overlap, by the name of the framework that asks for it."""
    setting = in_dialect(case, NAMES)
    if setting is None:
        return
    yield Proposal(
        code="overlap",
        action="Reduce gradients while the backward pass still computes",
        why=f"{cost(finding)}; the gradients of the last layers are ready long before those of the first",
        setting=setting,
        risk="needs further buffers of the bucket's size; communication takes SMs from compute",
        verify="record again: overlap_frac of the ranks rises",
        changes=(Overlap(on=True),),
    )


RULE = Rule(
    "overlap",
    (
        Knob(
            "overlap",
            ("latency", "bandwidth"),
            "DeepSpeed `overlap_comm`, Megatron `--overlap-grad-reduce`; DDP and FSDP2 overlap unasked",
        ),
    ),
    propose,
)
