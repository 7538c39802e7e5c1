"""Which rows of `collectives` are one operation seen by several ranks (definitions: «Waiting and transferring»).

Matched by (process group, sequence number) where recorded, else by the order of operations and sizes within the
group; messages by (group, sender, receiver). Operation and size must agree. Nothing is guessed: what can't be
matched is counted by the reason. Everything runs on whole columns: a run has millions of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal, get_args

import numpy as np

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.facts.call_order import numbers_by_order
from gpuscope.analyzers.facts.process_groups import Groups, groups_of
from gpuscope.analyzers.step_graph.pipeline_messages import of_ring_attention
from gpuscope.problems import job
from gpuscope.problems.problem import ProblemKind
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.name_pool import NO_NAME, NamePool, is_pipeline_group
from gpuscope.trace.schema import NA, MessageOrder
from gpuscope.trace.table import Array, Mask, Table, Times, distinct
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Which sends and receives are an exchange among equals (a ring, a halo, gossip) and not messages between stages.


def exchanged(trace: Trace, groups: Groups) -> Mask:
    """Per row of `collectives`, whether it is a message of an exchange (definitions: «Stalls»).

    Ranges around a pipeline's computations, and groups that are called pipelines, say more than the order of messages.
    Where members are in no file, no more is told of a group than what those at hand show.
    """
    table, names = trace["collectives"], trace.names
    message = np.asarray(names.matching(POINT_TO_POINT.__contains__)[table["op"]], np.bool_)
    ring = message & of_ring_attention(trace)
    staged = bool((trace["operations"]["global_chunk"] != NA).any())
    if staged or not len(trace["message_orders"]):
        return ring
    found = ring.copy()
    orders = trace["message_orders"]
    of_member = dict(
        zip(
            zip(orders["rank"].tolist(), orders["group"].tolist(), strict=True),
            orders["first_send"].tolist(),
            strict=True,
        )
    )
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(message & ~ring).tolist():
        rows_of[int(groups.of_row[row])].append(row)
    for group, rows in rows_of.items():
        described = int(table["group_description"][rows[0]])
        named = described != NO_NAME and is_pipeline_group(names[described])
        members = {(int(table["rank"][row]), int(table["group"][row])) for row in rows}
        seen = [of_member[member] for member in members if member in of_member]
        absent = bool(groups.absent(np.array([group]))[0])
        found[rows] = not named and len(seen) == len(members) and _is_exchange(seen, absent)
    return found


def _is_exchange(orders: list[int], absent: bool) -> bool:
    """Whether members of such orders exchange messages: none needs a neighbour's before it sends, or, as with a
    parameter server, those that send first send what their backward pass left, or are more than those that wait."""
    waiting = orders.count(MessageOrder.NEEDS_INPUT)
    if not waiting:
        return not absent
    return MessageOrder.SENDS_GRADIENTS in orders or (not absent and len(orders) - waiting > waiting)


Reason = Literal["outside_window", "ranks_missing", "disagree", "order_unknown", "group_unknown", "peer_unknown"]
REASONS: tuple[Reason, ...] = get_args(Reason)
"""Why a row belongs to no instance: a rank of its group is in no file; a rank's capture does not hold the
operation; ranks disagree on operation, size or count; without numbers, the orders of calls fit together in no
or in several ways; the members of the group, or the other end of a message, are not recorded."""


VARY_WIDELY = 2.0
"""The ninth decile of equal transfers over their median, from which somebody absent may be waited for."""
LEAST_ALIKE = 10
"""Fewer transfers of one operation and size have no ninth decile."""
TELLING = 0.1
"""Share of a group's transfer time that an operation and size must hold to tell something of the group."""


