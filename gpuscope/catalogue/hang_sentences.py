"""Sentences on a job that hung: why each rank is named as the first cause, what the dumps state and what they don't."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpuscope.catalogue.findings.hangs import rank_list, sentence
from gpuscope.schema.hang_section import Hang, HangCause
from gpuscope.when_used import dataclass
from gpuscope.words import units

DIFFER = "Ranks called different operations"
NO_HANG = "No rank waits for another: no hang in these files"
OPERATIONS_NAMED = 4
_INDEPENDENT = ("never_arrived", "device_stuck", "no_dump", "silent", "watchdog_stuck")
_OWN_REASON = ("mismatch", "circular")


@dataclass(frozen=True)
class Operation:
    """A collective, send or receive of a group, by the number that the dumps give it."""

    op: str
    number: int
    group: str
    """As the job names it: `group 72 (EXPERT_MODEL_PARALLEL_GROUP)`."""
    p2p: bool = False
    peer: int | None = None
    """The rank that a send goes to or a receive comes from."""

    def __str__(self) -> str:
        to = f" {'to' if self.op == 'send' else 'from'} rank {self.peer}" if self.p2p and self.peer is not None else ""
        return f"{self.op} {self.number}{to} of {self.group}"


@dataclass(frozen=True)
class Awaited:
    """An operation in which ranks wait for others."""

    operation: Operation
    waiting: Collection[int]
    missing: Collection[int] = ()
    """The ranks that did not enqueue it."""

    def waiters(self) -> str:
        """`ranks 0-2 wait`."""
        return f"{rank_list(self.waiting)} {'waits' if len(self.waiting) == 1 else 'wait'}"


@dataclass(frozen=True)
class Call:
    """What a rank called, as far as it is recorded: type and size of an operation."""

    op: str
    sizes: str
    dtype: str

    def __str__(self) -> str:
        return f"{of_sizes(self.op, self.sizes)} {self.dtype}".rstrip()


def of_sizes(op: str, sizes: str) -> str:
    """An operation and its input, which is one array or a list of them."""
    return f"{op} of {sizes[1:-1] if sizes.count('[') == 2 else sizes}"


def never_arrived(awaited: Awaited, sure: bool, in_flight: int) -> str:
    """Why a rank is the first cause that others wait for, while it waits for none."""
    state = "nothing in flight"
    if in_flight:
        state = f"{units.plural(in_flight, 'operation')} in flight, none of which waits for another rank"
    verb = "never enqueued" if sure else "is not known to have enqueued"
    other_side = " the other side of" if awaited.operation.p2p else ""
    return f"{verb}{other_side} {awaited.operation}, where {awaited.waiters()}; {state}"


def left_behind(operation: Operation) -> str:
    """What a rank alone did not finish."""
    return f"did not finish {operation}, which the other members have all finished"


def device_stuck(alone: Operation, awaited: Awaited) -> str:
    """Why a rank is the first cause whose device did not finish what all others finished."""
    return f"{left_behind(alone)}; never enqueued {awaited.operation}, where {awaited.waiters()}"


def no_dump(awaited: Awaited) -> str:
    """Why a rank without a dump is under suspicion."""
    return f"wrote no dump; {awaited.waiters()} in {awaited.operation}, which every other member has enqueued"


def called_other(own: Call | None, number: int, group: str, waiting: Collection[int], theirs: Call) -> str:
    """Why a rank is the first cause that called something else than those who wait for it."""
    return f"called {own or 'something else'} as number {number} of {group}, where {rank_list(waiting)} called {theirs}"


def differs(what: str, number: int | None, group: str, variants: Sequence[tuple[str, Collection[int]]]) -> str:
    """Why a rank is the first cause whose calls, or list of a group's members, differ from the others'."""
    said = "; ".join(f"{rank_list(ranks)}: {called}" for called, ranks in variants)
    of = "" if number is None else f"number {number} of "
    return f"{what.rstrip('s')} differs from the others in {of}{group} ({said})"


def circular(ring: Collection[int], awaited: Awaited, own: Operation) -> str:
    """Why a rank of several that wait for each other is named; `own` is what it waits in."""
    return f"{rank_list(ring)} wait for each other: {awaited.waiters()} in {awaited.operation}, this one in {own}"


def transfer(operation: Operation) -> str:
    """Every member has enqueued it, and none has finished."""
    return f"every member has enqueued {operation}, but it does not finish"


def timed_out(waiting: Collection[int], operation: str) -> str:
    """What watchdogs, or gloo, prove."""
    return sentence(f"{rank_list(waiting)} waited in {operation} until the time was up, so the job hung.")


def unnamed(did: str, remedy: str) -> str:
    """An error or end of a process of which no line says its rank, and what to do."""
    return f"{UNNAMED}{did}. Next: {remedy}."


UNNAMED = "A process whose rank no line names: "
EMPTY = "What the ranks enqueued: the dumps hold no operation"


def not_hung(hang: Hang) -> str:
    """The first line on files that prove no hang."""
    if any(text.startswith(UNNAMED) for text in hang["certain"]):
        return "A process failed"
    if any(text.startswith(EMPTY) for text in hang["uncertain"]):
        return "These files can't tell whether the job hung"
    return NO_HANG


def same_causes(hang: Hang) -> dict[tuple[str, bool], list[int]]:
    """First causes that are told alike, with their ranks: why, and whether that is certain."""
    found: dict[tuple[str, bool], list[int]] = {}
    for cause in hang["first_cause"]:
        found.setdefault((cause["why"], cause["certain"]), []).append(cause["rank"])
    return found


CAME_TO_ITS_END = "The job came to its own end: it did not hang."


def certain(awaited: Sequence[Awaited], causes: Sequence[HangCause], idle: Sequence[int]) -> list[str]:
    """What the dumps state; `awaited` are operations that first causes did not enqueue, `idle` first causes with
    nothing in flight."""
    found = [
        f"{rank_list(one.waiting)} enqueued {one.operation}; {rank_list(one.missing)} did not"
        + (" enqueue the other side." if one.operation.p2p else ".")
        for one in awaited[:OPERATIONS_NAMED]
    ]
    if (more := len(awaited) - OPERATIONS_NAMED) > 0:
        found.append(f"The same holds for {more} more operations.")
    found += [
        f"Rank {cause['rank']} {cause['why']}."
        for cause in causes
        if cause["certain"] and cause["kind"] in ("device_stuck", "mismatch")
    ]
    if idle:
        them = "it" if len(idle) == 1 else "them"
        found.append(f"{rank_list(idle)} had nothing in flight, so no other rank held {them} up.")
    return [sentence(text) for text in found]


@dataclass(frozen=True)
class Unknown:
    """What dumps leave open."""

    causes: Sequence[HangCause]
    completed: bool
    """Whether the run came to its own end."""
    dumps: bool
    """Whether there are dumps."""
    watched: bool
    """Whether something had waited too long when they were written, by the recorder itself."""
    stacks: bool
    """Whether the dumps of the first causes hold stacks."""
    without_dump: Collection[int]
    progress: Collection[int]
    """Ranks of which it is unknown how far they had got."""
    by_count: bool
    """Whether sends and receives of larger groups are matched by count."""
    incomparable: Sequence[str]
    """Groups whose operations the dumps number differently."""
    members: bool
    """Whether the members of groups in which ranks wait are unknown."""
    counts: bool = False
    """Whether a snapshot of RAS alone names the first causes."""
    hung: bool = True
    timed_out: bool = False
    """Whether watchdogs tell what ranks waited in."""
    absent: Collection[int] = ()
    """Ranks that may be the ones waited for, and left no log here."""
    empty: bool = False
    """Whether there are dumps, and no operation in any of them."""


def uncertain(unknown: Unknown) -> list[str]:
    """What the dumps leave open, in sentences."""
    return list(_uncertain(unknown))


def _by_watchdogs(unknown: Unknown) -> Iterator[str]:
    """A watchdog names the rank that waits, never the one that is missing."""
    if unknown.absent:
        yield f"Whether they wait for {rank_list(unknown.absent)}: there is no log of theirs here."
    elif not unknown.causes:
        yield (
            "Which rank they wait for: all that are known wait in it. Either a rank has no log here, or the transfer "
            "itself does not end (network, links, a kernel)."
        )
    if unknown.causes:
        yield "Whom the others wait for: a watchdog names who waits, never who is missing; Flight Recorder dumps do."


def _uncertain(unknown: Unknown) -> Iterator[str]:
    causes = unknown.causes
    ranks = {cause["rank"] for cause in causes}
    if unknown.empty:
        yield f"{EMPTY} (TORCH_FR_BUFFER_SIZE=0, or written too early)."
    if unknown.timed_out and not unknown.dumps:
        yield from _by_watchdogs(unknown)
    elif causes and not unknown.dumps:
        if unknown.counts:
            yield "That the job hung at all: counts of one moment differ in running jobs too; take them twice."
        yield "Who waits for whom: without Flight Recorder dumps the ranks' operations can't be compared."
    elif causes:
        if any(cause.get("reason") is None and cause["kind"] not in _OWN_REASON for cause in causes):
            yield (
                "Why the first cause stopped: dumps record what was enqueued, not what a host or device did instead"
                + ("." if unknown.stacks else ", and these contain no stacks.")
            )
        if not unknown.watched:
            yield "That the job hung at all: dumps taken on demand from a running job can look the same."
    elif unknown.hung:
        yield "Which rank the others wait for: nothing in these files tells."
    elif not unknown.completed:
        yield "Whether the job hung: nothing in these files waits for another rank."
    if len(ranks) > 1 and all(cause["kind"] in _INDEPENDENT for cause in causes):
        yield f"Whether {rank_list(ranks)} stopped for one common reason or for different ones."
    if any(cause["kind"] == "mismatch" and not cause["certain"] for cause in causes):
        yield "Which of the ranks that called different things called the wrong one: there is no majority."
    if any(cause["kind"] == "circular" for cause in causes):
        yield (
            "Which of the ranks that wait for each other is at fault: the one named is the one that most of them wait "
            "for, or that was missing where the first of them began to wait."
        )
    if unknown.without_dump:
        yield f"What {rank_list(unknown.without_dump)} did: there is no dump."
    if unknown.progress:
        yield f"How far {rank_list(unknown.progress)} had got in groups that are missing from their dumps."
    if unknown.by_count:
        yield "Sends and receives in groups of more than two ranks are matched by count, not by number."
    if unknown.incomparable:
        groups = ", ".join(unknown.incomparable)
        yield f"How far the ranks had got in {groups}: the dumps number the operations differently."
    if unknown.members:
        yield "The members of some groups: no dump lists them, so only the ranks seen in them are known."
