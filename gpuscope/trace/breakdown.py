"""The exact breakdown of a window into four parts that sum to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.trace.intervals import Spans, clip, complement, join, measure_within, subtract
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Breakdown:
    """Parts of one window on one device, in ns (definitions: «Breakdown of a window»)."""

    window: int
    compute: int
    exposed_communication: int
    exposed_memory: int
    idle: int
    communication: int
    overlapped_communication: int

    def check(self) -> None:
        """Raise `ValueError` unless the four parts sum to the window and none is negative."""
        parts = (self.compute, self.exposed_communication, self.exposed_memory, self.idle)
        if sum(parts) != self.window or min(parts) < 0:
            raise ValueError(f"breakdown {parts} does not sum to its window of {self.window} ns")
        if self.communication - self.overlapped_communication != self.exposed_communication:
            raise ValueError("exposed and overlapped communication do not sum to communication")

    @property
    def parts(self) -> dict[str, int]:
        """The four parts by their names in the JSON report, in ns."""
        return {
            "compute": self.compute,
            "exposed_communication": self.exposed_communication,
            "exposed_memory": self.exposed_memory,
            "idle": self.idle,
        }


@dataclass(frozen=True)
class Parts:
    """The four parts of a window as spans; they tile it."""

    compute: Spans
    exposed_communication: Spans
    exposed_memory: Spans
    idle: Spans


def split(compute: Spans, communication: Spans, memory: Spans, window: tuple[int, int]) -> Parts:
    """C, N \\ C, M \\ (C ∪ N) and the rest of the window, as spans."""
    start, end = window
    c, n, m = (clip(spans, start, end) for spans in (compute, communication, memory))
    busy = _joined(c, n)
    return Parts(c, subtract(n, c), subtract(m, busy), complement(_joined(busy, m), start, end))


def _joined(a: Spans, b: Spans) -> Spans:
    """A ∪ B of two sets that `union` made; often one of them is empty."""
    return join(a, b) if len(a.start) and len(b.start) else a if len(a.start) else b


def break_down(
    compute: Spans, communication: Spans, memory: Spans, windows: Sequence[tuple[int, int]]
) -> tuple[Breakdown, ...]:
    """Measure the parts of each window (ns) from the unions of the three kinds of device work."""
    bounds = np.array(windows, np.int64).reshape(-1, 2)
    start, end = bounds[:, 0], bounds[:, 1]
    computing_or_communicating = _joined(compute, communication)
    busy = _joined(computing_or_communicating, memory)
    c = measure_within(compute, start, end)
    n = measure_within(communication, start, end)
    cn = c if computing_or_communicating is compute else measure_within(computing_or_communicating, start, end)
    cnm = cn if busy is computing_or_communicating else measure_within(busy, start, end)
    columns = (end - start, c, cn - c, cnm - cn, end - start - cnm, n, n - (cn - c))
    return tuple(Breakdown(*row) for row in np.stack(columns, axis=1).tolist())
