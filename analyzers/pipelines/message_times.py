"""How long messages between the stages of a pipeline take, and how much of that shrinks with their size."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.collective_costs.fixed_part import FixedPart, fixed_part
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

RANKS = 2


@dataclass(frozen=True)
class MessageTime:
    """Mean ns of a message once both ends are there, and what of it is fixed cost."""

    transfer: float
    fixed: FixedPart

    def shorter(self, scale: float, bias: int) -> float:
        """ns by which a message of `scale` times the bytes is shorter; `bias` as of a change's assumptions."""
        fixed = {-1: self.fixed.least, 0: self.fixed.expected, 1: self.fixed.most}[bias]
        return max(0.0, self.transfer - fixed) * (1 - scale)


def message_time(facts: RunFacts, gpu: str) -> MessageTime | None:
    """Of the messages of a run on GPUs of that model whose sizes are recorded; None where there are none."""
    table, names = facts.trace["collectives"], facts.trace.names
    message = names.matching(POINT_TO_POINT.__contains__)[table["op"]]
    taken, size = facts.waits.transfer, table["bytes"]
    rows = np.flatnonzero(message & (taken != NA) & (taken > 0) & (size != NA) & (size > 0))
    if not len(rows):
        return None
    transfer, nbytes = float(taken[rows].mean()), float(size[rows].mean())
    return MessageTime(transfer, fixed_part(transfer, nbytes, "send_recv", RANKS, gpu, None))
