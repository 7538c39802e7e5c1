"""What each rank had done when it wrote its Flight Recorder dump, as plain objects."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field

from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace, recorded_world
from gpuscope.when_used import dataclass

FLIGHT_RECORDER = "flight-recorder"
"""The format of its dumps."""


@dataclass(frozen=True)
class Record:
    """One operation that a rank enqueued; `done` is None where the recorder can't say."""

    rank: int
    number: int
    group: str
    seq: int
    p2p_seq: int
    op: str
    peer: int | None
    dtype: str
    sizes: str
    state: str
    done: bool | None
    created: int | None
    frames: str

    @property
    def p2p(self) -> bool:
        """Whether it is between two ranks only."""
        return self.op in POINT_TO_POINT


@dataclass(frozen=True)
class Status:
    """How far a rank had got in one group: numbers of its last operations, None where unknown."""

    enqueued: int | None
    completed: int | None


@dataclass
class Job:
    """All ranks together. `members` holds the ranks of each group; `members_unknown` the groups of which
    no dump lists the members, so that they are only the ranks seen there."""

    ranks: list[int]
    world_size: int | None
    records: dict[int, list[Record]] = field(default_factory=dict)
    status: dict[tuple[int, str], Status] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    members_unknown: set[str] = field(default_factory=set)
    contradicted: dict[str, dict[tuple[int, ...], list[int]]] = field(default_factory=dict)
    """Groups whose members the dumps disagree about: members → the ranks that say so."""
    incomparable: set[str] = field(default_factory=set)
    """Groups whose operations the ranks number differently."""
    collectives: dict[tuple[int, str], list[Record]] = field(default_factory=dict)
    """Of each rank in each group, by number."""
    dumped_ns: int = 0
    """When the last dump was written, where one says so (those of `gpuscope record` do), else 0."""
    backend: str = ""
    dumped: bool = False
    """Whether there are dumps at all."""
    watched: bool = False
    """Whether gpuscope's own watch wrote a dump, because an operation was under way for too long."""
    calm: bool = False
    """Whether every dump was asked for, or written at the end, and not because something waited too long."""
    p2p_groups: set[str] = field(default_factory=set)
    """Groups with point-to-point operations: their `Status` may count either kind."""

    @property
    def without_dump(self) -> list[int]:
        """Ranks of the job that wrote no dump, as far as its size or its groups are known."""
        if not self.dumped:
            return []
        known = {rank for ranks in self.members.values() for rank in ranks} | set(range(self.world_size or 0))
        return sorted(known - set(self.ranks))

    def title(self, group: str) -> str:
        """`group 37 (TENSOR_MODEL_PARALLEL_GROUP)`."""
        described = self.descriptions.get(group)
        return f"group {group} ({described})" if described else f"group {group}"

    def enqueued(self, rank: int, group: str) -> int | None:
        """Number of the last collective that a rank enqueued in a group; None where that is unknown."""
        own = self.collectives.get((rank, group), [])
        last = own[-1].seq if own else None
        status = self.status.get((rank, group))
        if status is not None and status.enqueued is not None and group not in self.p2p_groups:
            return max(status.enqueued, last or 0)
        if last is None and self.records.get(rank) and self.records[rank][0].number == 0:
            return 0  # its buffer holds everything from the start, and nothing of this group
        return last

    def unfinished(self, record: Record) -> bool:
        """Whether the operation was still under way; where unknown, whether a member had not enqueued it."""
        if record.done is not None:
            return not record.done
        if record.p2p:
            return False
        status = self.status.get((record.rank, record.group))
        if status is not None and status.completed is not None and record.group not in self.p2p_groups:
            return status.completed < record.seq
        come = [self.enqueued(rank, record.group) for rank in self.members[record.group]]
        return any(last is not None and last < record.seq for last in come)

    def pending(self, rank: int) -> list[Record]:
        """Operations of a rank that were still under way, in the order it enqueued them."""
        return [record for record in self.records.get(rank, []) if self.unfinished(record)]


