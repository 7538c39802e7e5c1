"""Where a job hung, and why: the first cause apart from those that only waited for it.

Flight Recorder dumps say who waits for whom; stacks, logs, RAS, processes' states and compile logs what the rank did
that all wait for, or who it is where there are no dumps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.lanes import HANG
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.hangs import evidence as network_errors
from gpuscope.analyzers.hangs import first_causes, wait_graph
from gpuscope.analyzers.hangs import timed_out as memory_shortage
from gpuscope.analyzers.hangs.evidence import Evidence as evidence_Evidence
from gpuscope.analyzers.hangs.rank_states import Job, Record, read
from gpuscope.analyzers.hangs.timed_out import Awaited as Waiting
from gpuscope.analyzers.hangs.wait_graph import Mismatch, Wait
from gpuscope.catalogue import hang_sentences as sentences
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.hangs import Hang as JobHang
from gpuscope.catalogue.findings.hangs import rank_list
from gpuscope.catalogue.hang_sentences import Awaited, Call, Operation
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.memory_section import (
    Hang,
    HangCause,
    HangLast,
    HangMismatch,
    HangOperation,
    HangSource,
    SourceOfHang,
)
from gpuscope.when_used import dataclass

# What was read of a job that hung, and which ranks it tells nothing of.

_STATES = ("alive", "stopped", "exited", "storage", "debugger")


def of(job: Job, evidence: evidence_Evidence, causes: Sequence[HangCause], facts: RunFacts) -> list[HangSource]:
    """Every kind of source; what is missing of those that could still tell something: a killed rank leaves no dump, and
    of a job that is over nobody takes stacks."""
    known = set(job.ranks) | set(job.without_dump) | evidence.ranks | {cause["rank"] for cause in causes}
    told = {cause["rank"] for cause in causes if cause.get("reason_certain")}
    opened = {cause["rank"] for cause in causes if not facts.over and cause["kind"] != "mismatch"} - told
    logs = {one["rank"] for one in evidence.signs if one["sign"] not in _STATES} | evidence.last_lines.keys()
    states = {one["rank"] for one in evidence.signs if one["sign"] in _STATES}
    ras = {one.rank for one in evidence.progress if one.told_by == "ras"}
    silent = opened - set(evidence.hosts) - set(job.ranks)
    found = [
        _source("flight_recorder", job.ranks, known - told - facts.killed),
        _source("stacks", evidence.hosts, opened),
        _source("logs", logs, silent),
        _source("ras", ras, opened if job.backend != "gloo" else ()),
        _source("process_states", states, silent),
        _source("compile_logs", evidence.compile_logs, ()),
    ]
    return [source for source in found if source["ranks"] or source["missing"]]


def _source(name: SourceOfHang, told: Collection[int | None], wanted: Collection[int]) -> HangSource:
    ranks = sorted(rank for rank in told if rank is not None)
    missing = sorted(set(wanted) - set(ranks))
    return {"source": name, "ranks": ranks, "missing": missing, "how": sentences.HOW[name] if missing else None}


# The facts about a hang that its sentences are made of: what is certain, what is not, why a rank is a first cause.

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
    return {"rank": rank, "kind": "mismatch", "certain": majority, "why": why, "remedy": sentences.MISMATCH}


def _call(record: Record) -> Call:
    return Call(record.op, record.sizes, record.dtype)


def mismatched(job: Job, rank: int, mismatch: Mismatch) -> HangCause:
    """A rank of a mismatch in which no rank waits, or whose dump lists other members of a group."""
    why = sentences.differs(mismatch.what, mismatch.seq, job.title(mismatch.group), list(mismatch.variants.items()))
    return {"rank": rank, "kind": "mismatch", "certain": mismatch.majority, "why": why, "remedy": sentences.MISMATCH}


def in_ring(job: Job, rank: int, ring: Sequence[int], awaiting: Sequence[Wait]) -> HangCause:
    """A rank of several that wait for each other."""
    inside = [wait for wait in awaiting if wait.waiter in ring]
    why = sentences.circular(ring, _awaited(job, inside, _first(inside)), operation(job, job.pending(rank)[0]))
    return {"rank": rank, "kind": "circular", "certain": False, "why": why, "remedy": sentences.CIRCULAR}


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


def unnamed(evidence: evidence_Evidence) -> list[str]:
    """Errors and ends of processes whose rank no line names."""
    found: dict[str, str] = {}
    for sign, reason in evidence.unnamed_ends():
        why, remedy = sentences.did(reason, f"{sign['file']}:{sign['line']}"), sentences.REMEDIES[reason]
        if reason == "network":
            error, remedy = network_errors.told(evidence.network, None, sign["text"])
            why = f"{why}: {error}"
        elif reason == "out_of_memory" and (shortage := memory_shortage.read(sign["text"])) is not None:
            why, remedy = f"{why}: {shortage.why()}", shortage.remedy()
        found.setdefault(reason, sentences.unnamed(why, remedy))
    return list(found.values())


def seen(causes: Sequence[HangCause], evidence: evidence_Evidence) -> list[str]:
    """What stacks, logs and states say outright of the first causes."""
    return [
        sentences.seen(cause["rank"], sentences.did(reason, cause.get("place") or ""))
        for cause in causes
        if (reason := cause.get("reason")) is not None
        and (evidence.gone(cause["rank"]) == reason or cause["rank"] in evidence.hosts)
    ]


def open_reasons(causes: Sequence[HangCause], evidence: evidence_Evidence) -> list[str]:
    """What they leave open."""
    told = [cause["reason"] for cause in causes if cause.get("reason") is not None]
    idle = [cause["rank"] for cause in causes if cause["kind"] in _ABSENT and cause.get("reason") is None]
    idle = [rank for rank in idle if rank not in evidence.last_lines]
    return sentences.open_reasons(bool(_OF_A_MOMENT & set(told)), "network" in told, idle)


def uncertain(
    job: Job,
    waits: Sequence[Wait],
    causes: Sequence[HangCause],
    facts: RunFacts,
    evidence: evidence_Evidence,
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


EVIDENCE = 8
PATIENCE_NS = 5_000_000_000
"""In dumps on demand an operation has to be under way for so long, and for three times the job's longest pause."""
NO_PAIR = (-1, -1)
"""In place of two ranks: an operation of a whole group."""


