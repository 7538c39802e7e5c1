"""What a rank's faults did in each step: the measured half of the ground truth.

A fault's `truth` is the plan; the ledger counts what happened. Both go into the manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Keep = Callable[[list[dict[str, Any]]], None]


class Ledger:
    """Injections of one rank. Written out by `flush`: at the run's end, or before a fault that ends it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.keep: Keep | None = None
        self._steps: dict[str, dict[int, tuple[int, int | None]]] = {}

    def add(self, fault: str, step: int, *, count: int = 1, ns: int | None = None) -> None:
        """Add to what `fault` did in `step`: `count` in the fault's own unit, `ns` where it is known."""
        steps = self._steps.setdefault(fault, {})
        so_far, time = steps.get(step, (0, None))
        steps[step] = so_far + count, time if ns is None else ns + (time or 0)

    def rows(self) -> list[dict[str, Any]]:
        """One record per fault: `fault`, `rank`, and the parallel lists `steps`, `counts` and `ns`."""
        return [
            {
                "fault": fault,
                "rank": self.rank,
                "steps": list(steps),
                "counts": [count for count, _ in steps.values()],
                "ns": [ns for _, ns in steps.values()],
            }
            for fault, steps in self._steps.items()
        ]

    def flush(self) -> None:
        """Pass the rows to the sink, if there is one."""
        if self.keep is not None:
            self.keep(self.rows())
