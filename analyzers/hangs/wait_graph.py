"""Who waits for whom: a graph over ranks whose sinks are the first cause.

A rank waits where an operation of its own is unfinished and another member of the group is not there. A
rank that is missing somewhere while itself waiting elsewhere has an excuse; one that others wait for and
that waits for no rank has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from gpuscope.analyzers.hangs.rank_states import Job, Record
from gpuscope.catalogue.hang_sentences import of_sizes
from gpuscope.when_used import dataclass

# Ranks that called different things: other operations, sizes or types under one number, other members.

SAME_SIZES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Operations whose input is as large on every rank; the others may be uneven."""


@dataclass(frozen=True)
class Mismatch:
    """Under number `seq` of `group` the ranks called different things; `odd` are those in the minority,
    or all of them where there is no majority."""

    group: str
    seq: int | None
    what: str
    """`operation`, `size`, `dtype` or `members`."""
    variants: dict[str, list[int]]
    odd: tuple[int, ...]
    majority: bool


def mismatches_find(job: Job) -> list[Mismatch]:
    """The first mismatch of each group among operations not finished by all, and contradicting members."""
    found = [
        _judge(group, None, "members", {str(list(members)): ranks for members, ranks in versions.items()})
        for group, versions in job.contradicted.items()
    ]
    for group in sorted(set(job.members) - job.incomparable):
        mismatch = _first(job, group)
        if mismatch is not None:
            found.append(mismatch)
    return found


def _first(job: Job, group: str) -> Mismatch | None:
    by_seq: dict[int, list[Record]] = defaultdict(list)
    for rank in job.members[group]:
        for record in job.collectives.get((rank, group), []):
            by_seq[record.seq].append(record)
    for seq in sorted(by_seq):
        records = by_seq[seq]
        if len(records) < 2 or not any(job.unfinished(record) for record in records):
            continue
        for what, called in (("operation", _op), ("dtype", _dtype), ("size", _size)):
            variants: dict[str, list[int]] = defaultdict(list)
            for record in records:
                variants[called(record)].append(record.rank)
            if len(variants) > 1:
                return _judge(group, seq, what, dict(variants))
    return None


def _op(record: Record) -> str:
    return record.op


def _dtype(record: Record) -> str:
    return f"{record.op} of {record.dtype or 'nothing'}"


def _size(record: Record) -> str:
    return of_sizes(record.op, record.sizes) if record.op in SAME_SIZES else record.op


def _judge(group: str, seq: int | None, what: str, variants: dict[str, list[int]]) -> Mismatch:
    total = sum(len(ranks) for ranks in variants.values())
    most = max(variants.values(), key=len)
    majority = 2 * len(most) > total
    odd = [rank for ranks in variants.values() for rank in ranks if not (majority and ranks is most)]
    return Mismatch(
        group, seq, what, {name: sorted(ranks) for name, ranks in variants.items()}, tuple(sorted(odd)), majority
    )


Reason = Literal["absent", "unknown", "no_dump", "blocked", "mismatch"]


@dataclass(frozen=True)
class Wait:
    """`waiter` waits in its operation `record` for rank `awaited`.

    absent: that rank has not enqueued it. unknown: its dump doesn't say whether it has. no_dump: it wrote
    none. blocked: it has enqueued it, behind another operation that is unfinished. mismatch: it called
    something else.
    """

    waiter: int
    awaited: int
    record: Record
    reason: Reason

    @property
    def sure(self) -> bool:
        """Whether the dumps themselves say so."""
        return self.reason in ("absent", "mismatch")


def find(job: Job, mismatches: Sequence[Mismatch]) -> list[Wait]:
    """Every wait of every rank."""
    waits: list[Wait] = []
    pending = {rank: job.pending(rank) for rank in job.ranks}
    for own in pending.values():
        heads: dict[str, Record] = {}
        for record in own:
            if record.p2p:
                waits += _for_peer(job, record, pending)
            else:
                heads.setdefault(record.group, record)
        for head in heads.values():
            waits += _for_members(job, head, [r for r in own if r.group == head.group and not r.p2p], pending)
    return list(dict.fromkeys(_with_mismatches(job, waits, mismatches, pending)))