@dataclass(frozen=True)
class Found:
    """What is known about a job, of its end too."""

    job: Job
    waits: Sequence[Wait]
    mismatches: Sequence[Mismatch]
    causes: Sequence[HangCause]
    told: network_errors.Evidence
    awaited: memory_shortage.Awaited
    facts: RunFacts

    @property
    def hung(self) -> bool:
        """Whether a rank is at fault, or a time-out proves it though nothing tells whose fault it is."""
        return bool(self.causes) or (self.told.timed_out and not self.facts.completed)

    @property
    def only_waited(self) -> list[int]:
        """Ranks that waited, by dumps and watchdogs, and are no first cause."""
        waiting = {wait.waiter for wait in self.waits} | self.awaited.waiting
        return sorted(waiting - {cause["rank"] for cause in self.causes})


def run(facts: RunFacts) -> Result:
    """The section `hang` and its finding."""
    result = Result("hang")
    job, told = read(facts.trace), network_errors.read(facts.trace)
    healthy = job.calm and _longest_wait(job) < max(PATIENCE_NS, 3 * _longest_pause(job))
    # Between two dumps of a healthy job a rank goes on: what looks like a wait is work in flight.
    odd = () if healthy else wait_graph.mismatches_find(job)
    found_waits = () if healthy else wait_graph.find(job, odd)
    of_dumps = () if healthy else _causes(job, found_waits, odd)
    awaited = memory_shortage.awaited(job, told)
    causes = [] if facts.completed and healthy else first_causes.causes(job, of_dumps, told, awaited, healthy)
    found = Found(job, found_waits, odd, causes, told, awaited, facts)
    result.sections[HANG] = _section(found)
    if found.hung:
        result.findings.append(_finding(found))
    return result


