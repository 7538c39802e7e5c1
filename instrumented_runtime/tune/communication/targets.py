"""What a trace's collectives give to tune: operations, numbers of ranks and sizes, the costliest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.instrumented_runtime.bench.options import OPERATIONS
from gpuscope.sources.opening import open_trace
from gpuscope.trace.trace import Row

MOST_SIZES = 8
"""Sizes of one operation and group that are tried: those that take most time."""


@dataclass(frozen=True)
class Target:
    """What to tune: an operation over so many ranks, its sizes in bytes of the whole array, and how often the trace has
    each."""

    op: str
    ranks: int
    sizes: tuple[int, ...]
    calls: tuple[int, ...]


def of_trace(paths: Sequence[str]) -> list[Target]:
    """A target per operation and number of ranks; none where the trace holds no collective of known size."""
    spent: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in open_trace(*paths).rows("collectives"):
        if row["op"] in OPERATIONS and row["bytes"] and (row["group_size"] or 0) > 1:
            spent[row["op"], row["group_size"]][row["bytes"]].append(_taken(row))
    costliest = sorted(spent.items(), key=lambda item: -sum(map(sum, item[1].values())))
    return [_target(op, ranks, sizes) for (op, ranks), sizes in costliest]


def _target(op: str, ranks: int, taken: dict[int, list[int]]) -> Target:
    sizes = sorted(sorted(taken, key=lambda size: -sum(taken[size]))[:MOST_SIZES])
    return Target(op, ranks, tuple(sizes), tuple(len(taken[size]) for size in sizes))


def _taken(row: Row) -> int:
    return row["end"] - row["start"] if row["end"] is not None and row["start"] is not None else 0