@dataclass(frozen=True)
class Instances:
    """Operations over their ranks: rows of `collectives`, one per rank, instance by instance."""

    rows: Times
    bounds: Times
    """Instance i is `rows[bounds[i]:bounds[i + 1]]`; shape (n + 1,)."""
    p2p: Mask
    """Per instance, whether it is a message from one rank to another."""
    staged: Mask
    """Per instance, whether it is a message between stages of a pipeline: what waits for it waits for no late rank."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def sizes(self) -> Times:
        """Ranks per instance, shape (n,)."""
        return np.diff(self.bounds)

    @property
    def owner(self) -> Times:
        """For each of `rows`, its instance."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def reduce(self, how: np.ufunc, values: Array) -> Array:
        """`how` (np.maximum…) over each instance's part of `values`, which stand as `rows` do; shape (n,)."""
        return np.asarray(how.reduceat(values, self.bounds[:-1]) if len(self) else values[:0])

    def select(self, which: Mask) -> Instances:
        """Only the instances of a mask."""
        kept = np.repeat(which, self.sizes)
        return Instances(self.rows[kept], _bounds(self.sizes[which]), self.p2p[which], self.staged[which])


@dataclass(frozen=True)
class Matched:
    """What was matched: `instances` hold all ranks of their group, `partial` some of them (at least two)."""

    instances: Instances
    partial: Instances
    of_row: Times
    """Per row of `collectives`, its instance, or NA."""
    groups: Groups
    exchanged: Mask
    """Per row of `collectives`, whether it is a message of an exchange among equals: a ring, a halo, gossip."""
    unmatched: Mapping[Reason, int] = field(default_factory=dict)
    """Rows of `collectives` that belong to no instance, by reason."""
    varying: bool = False
    """Whether groups were left open because their transfers vary as if somebody absent were waited for."""

    def together(self, row: int) -> Times:
        """The rows of `collectives` that are the same operation as `row`, itself included; empty where unmatched."""
        if not 0 <= row < len(self.of_row) or self.of_row[row] == NA:
            return np.empty(0, np.int64)
        low, high = self.instances.bounds[self.of_row[row] : self.of_row[row] + 2].tolist()
        return self.instances.rows[low:high]


def match(trace: Trace) -> Matched:
    """Match the collectives and messages of all ranks of a trace."""
    found = groups_of(trace)
    matched = _match(trace, found)
    varying = _varying(trace, matched) if found.assumed else set()
    return replace(_match(trace, groups_of(trace, varying)), varying=True) if varying else matched


def _varying(trace: Trace, matched: Matched) -> set[int]:
    """Groups with assumed members in which transfers of one operation and size vary widely."""
    table, instances = trace["collectives"], matched.instances.select(~matched.instances.p2p)
    first = instances.rows[instances.bounds[:-1]]
    transfer = instances.reduce(np.minimum, (table["end"] - table["start"])[instances.rows])
    group = matched.groups.of_row[first]
    found: set[int] = set()
    for own in sorted(matched.groups.assumed):
        mine = np.flatnonzero(group == own)
        _, kind = distinct(table["op"][first[mine]].astype(np.int64) * 1_000_003 + table["bytes"][first[mine]])
        for one in range(int(kind.max(initial=-1)) + 1):
            spent = np.sort(transfer[mine[kind == one]])
            usual, high = (int(spent[int(share * (len(spent) - 1))]) for share in (0.5, 0.9))
            counts = len(spent) >= LEAST_ALIKE and spent.sum() >= TELLING * transfer[mine].sum()
            if counts and high > VARY_WIDELY * usual:
                found.add(own)
    return found


def _match(trace: Trace, found: Groups) -> Matched:
    table = trace["collectives"]
    message = np.asarray(trace.names.matching(POINT_TO_POINT.__contains__)[table["op"]], np.bool_)
    reason = np.zeros(len(table), np.int8)
    exchange = exchanged(trace, found)
    parts = [_collectives(trace, found, np.flatnonzero(~message), reason)]
    parts.append(_point_to_point(trace, found, np.flatnonzero(message), reason))
    whole, partial = (_staged(_joined([part[which] for part in parts]), exchange) for which in (0, 1))
    of_row = np.full(len(table), NA, np.int64)
    of_row[whole.rows] = whole.owner
    counts = np.bincount(reason[of_row == NA], minlength=len(REASONS)).tolist()
    unmatched = {name: count for name, count in zip(REASONS, counts, strict=True) if count}
    return Matched(whole, partial, of_row, found, exchange, unmatched)


