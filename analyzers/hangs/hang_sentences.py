"""The sentences of a hang: what is certain, what is not, and why each rank is named as the first cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpuscope.analyzers.hangs.mismatches import Mismatch
from gpuscope.analyzers.hangs.rank_states import Job, Record
from gpuscope.analyzers.hangs.wait_graph import Wait
from gpuscope.catalogue.findings.hangs import rank_list, sentence
from gpuscope.schema.hang_section import HangCause
from gpuscope.words import units

OPERATIONS_NAMED = 4


def operation(job: Job, record: Record) -> str:
    """`all_to_all 45265 of group 72 (EXPERT_MODEL_PARALLEL_GROUP)`."""
    number = record.p2p_seq if record.p2p else record.seq
    to = (
        f" {'to' if record.op == 'send' else 'from'} rank {record.peer}"
        if record.p2p and record.peer is not None
        else ""
    )
    return f"{record.op} {number}{to} of {job.title(record.group)}"


def absent(job: Job, rank: int, awaiting: Sequence[Wait]) -> HangCause:
    """A rank that others wait for, while it waits for no rank."""
    sure = [wait for wait in awaiting if wait.sure]
    chosen = _first(sure or awaiting)
    mine = job.pending(rank)
    state = "nothing in flight"
    if mine:
        state = f"{units.plural(len(mine), 'operation')} in flight, none of which waits for another rank"
    verb = "never enqueued" if sure else "is not known to have enqueued"
    if chosen.record.p2p:
        verb += " the other side of"
    return {
        "rank": rank,
        "kind": "never_arrived",
        "certain": bool(sure),
        "why": f"{verb} {operation(job, chosen.record)}, where {_waiters(awaiting, chosen)}; {state}",
    }


def stuck(job: Job, rank: int, alone: Record, awaiting: Sequence[Wait]) -> HangCause:
    """A rank whose device did not finish what all others finished."""
    chosen = _first(awaiting)
    return {
        "rank": rank,
        "kind": "device_stuck",
        "certain": True,
        "why": f"{left_behind(job, alone)}; never enqueued {operation(job, chosen.record)}, where "
        f"{_waiters(awaiting, chosen)}",
    }


def left_behind(job: Job, record: Record) -> str:
    """What a rank alone did not finish."""
    return f"did not finish {operation(job, record)}, which the other members have all finished"


def without_dump(job: Job, rank: int, awaiting: Sequence[Wait]) -> HangCause:
    """A rank that wrote no dump."""
    chosen = _first(awaiting)
    return {
        "rank": rank,
        "kind": "no_dump",
        "certain": False,
        "why": f"wrote no dump; {_waiters(awaiting, chosen)} in {operation(job, chosen.record)}, which every other "
        "member has enqueued",
    }


def called_other(job: Job, rank: int, awaiting: Sequence[Wait], majority: bool) -> HangCause:
    """A rank that called something else than the others, who are the majority or not."""
    record = awaiting[0].record
    own = next((r for r in job.collectives.get((rank, record.group), []) if r.seq == record.seq), None)
    called = f"{own.op} of {own.sizes} {own.dtype}".rstrip() if own else "something else"
    return {
        "rank": rank,
        "kind": "mismatch",
        "certain": majority,
        "why": f"called {called} as number {record.seq} of {job.title(record.group)}, where "
        f"{rank_list(wait.waiter for wait in awaiting)} called {record.op} of {record.sizes} {record.dtype}".rstrip(),
    }


def mismatched(job: Job, rank: int, mismatch: Mismatch) -> HangCause:
    """A rank of a mismatch in which no rank waits, or whose dump lists other members of a group."""
    said = "; ".join(f"{rank_list(who)}: {called}" for called, who in mismatch.variants.items())
    number = "" if mismatch.seq is None else f"number {mismatch.seq} of "
    return {
        "rank": rank,
        "kind": "mismatch",
        "certain": mismatch.majority,
        "why": f"{mismatch.what.rstrip('s')} differs from the others in {number}{job.title(mismatch.group)} ({said})",
    }


def in_ring(job: Job, rank: int, ring: Sequence[int], awaiting: Sequence[Wait]) -> HangCause:
    """A rank of several that wait for each other."""
    inside = [wait for wait in awaiting if wait.waiter in ring]
    chosen = _first(inside)
    return {
        "rank": rank,
        "kind": "circular",
        "certain": False,
        "why": f"{rank_list(ring)} wait for each other, {_waiters(inside, chosen)} in {operation(job, chosen.record)}",
    }


def transfer(job: Job, record: Record) -> str:
    """Every member has enqueued it, and none has finished."""
    return f"every member has enqueued {operation(job, record)}, but it does not finish"


def certain(job: Job, waits: Sequence[Wait], causes: Sequence[HangCause]) -> list[str]:
    """What the dumps state."""
    found = []
    first = {cause["rank"] for cause in causes}
    collective = [wait for wait in waits if wait.reason == "absent" and wait.awaited in first and not wait.record.p2p]
    by_operation: dict[tuple[str, int], list[Wait]] = defaultdict(list)
    for wait in collective or [wait for wait in waits if wait.reason == "absent" and wait.awaited in first]:
        by_operation[wait.record.group, wait.record.seq].append(wait)
    for own in list(by_operation.values())[:OPERATIONS_NAMED]:
        found.append(
            f"{rank_list(wait.waiter for wait in own)} enqueued {operation(job, own[0].record)}; "
            f"{rank_list(wait.awaited for wait in own)} did not"
            + (" enqueue the other side." if own[0].record.p2p else ".")
        )
    more = len(by_operation) - OPERATIONS_NAMED
    if more > 0:
        found.append(f"The same holds for {more} more operations.")
    for cause in causes:
        if cause["certain"] and cause["kind"] in ("device_stuck", "mismatch"):
            found.append(f"Rank {cause['rank']} {cause['why']}.")
    idle = [rank for rank in first if rank in job.ranks and not job.pending(rank)]
    if idle:
        found.append(f"{rank_list(idle)} had nothing in flight, so no other rank held {_them(idle)} up.")
    return [sentence(text) for text in found]


def uncertain(job: Job, waits: Sequence[Wait], causes: Sequence[HangCause]) -> list[str]:
    """What the dumps leave open."""
    found = []
    if causes:
        framed = [c["rank"] for c in causes if any(r.frames for r in job.records.get(c["rank"], []))]
        found.append(
            "Why the first cause stopped: dumps record what was enqueued, not what a host or device did instead"
            + ("." if framed else ", and these contain no stacks.")
        )
        found.append("That the job hung at all: dumps taken on demand from a running job can look the same.")
    else:
        found.append("Whether the job hung: nothing in these dumps waits for another rank.")
    if len({cause["rank"] for cause in causes}) > 1 and all(c["kind"] in _INDEPENDENT for c in causes):
        found.append(
            f"Whether {rank_list(c['rank'] for c in causes)} stopped for one common reason or for different ones."
        )
    if any(cause["kind"] == "mismatch" and not cause["certain"] for cause in causes):
        found.append("Which of the ranks that called different things called the wrong one: there is no majority.")
    if any(cause["kind"] == "circular" for cause in causes):
        found.append(
            "Which of the ranks that wait for each other is at fault: the one named is the one that most of them wait "
            "for, or that was missing where the first of them began to wait."
        )
    if job.without_dump:
        found.append(f"What {rank_list(job.without_dump)} did: there is no dump.")
    unknown = sorted({wait.awaited for wait in waits if wait.reason == "unknown"})
    if unknown:
        found.append(f"How far {rank_list(unknown)} had got in groups that are missing from their dumps.")
    if any(wait.record.p2p and len(job.members[wait.record.group]) > 2 for wait in waits):
        found.append("Sends and receives in groups of more than two ranks are matched by count, not by number.")
    if job.incomparable:
        groups = ", ".join(job.title(group) for group in sorted(job.incomparable))
        found.append(f"How far the ranks had got in {groups}: the dumps number the operations differently.")
    if job.members_unknown & {wait.record.group for wait in waits}:
        found.append("The members of some groups: no dump lists them, so only the ranks seen in them are known.")
    return found


_INDEPENDENT = ("never_arrived", "device_stuck", "no_dump")


def _them(found: Sequence[int]) -> str:
    return "it" if len(found) == 1 else "them"


def _first(awaiting: Sequence[Wait]) -> Wait:
    """Collectives of many ranks first: they show most. Of one waiter, the operation that it reached first."""
    waiting: dict[tuple[str, int], int] = defaultdict(int)
    for wait in awaiting:
        waiting[wait.record.group, wait.record.seq] += not wait.record.p2p
    return max(awaiting, key=lambda w: (waiting[w.record.group, w.record.seq], -w.record.number))


def _waiters(awaiting: Sequence[Wait], chosen: Wait) -> str:
    record = chosen.record
    own = {
        w.waiter
        for w in awaiting
        if (w.record.group, w.record.seq, w.record.op) == (record.group, record.seq, record.op)
    }
    return f"{rank_list(own)} {'waits' if len(own) == 1 else 'wait'}"