Pending = Mapping[int, Sequence[Record]]


def _for_members(job: Job, head: Record, own: Sequence[Record], pending: Pending) -> list[Wait]:
    """Whom a rank waits for in a group whose first unfinished collective is `head`, `own` being all of them."""
    waits: list[Wait] = []
    unsure: list[Wait] = []
    for member in job.members[head.group]:
        if member == head.rank:
            continue
        if member not in job.ranks:
            unsure.append(Wait(head.rank, member, head, "no_dump"))
            continue
        come = job.enqueued(member, head.group)
        if come is None or head.group in job.incomparable:
            unsure.append(Wait(head.rank, member, head, "unknown"))
        elif come < own[-1].seq:
            waits.append(Wait(head.rank, member, next(record for record in own if record.seq > come), "absent"))
    if not waits:
        waits = unsure
    if not waits:
        waits = [
            Wait(head.rank, member, head, "blocked")
            for member in job.members[head.group]
            if member != head.rank and _is_behind(pending[member], head.group, head.seq)
        ]
    return waits


def _is_behind(pending: Sequence[Record], group: str, seq: int) -> bool:
    """Whether a rank has this collective in its queue, unfinished, after an unfinished one of another group."""
    for place, record in enumerate(pending):
        if record.group == group and not record.p2p and record.seq == seq:
            return any(earlier.group != group for earlier in pending[:place])
    return False


def _for_peer(job: Job, record: Record, pending: Pending) -> list[Wait]:
    """Whether a rank waits for its partner in an unfinished send or receive."""
    peer = record.peer
    if peer is None or peer == record.rank:
        return []
    if peer not in job.ranks:
        return [Wait(record.rank, peer, record, "no_dump")]
    if not _peer_came(job, record, peer, pending):
        return [Wait(record.rank, peer, record, "absent")]
    other = "recv" if record.op == "send" else "send"
    for place, theirs in enumerate(pending[peer]):
        same = theirs.p2p_seq == record.p2p_seq or len(job.members[record.group]) > 2
        if same and (theirs.group, theirs.op, theirs.peer) == (record.group, other, record.rank):
            behind = any(earlier.group != record.group for earlier in pending[peer][:place])
            return [Wait(record.rank, peer, record, "blocked")] if behind else []
    return []


def _peer_came(job: Job, record: Record, peer: int, pending: Pending) -> bool:
    """Whether the partner has enqueued its side.

    The n-th send of one is the n-th receive of the other: counted from the start where both dumps hold it.
    Else, in a group of two, both sides number the same operations. Else the partner's unfinished ones must
    be as many as one's own.
    """
    other = "recv" if record.op == "send" else "send"
    mine, theirs = job.records[record.rank], job.records.get(peer, [])
    if mine[0].number == 0 and theirs and theirs[0].number == 0:
        return _place(mine, record) < len(_matching(theirs, record, other))
    if len(job.members[record.group]) == 2:
        numbers = [r.p2p_seq for r in theirs if r.group == record.group and r.p2p]
        status = job.status.get((peer, record.group))
        if numbers:
            return max(numbers) >= record.p2p_seq
        if status is not None and status.enqueued is not None and status.enqueued > record.seq:
            return status.enqueued >= record.p2p_seq
    return _place(pending[record.rank], record) < len(_matching(pending[peer], record, other))


def _place(own: Sequence[Record], record: Record) -> int:
    """How many operations with the same partner and direction come before this one."""
    same = [r for r in own if (r.group, r.op, r.peer) == (record.group, record.op, record.peer)]
    return same.index(record)


