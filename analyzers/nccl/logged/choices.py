"""What NCCL's log says it chose, joined to the operations of a trace or of a measurement.

By operation, size and, where the log has it with the choice, the communicator's number of ranks; of a measurement, by
the file's own choices before those of others. Several choices for one operation and size join to none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpuscope.collective_costs.nccl_model import Choice
from gpuscope.trace.trace import Row


class Choices:
    """The rows of the table `choices`."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._found: dict[tuple[str, int], list[Row]] = defaultdict(list)
        self._sources: set[int] = set()
        for row in rows:
            if row["op"] is not None:
                self._found[row["op"], row["bytes"]].append(row)
                if row["source"] is not None:
                    self._sources.add(row["source"])

    def of(self, op: str, nbytes: int, group_size: int, source: int | None = None) -> Choice | None:
        """The one choice for `op` over an array of `nbytes` in a group of that size; None where unknown.

        Of what a file measured that logged choices too (`source`), its own are the only ones.
        """
        fitting = [row for row in self._found.get((op, nbytes), ()) if row["group_size"] in (None, group_size)]
        if source is not None and source in self._sources:
            fitting = [row for row in fitting if row["source"] == source]
        exact = [row for row in fitting if row["group_size"] == group_size] or fitting
        found = {Choice(row["algorithm"], row["protocol"], row["channels"]) for row in exact}
        if len(found) == 1:
            return next(iter(found))
        same = {(choice.algorithm, choice.protocol) for choice in found}
        return Choice(*next(iter(same))) if len(same) == 1 else None