def _longest_wait(job: Job) -> int:
    """How long, ns, the oldest operation had been under way when the last dump was written."""
    created = [record.created for rank in job.ranks for record in job.pending(rank) if record.created]
    return max((job.dumped_ns - start for start in created), default=0)


def _longest_pause(job: Job) -> int:
    """The longest time, ns, between two operations that a rank enqueued."""
    pauses = [0]
    for own in job.records.values():
        created = sorted(record.created for record in own if record.created)
        pauses += [after - before for before, after in pairwise(created)]
    return max(pauses)


def _causes(job: Job, found: Sequence[Wait], odd: Sequence[Mismatch]) -> list[HangCause]:
    causes: dict[int, HangCause] = {}
    for ranks in wait_graph.sinks(found):
        for rank in wait_graph.suspects(ranks, found) if len(ranks) > 1 else ranks:
            causes[rank] = _cause(job, rank, ranks, [wait for wait in found if wait.awaited == rank])
    waiting = {wait.waiter for wait in found}
    for rank in set(job.ranks) - waiting - set(causes):
        if (alone := _left_behind(job, rank)) is not None:
            causes[rank] = left_behind(job, rank, alone)
    for mismatch in odd:
        if mismatch.seq is None or not causes:
            for rank in mismatch.odd:
                causes.setdefault(rank, mismatched(job, rank, mismatch))
    if not causes:
        causes = _transfer(job, waiting)
    return [causes[rank] for rank in sorted(causes)]


def _cause(job: Job, rank: int, ring: Sequence[int], awaiting: Sequence[Wait]) -> HangCause:
    if rank not in job.ranks:
        return without_dump(job, rank, awaiting)
    mismatched = [wait for wait in awaiting if wait.reason == "mismatch"]
    if mismatched:
        return called_other(job, rank, mismatched, len(ring) == 1)
    alone = _left_behind(job, rank)
    if alone is not None:
        return stuck(job, rank, alone, awaiting)
    return in_ring(job, rank, ring, awaiting) if len(ring) > 1 else absent(job, rank, awaiting)


def _left_behind(job: Job, rank: int) -> Record | None:
    """The first unfinished collective of a rank that every other member of its group has finished."""
    for record in job.pending(rank):
        others = [other for other in job.members[record.group] if other != rank and other in job.ranks]
        if record.p2p or record.done is None or not others:
            continue
        if all(_has_finished(job, other, record) for other in others):
            return record
    return None


def _has_finished(job: Job, rank: int, record: Record) -> bool:
    own = [other for other in job.collectives.get((rank, record.group), []) if other.seq == record.seq]
    if own:
        return not job.unfinished(own[0])
    status = job.status.get((rank, record.group))
    known = status is not None and status.completed is not None and record.group not in job.p2p_groups
    return known and status is not None and (status.completed or 0) >= record.seq


def _transfer(job: Job, waiting: set[int]) -> dict[int, HangCause]:
    """Where every member has come to an operation, and none of them gets through it."""
    causes: dict[int, HangCause] = {}
    for rank in job.ranks:
        own = job.pending(rank)
        if own and rank not in waiting:
            causes[rank] = in_transfer(job, rank, own[0])
    return causes