def _collectives(trace: Trace, found: Groups, rows: Times, reason: Array) -> tuple[Instances, Instances]:
    table = trace["collectives"]
    group = found.of_row[rows]
    number = np.where(found.numbered[group], table["seq"][rows], NA)
    unnumbered = np.flatnonzero(~found.numbered[group])
    size = _comparable_sizes(table, trace.names)
    token = table["op"].astype(np.int64) * 1_000_003 + np.where(size == NA, -1, size)
    number[unnumbered] = numbers_by_order(trace, rows[unnumbered], group[unnumbered], token[rows[unnumbered]])
    return _instances(trace, found, rows, group, number, found.members[group], reason, p2p=False)


def _point_to_point(trace: Trace, found: Groups, rows: Times, reason: Array) -> tuple[Instances, Instances]:
    """A send and its receive: the n-th of both ends from one rank to another. An exchange (one kernel that
    sends and receives) counts as a direction of its own."""
    table, names = trace["collectives"], trace.names
    rank, op = table["rank"][rows], table["op"][rows]
    peer = np.where(table["peer"][rows] == NA, found.other_of_two(rows, rank), table["peer"][rows])
    peer = np.where(peer == NA, found.at_place(rows, table["peer_place"][rows]), peer)
    reason[rows[peer == NA]] = REASONS.index("peer_unknown")
    rows, rank, op, peer = (column[peer != NA] for column in (rows, rank, op, peer))
    send, receive = (op == names.find(name) for name in ("send", "recv"))
    low, high = np.minimum(rank, peer), np.maximum(rank, peer)
    source = np.where(send, rank, np.where(receive, peer, low))
    target = np.where(send, peer, np.where(receive, rank, high))
    both = (~send & ~receive).astype(np.int64)
    width = int(max(high.max(initial=0), 0)) + 1
    _, pair = distinct(((found.of_row[rows] * width + source) * width + target) * 2 + both)
    seq = table["seq"][rows]
    number = np.where(_counts_up(table, rows, pair, seq), seq, NA)
    by_order = np.flatnonzero(number == NA)
    number[by_order] = numbers_by_order(trace, rows[by_order], pair[by_order], table["bytes"][rows[by_order]])
    return _instances(trace, found, rows, pair, number, np.full(len(rows), 2), reason, p2p=True, other=peer)


