"""The facts about a hang that its sentences are made of: what is certain, what is not, why a rank is a first cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.hangs import memory_shortage, network_errors
from gpuscope.analyzers.hangs.evidence import Evidence
from gpuscope.analyzers.hangs.mismatches import Mismatch
from gpuscope.analyzers.hangs.rank_states import Job, Record
from gpuscope.analyzers.hangs.timed_out import Awaited as Waiting
from gpuscope.analyzers.hangs.wait_graph import Wait
from gpuscope.catalogue import hang_reasons as reasons
from gpuscope.catalogue import hang_sentences as sentences
from gpuscope.catalogue.hang_sentences import Awaited, Call, Operation
from gpuscope.schema.hang_section import HangCause

_ABSENT = ("never_arrived", "no_dump", "behind", "silent")
_OF_A_MOMENT = frozenset({"compiling", "data_loader", "storage", "device_wait", "lock", "gil", "host_code"})


def operation(job: Job, record: Record) -> Operation:
    """A record of a dump as an operation that sentences name."""
    return Operation(
        record.op, record.p2p_seq if record.p2p else record.seq, job.title(record.group), record.p2p, record.peer
    )


def absent(job: Job, rank: int, awaiting: Sequence[Wait]) -> HangCause:
    """A rank that others wait for, while it waits for no rank."""
    sure = [wait for wait in awaiting if wait.sure]
    awaited = _awaited(job, awaiting, _first(sure or awaiting))
    why = sentences.never_arrived(awaited, bool(sure), len(job.pending(rank)))
    return {"rank": rank, "kind": "never_arrived", "certain": bool(sure), "why": why}


def left_behind(job: Job, rank: int, alone: Record) -> HangCause:
    """A rank that others don't wait for, whose device did not finish what all others finished."""
    why = sentences.left_behind(operation(job, alone))
    return {"rank": rank, "kind": "device_stuck", "certain": True, "why": why}


def stuck(job: Job, rank: int, alone: Record, awaiting: Sequence[Wait]) -> HangCause:
    """A rank that others wait for, whose device did not finish what all others finished."""
    why = sentences.device_stuck(operation(job, alone), _awaited(job, awaiting, _first(awaiting)))
    return {"rank": rank, "kind": "device_stuck", "certain": True, "why": why}


def without_dump(job: Job, rank: int, awaiting: Sequence[Wait]) -> HangCause:
    """A rank that wrote no dump."""
    why = sentences.no_dump(_awaited(job, awaiting, _first(awaiting)))
    return {"rank": rank, "kind": "no_dump", "certain": False, "why": why}


def called_other(job: Job, rank: int, awaiting: Sequence[Wait], majority: bool) -> HangCause:
    """A rank that called something else than the others, who are the majority or not."""
    record = awaiting[0].record
    own = next((r for r in job.collectives.get((rank, record.group), []) if r.seq == record.seq), None)
    waiting = [wait.waiter for wait in awaiting]
    called = None if own is None else _call(own)
    why = sentences.called_other(called, record.seq, job.title(record.group), waiting, _call(record))
    return {"rank": rank, "kind": "mismatch", "certain": majority, "why": why, "remedy": reasons.MISMATCH}


def _call(record: Record) -> Call:
    return Call(record.op, record.sizes, record.dtype)


def mismatched(job: Job, rank: int, mismatch: Mismatch) -> HangCause:
    """A rank of a mismatch in which no rank waits, or whose dump lists other members of a group."""
    why = sentences.differs(mismatch.what, mismatch.seq, job.title(mismatch.group), list(mismatch.variants.items()))
    return {"rank": rank, "kind": "mismatch", "certain": mismatch.majority, "why": why, "remedy": reasons.MISMATCH}


def in_ring(job: Job, rank: int, ring: Sequence[int], awaiting: Sequence[Wait]) -> HangCause:
    """A rank of several that wait for each other."""
    inside = [wait for wait in awaiting if wait.waiter in ring]
    why = sentences.circular(ring, _awaited(job, inside, _first(inside)), operation(job, job.pending(rank)[0]))
    return {"rank": rank, "kind": "circular", "certain": False, "why": why, "remedy": reasons.CIRCULAR}


def in_transfer(job: Job, rank: int, record: Record) -> HangCause:
    """A rank in an operation that every member has enqueued, and none has finished."""
    why = sentences.transfer(operation(job, record))
    return {"rank": rank, "kind": "transfer", "certain": False, "why": why}


