"""What NCCL's log says it chose, joined to the operations of a trace or of a measurement.

By operation, size and, where the log has it with the choice, the communicator's number of ranks. Several
choices for one operation and size join to none. The name of a kernel is no choice: NCCL launches one kernel
for many algorithms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpuscope.analyzers.nccl.cost_model import Choice
from gpuscope.trace.trace import Row


class Choices:
    """The rows of the table `choices`."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._found: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for row in rows:
            if row["op"] is not None:
                self._found[row["op"], row["bytes"]].append(row)

    def of(self, op: str, nbytes: int, group_size: int) -> Choice | None:
        """The one choice for `op` over an array of `nbytes` in a group of that size; None where unknown."""
        fitting = [row for row in self._found.get((op, nbytes), ()) if row["group_size"] in (None, group_size)]
        exact = [row for row in fitting if row["group_size"] == group_size] or fitting
        found = {Choice(row["algorithm"], row["protocol"], row["channels"]) for row in exact}
        if len(found) == 1:
            return next(iter(found))
        same = {(choice.algorithm, choice.protocol) for choice in found}
        return Choice(*next(iter(same))) if len(same) == 1 else None