def _matching(theirs: Sequence[Record], record: Record, op: str) -> list[Record]:
    return [r for r in theirs if (r.group, r.op, r.peer) == (record.group, op, record.rank)]


def _with_mismatches(job: Job, waits: Iterable[Wait], mismatches: Sequence[Mismatch], pending: Pending) -> list[Wait]:
    """A rank that called something else has no excuse in that group; the others wait for it."""
    found = list(waits)
    for mismatch in mismatches:
        if mismatch.seq is None:
            continue
        at, group, odd = mismatch.seq, mismatch.group, set(mismatch.odd)
        found = [w for w in found if not (w.record.group == group and w.record.seq >= at and w.waiter in odd)]
        for rank in job.members[group]:
            own = [r for r in pending.get(rank, []) if r.group == group and r.seq == at and not r.p2p]
            if own and (rank not in odd or not mismatch.majority):
                found += [Wait(rank, other, own[0], "mismatch") for other in sorted(odd - {rank})]
    return found


def sinks(waits: Sequence[Wait]) -> list[list[int]]:
    """The ranks that others wait for and that wait for no other rank: single ones, or cycles that wait for each other.

    Where only waits that the dumps do not state close a cycle, the sure ones decide.
    """
    found: list[list[int]] = []
    for ranks in _sinks(waits):
        inside = [wait for wait in waits if wait.sure and wait.waiter in ranks and wait.awaited in ranks]
        closed_by_guess = len(ranks) > 1 and any(not w.sure for w in waits if w.waiter in ranks)
        found += (_sinks(inside) or [ranks]) if closed_by_guess else [ranks]
    return sorted(found)


def _sinks(waits: Sequence[Wait]) -> list[list[int]]:
    ahead: dict[int, set[int]] = {}
    for wait in waits:
        ahead.setdefault(wait.waiter, set()).add(wait.awaited)
        ahead.setdefault(wait.awaited, set())
    components = _components(ahead)
    place = {rank: index for index, ranks in enumerate(components) for rank in ranks}
    awaited = {wait.awaited for wait in waits}
    return [
        sorted(ranks)
        for index, ranks in enumerate(components)
        if awaited & set(ranks) and all(place[other] == index for rank in ranks for other in ahead[rank])
    ]


def suspects(ring: Sequence[int], waits: Sequence[Wait]) -> list[int]:
    """Of ranks that wait for each other, the one that most of them wait for; else the one missing where the
    first of them began to wait (it left that call out, or came to another one before); else all."""
    inside = [wait for wait in waits if wait.waiter in ring and wait.awaited in ring]
    waiters = {rank: len({wait.waiter for wait in inside if wait.awaited == rank}) for rank in ring}
    most = [rank for rank in ring if waiters[rank] == max(waiters.values())]
    if len(most) == 1:
        return most
    began = {(wait.record.created, wait.awaited) for wait in inside if wait.record.created is not None}
    first = {rank for created, rank in began if created == min(created for created, _ in began)}
    return sorted(first) if len(first) == 1 else list(ring)


def _components(ahead: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Strongly connected components (Kosaraju's two passes, without recursion)."""
    order: list[int] = []
    seen: set[int] = set()
    for start in ahead:
        stack = [(start, iter(ahead[start]))] if start not in seen else []
        seen.add(start)
        while stack:
            node, nexts = stack[-1]
            following = next((other for other in nexts if other not in seen), None)
            if following is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(ahead[following])))
    behind: dict[int, set[int]] = defaultdict(set)
    for node, nexts_of in ahead.items():
        for other in nexts_of:
            behind[other].add(node)
    components: list[list[int]] = []
    placed: set[int] = set()
    for start in reversed(order):
        if start in placed:
            continue
        component, todo = [], [start]
        placed.add(start)
        while todo:
            node = todo.pop()
            component.append(node)
            new = behind[node] - placed
            placed |= new
            todo += new
        components.append(component)
    return components