def _section(found: Found) -> Hang:
    job, causes = found.job, found.causes
    first = {cause["rank"] for cause in causes}
    by_logs = not found.waits and found.hung
    last_lines = [line for rank, line in sorted(found.told.last_lines.items()) if rank in first and line["text"]]
    return {
        "hung": found.hung,
        "first_cause": list(causes),
        "only_waited": found.only_waited,
        "without_dump": job.without_dump,
        "operations": memory_shortage.operations(found.awaited, first) if by_logs else _operations(job, found.waits),
        "mismatches": [_mismatch(job, mismatch) for mismatch in found.mismatches],
        "last": [_last(job, rank) for rank in job.ranks],
        "certain": [
            *([sentences.CAME_TO_ITS_END] if found.facts.completed and not causes else []),
            *(timed_out(found.awaited) if found.hung else []),
            *certain(job, found.waits, causes),
            *seen(causes, found.told),
            *unnamed(found.told),
        ],
        "uncertain": [
            *uncertain(job, found.waits, causes, found.facts, found.told, found.awaited, hung=found.hung),
            *open_reasons(causes, found.told),
        ],
        "hosts": [
            {"rank": rank, "doing": host.doing, "place": host.place or None, "frames": list(host.frames)}
            for rank, host in sorted(found.told.hosts.items())
        ],
        "signs": [*found.told.signs, *last_lines],
        "sources": of(job, found.told, causes, found.facts),
        "contradictions": first_causes.contradictions(causes, found.told),
    }


def _operations(job: Job, found: Sequence[Wait]) -> list[HangOperation]:
    """The operations that ranks wait in, each with the ranks that have enqueued it and those missing."""
    groups: Mapping[tuple[str, str, int, int], list[Wait]] = defaultdict(list)
    for wait in found:
        record = wait.record
        pair = (min(record.rank, wait.awaited), max(record.rank, wait.awaited)) if record.p2p else NO_PAIR
        number = record.p2p_seq if record.p2p else record.seq
        key = (record.group, f"{record.op} {pair}" if record.p2p else record.op, number, pair[0])
        groups[key].append(wait)
    entries: list[HangOperation] = []
    for own in groups.values():
        record = own[0].record
        entries.append(
            {
                "op": record.op,
                "group": record.group,
                "description": job.descriptions.get(record.group),
                "seq": record.p2p_seq if record.p2p else record.seq,
                "waiting": sorted({wait.waiter for wait in own}),
                "awaited": sorted({wait.awaited for wait in own}),
                "reason": own[0].reason,
            }
        )
    return sorted(entries, key=lambda entry: (entry["reason"] == "blocked", -len(entry["waiting"]), entry["group"]))


def _mismatch(job: Job, mismatch: Mismatch) -> HangMismatch:
    return {
        "group": mismatch.group,
        "description": job.descriptions.get(mismatch.group),
        "seq": mismatch.seq,
        "what": mismatch.what,
        "variants": [{"called": called, "ranks": ranks} for called, ranks in mismatch.variants.items()],
    }


def _last(job: Job, rank: int) -> HangLast:
    records = job.records.get(rank, [])
    last = records[-1] if records else None
    return {
        "rank": rank,
        "op": last.op if last else None,
        "group": last.group if last else None,
        "description": job.descriptions.get(last.group) if last else None,
        "seq": (last.p2p_seq if last.p2p else last.seq) if last else None,
        "state": last.state if last else None,
        "created_ns": last.created if last else None,
        "in_flight": len(job.pending(rank)),
        "frames": last.frames.splitlines() if last else [],
    }


def _finding(found: Found) -> FindingEntry:
    latest = max((r.created for own in found.job.records.values() for r in own if r.created), default=0)
    latest = max(latest, found.job.dumped_ns)
    shown: dict[tuple[int, Record], list[int]] = defaultdict(list)
    first = {cause["rank"] for cause in found.causes}
    for wait in sorted(found.waits, key=lambda wait: wait.record.p2p):
        if wait.awaited in first:
            shown[wait.waiter, wait.record].append(wait.awaited)
    evidence: list[Evidence] = [
        {
            "rank": rank,
            "start_ns": record.created or 0,
            "dur_ns": max(latest - record.created, 0) if record.created else 0,
            "name": str(operation(found.job, record)),
            "note": f"waits for {rank_list(awaited)}",
        }
        for (rank, record), awaited in list(shown.items())[:EVIDENCE]
    ]
    reasons: dict[str, list[int]] = defaultdict(list)
    for cause in found.causes:
        reasons[cause["why"]].append(cause["rank"])
    words = JobHang(list(reasons.items()), found.only_waited)
    return made(words, ranks=first, evidence=evidence)
