"""What a trace's collectives give to tune: operations, numbers of ranks and sizes, the costliest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.bench.tested_collectives import OPERATIONS
from gpuscope.instrumented_runtime.bench.tuning_bench import Target
from gpuscope.sources.opening import open_trace
from gpuscope.trace.trace import Row

MOST_SIZES = 8
"""Sizes of one operation and group that are tried: those that take most time."""


def of_trace(paths: Sequence[str], ops: Sequence[str], nproc: int | None) -> list[Target]:
    """A target per operation and number of ranks; `nproc` takes the place of the trace's numbers.

    Raises `UsageError` where the trace holds no collective of known size (of these operations).
    """
    spent: dict[tuple[str, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in open_trace(*paths).rows("collectives"):
        ranks = nproc or row["group_size"]
        if row["op"] in (ops or OPERATIONS) and row["op"] in OPERATIONS and row["bytes"] and ranks and ranks > 1:
            spent[row["op"], ranks][row["bytes"]] += _taken(row)
    if not spent:
        raise UsageError(
            "the trace holds no collective of known size",
            hint="record the arguments of collectives (torch 2.4 and later), or name --op and --size",
        )
    costliest = sorted(spent.items(), key=lambda item: -sum(item[1].values()))
    return [
        Target(op, ranks, tuple(sorted(sorted(sizes, key=lambda size: -sizes[size])[:MOST_SIZES])))
        for (op, ranks), sizes in costliest
    ]


def _taken(row: Row) -> int:
    return row["end"] - row["start"] if row["end"] is not None and row["start"] is not None else 0