def read(trace: Trace) -> Job:
    """The state of every rank of a trace."""
    world = recorded_world(trace)
    # The largest group of a dump need not begin with rank 0: it does not say which ranks wrote no dump.
    job = Job(trace.ranks, None if world.provenance == "communicators" else world.size)
    job.backend = next((row["backend"] for row in trace.rows("ranks") if row["backend"]), "")
    job.dumped = has_dumps(trace)
    if not job.dumped:
        job.ranks = []
    job.dumped_ns = max((source.facts.get("dumped_ns", 0) for source in trace.sources), default=0)
    notes = {source.facts.get("note", "") for source in trace.sources if "dumped_ns" in source.facts}
    job.watched = "on a hang" in notes
    job.calm = bool(notes) and notes <= {"on demand", "at the end"}
    _records(trace, job)
    _status(trace, job)
    _members(trace, job)
    _comparable(job)
    return job


def has_dumps(trace: Trace) -> bool:
    """Whether there are Flight Recorder dumps, empty ones too."""
    recorded = len(trace["flight_records"]) + len(trace["group_status"]) > 0
    return recorded or any(source.format == FLIGHT_RECORDER for source in trace.sources)


def _records(trace: Trace, job: Job) -> None:
    table, names = trace["flight_records"], trace.names
    columns = [table[column].tolist() for column in table.columns]
    for row in zip(*columns, strict=True):
        values = dict(zip(table.columns, row, strict=True))
        record = Record(
            rank=values["rank"],
            number=values["record"],
            group=names[values["group"]],
            seq=values["seq"],
            p2p_seq=values["p2p_seq"],
            op=names[values["op"]],
            peer=_known(values["peer"]),
            dtype=names[values["dtype"]],
            sizes=names[values["sizes"]],
            state=names[values["state"]],
            done=None if values["done"] == NA else bool(values["done"]),
            created=_known(values["created"]),
            frames=names[values["frames"]],
        )
        job.records.setdefault(record.rank, []).append(record)
        if record.p2p:
            job.p2p_groups.add(record.group)
        else:
            job.collectives.setdefault((record.rank, record.group), []).append(record)
    for own in job.collectives.values():
        own.sort(key=lambda record: record.seq)


def _status(trace: Trace, job: Job) -> None:
    table = trace["group_status"]
    for row in range(len(table)):
        key = (int(table["rank"][row]), trace.names[int(table["group"][row])])
        job.status[key] = Status(_known(int(table["enqueued"][row])), _known(int(table["completed"][row])))


def _members(trace: Trace, job: Job) -> None:
    table, names = trace["groups"], trace.names
    listed: dict[str, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in range(len(table)):
        group = names[int(table["group"][row])]
        if table["description"][row] != NO_NAME:
            job.descriptions[group] = names[int(table["description"][row])]
        if table["ranks"][row] != NO_NAME:
            members = tuple(int(rank) for rank in names[int(table["ranks"][row])].split(","))
            listed[group][members].append(int(table["rank"][row]))
    for group, versions in listed.items():
        job.members[group] = max(versions, key=lambda members: len(versions[members]))
        if len(versions) > 1:
            job.contradicted[group] = dict(versions)
    seen: dict[str, set[int]] = defaultdict(set)
    for rank, group in job.status:
        seen[group].add(rank)
    for rank, records in job.records.items():
        for record in records:
            seen[record.group] |= {rank} if record.peer is None else {rank, record.peer}
    for group in set(seen) - set(listed):
        job.members[group] = tuple(sorted(seen[group]))
        job.members_unknown.add(group)


def _comparable(job: Job) -> None:
    """Numbers of a group compare if the dumps start at zero, or if anywhere they agree on what was called.

    A rank that left out a call differs from there on, but not before; one whose counter started elsewhere
    (a rank that was restarted) differs everywhere.
    """
    for group, ranks in job.members.items():
        from_zero = all(own[0].number == 0 for rank in ranks if (own := job.records.get(rank)))
        called: dict[int, list[str]] = defaultdict(list)
        for rank in ranks:
            for record in job.collectives.get((rank, group), []):
                called[record.seq].append(f"{record.op} {record.dtype}")
        common = [calls for calls in called.values() if len(calls) > 1]
        if not from_zero and len(common) > 1 and all(len(set(calls)) > 1 for calls in common):
            job.incomparable.add(group)


def _known(value: int) -> int | None:
    return None if value == NA else value