def certain(job: Job, waits: Sequence[Wait], causes: Sequence[HangCause]) -> list[str]:
    """What the dumps state."""
    first = {cause["rank"] for cause in causes}
    absences = [wait for wait in waits if wait.reason == "absent" and wait.awaited in first]
    by_operation: dict[tuple[str, int], list[Wait]] = defaultdict(list)
    for wait in [wait for wait in absences if not wait.record.p2p] or absences:
        by_operation[wait.record.group, wait.record.seq].append(wait)
    awaited = [
        Awaited(operation(job, own[0].record), {wait.waiter for wait in own}, {wait.awaited for wait in own})
        for own in by_operation.values()
    ]
    # An empty dump says nothing: its recorder may have been off, or its buffer have no room.
    told = {rank for rank, _ in job.status} | {rank for rank, own in job.records.items() if own}
    return sentences.certain(awaited, causes, [rank for rank in first if rank in told and not job.pending(rank)])


def timed_out(found: Waiting) -> list[str]:
    """What watchdogs say outright: who waited, in what."""
    return [sentences.timed_out(one.waiting, one.title) for one in found.stalled[: sentences.OPERATIONS_NAMED]]


def unnamed(evidence: Evidence) -> list[str]:
    """Errors and ends of processes whose rank no line names."""
    found: dict[str, str] = {}
    for sign, reason in evidence.unnamed_ends():
        why, remedy = reasons.did(reason, f"{sign['file']}:{sign['line']}"), reasons.REMEDIES[reason]
        if reason == "network":
            error, remedy = network_errors.told(evidence.network, None, sign["text"])
            why = f"{why}: {error}"
        elif reason == "out_of_memory" and (shortage := memory_shortage.read(sign["text"])) is not None:
            why, remedy = f"{why}: {shortage.why()}", shortage.remedy()
        found.setdefault(reason, sentences.unnamed(why, remedy))
    return list(found.values())


def seen(causes: Sequence[HangCause], evidence: Evidence) -> list[str]:
    """What stacks, logs and states say outright of the first causes."""
    return [
        reasons.seen(cause["rank"], reasons.did(reason, cause.get("place") or ""))
        for cause in causes
        if (reason := cause.get("reason")) is not None
        and (evidence.gone(cause["rank"]) == reason or cause["rank"] in evidence.hosts)
    ]


def open_reasons(causes: Sequence[HangCause], evidence: Evidence) -> list[str]:
    """What they leave open."""
    told = [cause["reason"] for cause in causes if cause.get("reason") is not None]
    idle = [cause["rank"] for cause in causes if cause["kind"] in _ABSENT and cause.get("reason") is None]
    idle = [rank for rank in idle if rank not in evidence.last_lines]
    return reasons.open_reasons(bool(_OF_A_MOMENT & set(told)), "network" in told, idle)


def uncertain(
    job: Job,
    waits: Sequence[Wait],
    causes: Sequence[HangCause],
    facts: RunFacts,
    evidence: Evidence,
    found: Waiting,
    *,
    hung: bool,
) -> list[str]:
    """What the dumps leave open."""
    counted = evidence.behind("ras")
    told_by_counts = not evidence.timed_out and any(cause["kind"] == "behind" for cause in causes)
    told_by_counts = told_by_counts and all(cause["rank"] in counted for cause in causes)
    explained = facts.killed | {cause["rank"] for cause in causes if cause.get("reason")}
    return sentences.uncertain(
        sentences.Unknown(
            causes,
            completed=facts.completed,
            dumps=job.dumped,
            watched=job.watched,
            stacks=any(record.frames for cause in causes for record in job.records.get(cause["rank"], [])),
            without_dump=set(job.without_dump) - explained,
            progress={wait.awaited for wait in waits if wait.reason == "unknown"},
            by_count=any(wait.record.p2p and len(job.members[wait.record.group]) > 2 for wait in waits),
            incomparable=[job.title(group) for group in sorted(job.incomparable)],
            counts=told_by_counts,
            hung=hung,
            timed_out=bool(found.stalled),
            absent=() if any(cause["certain"] for cause in causes) else found.absent - {c["rank"] for c in causes},
            empty=job.dumped and not any(job.records.values()) and not job.status,
            members=bool(job.members_unknown & {wait.record.group for wait in waits}),
        )
    )


def _first(awaiting: Sequence[Wait]) -> Wait:
    """Collectives of many ranks first: they show most. Of one waiter, the operation that it reached first."""
    waiting: dict[tuple[str, int], int] = defaultdict(int)
    for wait in awaiting:
        waiting[wait.record.group, wait.record.seq] += not wait.record.p2p
    return max(awaiting, key=lambda w: (waiting[w.record.group, w.record.seq], -w.record.number))


def _awaited(job: Job, awaiting: Sequence[Wait], chosen: Wait) -> Awaited:
    """The operation of a wait, with all who wait in it."""
    record = chosen.record
    same = (record.group, record.seq, record.op)
    waiting = {w.waiter for w in awaiting if (w.record.group, w.record.seq, w.record.op) == same}
    return Awaited(operation(job, record), waiting)
