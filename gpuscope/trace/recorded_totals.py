"""Totals that a file gives itself (a vendor's own analysis of the same recording), held against those read from it.

They agree to a fraction of a percent where every event is read as what it is. Where they don't, some kind of event is
not understood, and all that rests on the breakdown is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

TOLERANCE = 0.02
"""Share of the recording: beyond it a difference is told. Rounding, and what lies at the edges, is below."""

CONTRADICTS = 0.1
"""Share of the recording: from it on the breakdown decides nothing (definitions: «Ascend»)."""

Part = Literal["compute", "communication", "exposed_communication"]


@dataclass(frozen=True)
class RecordedTotal:
    """ns of a part of a rank's recording, as `by` says."""

    rank: int
    part: Part
    ns: int
    by: str


@dataclass(frozen=True)
class Difference:
    """Where the two disagree beyond `TOLERANCE` of the window; ns."""

    total: RecordedTotal
    own: int
    window: int

    @property
    def contradicts(self) -> bool:
        """Whether the two are so far apart that no verdict can rest on either."""
        return abs(self.total.ns - self.own) >= CONTRADICTS * self.window


def differences(trace: Trace, totals: Iterable[RecordedTotal]) -> Iterator[Difference]:
    """Those of ranks on one device; of several a total says nothing."""
    lanes = {rank: [lane for lane in trace.lanes() if lane.rank == rank] for rank in trace.ranks}
    for total in totals:
        own = lanes.get(total.rank, [])
        if len(own) > 1:
            continue
        parts = trace.breakdown(own[0].rows) if own else None
        read = 0 if parts is None else int(getattr(parts, total.part))
        window = max(0 if parts is None else parts.window, total.ns)
        if abs(total.ns - read) > TOLERANCE * window:
            yield Difference(total, read, window)
