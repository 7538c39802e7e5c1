"""Communicators whose number of ranks is recorded nowhere: one id for all their ranks, and whole arrays' sizes.

A capture that began after `ncclCommInitRank` holds a communicator's id and each call's size, as NCCL logs it: of one
rank's share where the operation gathers or scatters. The id is common to the ranks from NCCL 2.25 on; before, each
rank has its own, and those are one communicator that carry out the same operations of the same sizes and end them
together.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuscope.analyzers.facts.call_order import clock_of
from gpuscope.analyzers.facts.process_groups import groups_of
from gpuscope.analyzers.facts.whole_job import all_at_hand
from gpuscope.problems import collectives
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Table, Times
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

END_TOGETHER_NS = 50_000
"""Ends of one operation on ranks of one host lie no farther apart, in the median (definitions: «World size»)."""


def with_members(trace: Trace) -> Trace:
    """`trace` with one name per communicator and the sizes that follow from its members; itself where all is told."""
    table = trace["collectives"]
    unsized = (table["group_size"] == NA) & (table["group_ranks"] == NO_NAME) & (table["group"] != NO_NAME)
    if not bool(unsized.any()) or not all_at_hand(trace):
        return trace
    named = trace.with_table(Table(table.schema, {**table.columns, "group": _common_names(trace, unsized)}))
    return _with_sizes(named)


def _common_names(trace: Trace, unsized: Mask) -> Times:
    """Per row, its group, with the ids that ranks have of one communicator replaced by that of the lowest rank."""
    table, group = trace["collectives"], trace["collectives"]["group"].copy()
    rows_of = _by_communicator(table, np.flatnonzero(unsized))
    used: dict[int, set[int]] = defaultdict(set)
    for rank, code in rows_of:
        used[code].add(rank)
    alike: dict[bytes, list[Times]] = defaultdict(list)
    point_to_point = trace.names.matching(POINT_TO_POINT.__contains__)[table["op"]]
    for (_, code), rows in rows_of.items():
        if len(used[code]) == 1 and not bool(point_to_point[rows].any()):
            told = np.stack([table[name][rows].astype(np.int64) for name in ("op", "bytes", "share")])
            alike[told.tobytes()].append(rows)
    clock = clock_of(trace)
    for candidates in alike.values():
        for together in _ending_together(table, candidates, clock):
            for rows in together[1:]:
                group[rows] = group[together[0][0]]
    return group


def _by_communicator(table: Table, rows: Times) -> dict[tuple[int, int], Times]:
    """Rows by (rank, code of the communicator), each in order of time."""
    order = rows[np.lexsort((table["start"][rows], table["group"][rows], table["rank"][rows]))]
    changes = (np.diff(table["rank"][order]) != 0) | (np.diff(table["group"][order]) != 0)
    parts = np.split(order, np.flatnonzero(changes) + 1)
    return {(int(table["rank"][own[0]]), int(table["group"][own[0]])): own for own in parts if len(own)}


def _ending_together(table: Table, candidates: list[Times], clock: dict[int, int]) -> list[list[Times]]:
    """Candidates of different ranks of one host whose operations end together, the lowest rank's first."""
    found: list[list[Times]] = []
    for rows in candidates:
        rank = int(table["rank"][rows[0]])
        for own in found:
            ranks = {int(table["rank"][one[0]]) for one in own}
            apart = np.median(np.abs(table["end"][rows] - table["end"][own[0]]))
            if rank not in ranks and clock[rank] == clock[min(ranks)] and apart <= END_TOGETHER_NS:
                own.append(rows)
                break
        else:
            found.append([rows])
    return found


def _with_sizes(trace: Trace) -> Trace:
    """Shares times members, for groups whose members are the ranks that share them."""
    table, groups = trace["collectives"], groups_of(trace)
    known = (table["share"] != NA) & (table["bytes"] == NA) & (groups.members[groups.of_row] != NA)
    if not bool(known.any()):
        return trace
    nbytes = np.where(known, table["share"] * groups.members[groups.of_row], table["bytes"])
    sized = trace.with_table(Table(table.schema, {**table.columns, "bytes": nbytes}))
    left = int(((table["share"] != NA) & (nbytes == NA)).sum())
    kept = [problem for problem in trace.problems if problem.code != collectives.GROUP_SIZE_UNKNOWN.code]
    sized.problems = kept + ([collectives.GROUP_SIZE_UNKNOWN.of(left)] if left else [])
    return sized
