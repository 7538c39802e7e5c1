"""Kernels of few blocks: the program's own, launched on more."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.catalogue.finding import words_of
from gpuscope.catalogue.findings.compute import FewBlocks
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class MoreBlocks(Suggestion):
    """The kernel's work over the whole device."""

    code = "more_blocks"
    answers = ("few_blocks",)
    sets = "the grid of the program's own kernel: a thread per element, in blocks of 128 to 256"
    action = "Launch {kernel} on as many blocks as its data has parts"
    why_not = "how much of the kernel's work can run at once is not in a trace"
    risk = "blocks must not depend on each other's results: sums over them need atomics or a second pass"
    verify = "record again: its grid, and how long it takes"

    kernel: str


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """None for kernels of libraries, whose grid follows from what they are asked."""
    del case
    found = words_of(finding)
    if isinstance(found, FewBlocks) and not found.of_library:
        value = "<<<(n + 255) / 256, 256>>> with i = blockIdx.x * blockDim.x + threadIdx.x, or a Triton program a part"
        yield Proposal(finding, MoreBlocks(found.kernel), config(f"grid of {found.kernel}", value))


RULE = Rule("grids", (MoreBlocks,), propose, programs=("pytorch", "native"), place=125)
