"""Copies between host and device, and calls of the allocator in the loop."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import cost, env, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import NoAllocatorStalls, PinnedCopies
from gpuscope.report.schema.document import FindingEntry


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Pinned memory for copies, expandable segments for allocator calls."""
    if finding["code"] == "copy":
        yield _pinned(case, finding)
    else:
        yield _segments(finding)


def _pinned(case: Case, finding: FindingEntry) -> Proposal:
    setting = in_dialect(case, {"transformers": python("TrainingArguments.dataloader_pin_memory", "True")})
    return Proposal(
        code="pinned_copies",
        action="Copy batches from pinned memory, asynchronously (.to(device, non_blocking=True))",
        why=f"{cost(finding)}; a copy from pinned memory runs beside compute",
        setting=setting or python("DataLoader.pin_memory", "True"),
        risk="pinned memory is taken from the host's for good; a buffer must not be changed before its copy has run",
        verify="record again: copies named «Pinned -> Device»; the cause `copy` falls",
        changes=(PinnedCopies(),),
    )


def _segments(finding: FindingEntry) -> Proposal:
    return Proposal(
        code="expandable_segments",
        action="Let the allocator grow its segments instead of freeing and allocating them",
        why=f"{cost(finding)}; a segment that grows needs no cudaFree, which waits for the whole device",
        setting=env("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
        risk="calls that the cache does not make itself (torch.cuda.empty_cache() in the loop, workspaces of "
        "libraries) stay: look what the evidence lies in; before torch 2.9 the variable is PYTORCH_CUDA_ALLOC_CONF",
        verify="record again after warm-up: no cudaMalloc and cudaFree within a step",
        changes=(NoAllocatorStalls(),),
    )


RULE = Rule(
    "device_memory",
    (
        Knob("pinned_copies", ("copy",), "`pin_memory=True` with `non_blocking=True`"),
        Knob("expandable_segments", ("allocator",), "`PYTORCH_ALLOC_CONF=expandable_segments:True`"),
    ),
    propose,
)
