"""What is recorded in idle time that has no cause: the reason for having no verdict must be true of the trace."""

from __future__ import annotations

from collections import Counter

from gpuscope.catalogue.cause import UNATTRIBUTED
from gpuscope.schema.profile_sections import GapEntry
from gpuscope.when_used import dataclass

MOST = 0.5
"""Share of the longest gaps without a cause that a call must cover to be named."""


@dataclass(frozen=True)
class Unexplained:
    """The host event that covers most of the longest gaps without a cause, where one does, and how much of them, ns."""

    host_recorded: bool = False
    call: str | None = None
    covered: int = 0
    stacks: bool = False
    """Whether Python stacks are recorded."""


def unexplained(gaps: list[GapEntry], stacks: bool = False) -> Unexplained:
    """What is known of the gaps without a cause among the longest."""
    own = [gap for gap in gaps if gap["cause"] == UNATTRIBUTED]
    covering: Counter[str] = Counter()
    for gap in own:
        if gap["host"] is not None:
            covering[gap["host"]] += gap.get("host_ns", 0)
    recorded = any("host_ns" in gap for gap in own)
    for call, covered in covering.most_common(1):
        if covered >= MOST * sum(gap["dur_ns"] for gap in own):
            return Unexplained(recorded, call, covered, stacks)
    return Unexplained(recorded, stacks=stacks)