def _counts_up(table: Table, rows: Times, pair: Times, seq: Times) -> Mask:
    """Per row, whether its pair's numbers count messages: NCCL's messages carry the collectives' number."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    order = np.lexsort((table["start"][rows], table["rank"][rows], pair))
    same = (np.diff(pair[order]) == 0) & (np.diff(table["rank"][rows][order]) == 0)
    stuck = np.zeros(int(pair.max()) + 1, np.bool_)
    stuck[pair[order][1:][same & (np.diff(seq[order]) <= 0)]] = True
    stuck[pair[seq == NA]] = True
    return np.asarray(~stuck[pair])


def _instances(
    trace: Trace,
    found: Groups,
    rows: Times,
    group: Times,
    number: Times,
    members: Times,
    reason: Array,
    *,
    p2p: bool,
    other: Times | None = None,
) -> tuple[Instances, Instances]:
    """Whole and partial instances of rows that carry a number within their group."""
    table = trace["collectives"]
    reason[rows[number == NA]] = REASONS.index("order_unknown")
    reason[rows[members == NA]] = REASONS.index("group_unknown")
    keep = (number != NA) & (members != NA)
    rows, group, number, members = rows[keep], group[keep], number[keep], members[keep]
    if not len(rows):
        nothing = Instances(np.empty(0, np.int64), np.zeros(1, np.int64), *(np.empty(0, np.bool_),) * 2)
        return nothing, nothing
    occurrence = _occurrences(table, rows, group, number)
    order = np.lexsort((table["rank"][rows], occurrence, number, group))
    rows, group, number, members = rows[order], group[order], number[order], members[order]
    occurrence = occurrence[order]
    first = _changes(group, number, occurrence)
    sizes = np.diff(np.append(first, len(rows)))
    wanted = members[first]
    agree = _agree(table, rows, first, p2p, trace.names) & ~_uneven(group, number, first, sizes) & (sizes <= wanted)
    every = Instances(rows, _bounds(sizes), *(np.full(len(first), p2p),) * 2)
    whole, part = agree & (sizes == wanted), agree & (sizes < wanted)
    absent = found.absent(group[first]) if other is None else ~np.isin(other[keep][order][first], trace.ranks)
    disagree, missing, outside = (REASONS.index(name) for name in ("disagree", "ranks_missing", "outside_window"))
    reason[rows] = np.repeat(np.where(~agree, disagree, np.where(absent, missing, outside)), sizes)
    return every.select(whole), every.select(part & (sizes >= 2))


def _occurrences(table: Table, rows: Times, group: Times, number: Times) -> Times:
    """Per row, its position among the rows of its rank under one number: coalesced calls share theirs."""
    order = np.lexsort((table["start"][rows], number, table["rank"][rows], group))
    first = _changes(group[order], table["rank"][rows][order], number[order])
    sizes = np.diff(np.append(first, len(rows)))
    found = np.empty(len(rows), np.int64)
    found[order] = np.arange(len(rows)) - np.repeat(first, sizes)
    return found


def _uneven(group: Times, number: Times, first: Times, sizes: Times) -> Mask:
    """Where ranks carried out different numbers of operations under one number: which is which is open."""
    head = _changes(group[first], number[first])
    runs = np.diff(np.append(head, len(first)))
    most, least = np.maximum.reduceat(sizes, head), np.minimum.reduceat(sizes, head)
    return np.asarray(np.repeat(most != least, runs))


def _agree(table: Table, rows: Times, first: Times, p2p: bool, names: NamePool) -> Mask:
    """Per instance, whether its rows are one operation of one size, as far as these are recorded."""
    size = _comparable_sizes(table, names)[rows]
    highest = np.maximum.reduceat(size, first)
    lowest = np.minimum.reduceat(np.where(size == NA, np.iinfo(np.int64).max, size), first)
    op = table["op"][rows]
    if p2p:  # the key holds the direction; here: one end each
        sends = np.add.reduceat((op == names.find("send")).astype(np.int64), first)
        same = sends <= 1
    else:
        same = np.maximum.reduceat(op, first) == np.minimum.reduceat(op, first)
    return np.asarray(same & ((highest == NA) | (highest == lowest)))


def _comparable_sizes(table: Table, names: NamePool) -> Times:
    """Bytes per row as all its ranks record them, else NA: not estimates, nor an all-to-all's, whose shares differ."""
    own = (table["op"] == names.find("all_to_all")) | table.known("size_basis")
    return np.where(own, NA, table["bytes"])


def _changes(*keys: Times) -> Times:
    """Where a run of equal keys begins, shape (runs,)."""
    change = np.zeros(max(len(keys[0]) - 1, 0), np.bool_)
    for key in keys:
        change |= np.diff(key) != 0
    return np.concatenate((np.zeros(min(len(keys[0]), 1), np.int64), np.flatnonzero(change) + 1))


def _bounds(sizes: Times) -> Times:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def _joined(parts: list[Instances]) -> Instances:
    sizes = np.concatenate([part.sizes for part in parts])
    return Instances(
        np.concatenate([part.rows for part in parts]),
        _bounds(sizes),
        np.concatenate([part.p2p for part in parts]),
        np.concatenate([part.staged for part in parts]),
    )


def _staged(found: Instances, exchange: Mask) -> Instances:
    """Without the messages of exchanges among the staged ones."""
    first = found.rows[found.bounds[:-1]] if len(found) else found.rows
    return replace(found, staged=found.p2p & ~exchange[first])


_UNMATCHED: dict[Reason, ProblemKind] = {
    "ranks_missing": job.COLLECTIVES_RANKS_MISSING,
    "outside_window": job.OUTSIDE_WINDOW,
    "disagree": job.DISAGREE,
    "order_unknown": job.ORDER_UNKNOWN,
    "group_unknown": job.GROUP_UNKNOWN,
    "peer_unknown": job.PEER_UNKNOWN,
}


def report_unmatched(result: Result, matched: Matched) -> None:
    """One problem per reason; `count` is rows of `collectives`, one per rank and operation."""
    for reason, kind in _UNMATCHED.items():
        result.problem(kind, matched.unmatched.get(reason, 0))
