"""Which rows of `collectives` are one operation seen by several ranks (definitions: «Waiting and transferring»).

Matched by (process group, operation, sequence number) where recorded, else by group and order, if every
rank saw equally many. Nothing is guessed: an operation whose group is not all present stays unmatched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Table, Times
from gpuscope.trace.trace import Trace


@dataclass(frozen=True)
class Instance:
    """One collective over its ranks: rows of `collectives`, one per rank."""

    rows: Times
    op: str


@dataclass(frozen=True)
class Matched:
    """Instances found, and how many rows of `collectives` belong to none."""

    instances: list[Instance]
    unmatched: int


def match(trace: Trace) -> Matched:
    """Match the collectives of all ranks of a trace."""
    table = trace["collectives"]
    instances: list[Instance] = []
    for (_, op), rows in _groups(trace, table).items():
        instances += _match_group(table, rows, op)
    return Matched(instances, len(table) - sum(len(instance.rows) for instance in instances))


def _groups(trace: Trace, table: Table) -> dict[tuple[str, str], Times]:
    """Rows by group and operation; a send and its receive count as one operation."""
    keys: dict[tuple[str, str], list[int]] = {}
    for row in range(len(table)):
        op = trace.names[int(table["op"][row])]
        op = "send_recv" if op in POINT_TO_POINT else op
        # Names are unique only within a rank's groups, members only within a layout: both together tell.
        group = f"{trace.names[int(table['group'][row])]} of {trace.names[int(table['group_ranks'][row])]}"
        keys.setdefault((group, op), []).append(row)
    return {key: np.array(rows, np.int64) for key, rows in keys.items()}


def _match_group(table: Table, rows: Times, op: str) -> list[Instance]:
    ranks = np.unique(table["rank"][rows])
    size = table["group_size"][rows]
    size = size[size != NA]
    members = int(size[0]) if len(size) else len(ranks)
    if len(ranks) < 2 or len(ranks) != members:
        return []
    # A point-to-point message has two ends; in a larger group they can't be told from order alone.
    if op == "send_recv" and members != 2:
        return []
    if bool((table["seq"][rows] != NA).all()) and op != "send_recv":
        return _by_key(table, rows, table["seq"][rows], len(ranks), op)
    order = np.lexsort((table["start"][rows], table["rank"][rows]))
    rows = rows[order]
    _, counts = np.unique(table["rank"][rows], return_counts=True)
    if len(set(counts.tolist())) != 1:
        return []
    position = np.tile(np.arange(counts[0]), len(ranks))
    return _by_key(table, rows, position, len(ranks), op)


def _by_key(table: Table, rows: Times, key: Times, members: int, op: str) -> list[Instance]:
    """Rows with one key form an instance if each rank is there once and the sizes agree."""
    order = np.argsort(key, kind="stable")
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(key[order])) + 1, [len(rows)]))
    found: list[Instance] = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        own = rows[order[low:high]]
        sizes = table["bytes"][own]
        agree = len(np.unique(sizes[sizes != NA])) <= 1
        if len(own) == members and len(np.unique(table["rank"][own])) == members and agree:
            found.append(Instance(own, op))
    return found
