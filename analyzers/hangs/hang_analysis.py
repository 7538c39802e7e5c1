"""Where a job hung, and why: the first cause apart from those that only waited for it.

Flight Recorder dumps say who waits for whom; stacks, logs, RAS, processes' states and compile logs what the rank did
that all wait for, or who it is where there are no dumps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.sections import HANG
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.hangs import (
    evidence,
    first_causes,
    hang_facts,
    hang_sources,
    mismatches,
    timed_out,
    wait_graph,
)
from gpuscope.analyzers.hangs.mismatches import Mismatch
from gpuscope.analyzers.hangs.rank_states import Job, Record, read
from gpuscope.analyzers.hangs.wait_graph import Wait
from gpuscope.catalogue import hang_sentences as sentences
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.hangs import Hang as JobHang
from gpuscope.catalogue.findings.hangs import rank_list
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.hang_section import Hang, HangCause, HangLast, HangMismatch, HangOperation
from gpuscope.when_used import dataclass

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
    told: evidence.Evidence
    awaited: timed_out.Awaited
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
    job, told = read(facts.trace), evidence.read(facts.trace)
    healthy = job.calm and _longest_wait(job) < max(PATIENCE_NS, 3 * _longest_pause(job))
    # Between two dumps of a healthy job a rank goes on: what looks like a wait is work in flight.
    odd = () if healthy else mismatches.find(job)
    found_waits = () if healthy else wait_graph.find(job, odd)
    of_dumps = () if healthy else _causes(job, found_waits, odd)
    awaited = timed_out.awaited(job, told)
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
            causes[rank] = hang_facts.left_behind(job, rank, alone)
    for mismatch in odd:
        if mismatch.seq is None or not causes:
            for rank in mismatch.odd:
                causes.setdefault(rank, hang_facts.mismatched(job, rank, mismatch))
    if not causes:
        causes = _transfer(job, waiting)
    return [causes[rank] for rank in sorted(causes)]


def _cause(job: Job, rank: int, ring: Sequence[int], awaiting: Sequence[Wait]) -> HangCause:
    if rank not in job.ranks:
        return hang_facts.without_dump(job, rank, awaiting)
    mismatched = [wait for wait in awaiting if wait.reason == "mismatch"]
    if mismatched:
        return hang_facts.called_other(job, rank, mismatched, len(ring) == 1)
    alone = _left_behind(job, rank)
    if alone is not None:
        return hang_facts.stuck(job, rank, alone, awaiting)
    return hang_facts.in_ring(job, rank, ring, awaiting) if len(ring) > 1 else hang_facts.absent(job, rank, awaiting)


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
            causes[rank] = hang_facts.in_transfer(job, rank, own[0])
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
        "operations": timed_out.operations(found.awaited, first) if by_logs else _operations(job, found.waits),
        "mismatches": [_mismatch(job, mismatch) for mismatch in found.mismatches],
        "last": [_last(job, rank) for rank in job.ranks],
        "certain": [
            *([sentences.CAME_TO_ITS_END] if found.facts.completed and not causes else []),
            *(hang_facts.timed_out(found.awaited) if found.hung else []),
            *hang_facts.certain(job, found.waits, causes),
            *hang_facts.seen(causes, found.told),
            *hang_facts.unnamed(found.told),
        ],
        "uncertain": [
            *hang_facts.uncertain(job, found.waits, causes, found.facts, found.told, found.awaited, hung=found.hung),
            *hang_facts.open_reasons(causes, found.told),
        ],
        "hosts": [
            {"rank": rank, "doing": host.doing, "place": host.place or None, "frames": list(host.frames)}
            for rank, host in sorted(found.told.hosts.items())
        ],
        "signs": [*found.told.signs, *last_lines],
        "sources": hang_sources.of(job, found.told, causes, found.facts),
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
            "name": str(hang_facts.operation(found.job, record)),
            "note": f"waits for {rank_list(awaited)}",
        }
        for (rank, record), awaited in list(shown.items())[:EVIDENCE]
    ]
    reasons: dict[str, list[int]] = defaultdict(list)
    for cause in found.causes:
        reasons[cause["why"]].append(cause["rank"])
    words = JobHang(list(reasons.items()), found.only_waited)
    return made(words, ranks=first, evidence=evidence)
