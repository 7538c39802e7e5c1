"""Sentences on a job that hung: why each rank is named as the first cause, what the dumps state and what they don't."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuscope.catalogue.findings.hangs import rank_list, sentence
from gpuscope.schema.memory_section import Doing, Hang, HangCause, Reason, SourceOfHang
from gpuscope.when_used import dataclass
from gpuscope.words import units

# What ranks that made a job hang did instead of going on, in words, and what to do next.

_DID: Mapping[Reason, str] = {
    "killed": "its process was killed",
    "out_of_memory_host": "its process was killed for lack of the host's memory",
    "out_of_memory": "it ran out of device memory",
    "crashed": "its process failed",
    "exited": "its process has ended",
    "stopped": "its process is stopped by a signal",
    "gpu_error": "its GPU reports a hardware error",
    "driver_error": "the driver of its GPU reports an error",
    "program_error": "its program made an error on the GPU",
    "blocked_call": "a CUDA or NCCL call does not return there, or the interpreter's lock is held",
    "unresponsive": "its process does not answer NCCL's RAS",
    "network": "its network failed",
    "debugger": "it was in a debugger",
    "rendezvous": "it was making a process group, which waits for all members",
    "compiling": "it was compiling",
    "data_loader": "it was in its data loader",
    "storage": "it was saving or reading files",
    "device_wait": "it waited for its GPU to finish earlier work",
    "lock": "it waited for another thread or process",
    "gil": "a call there, or another of its threads, held the interpreter's lock",
    "host_code": "it was in other code",
}
REMEDIES: Mapping[Reason, str] = {
    "killed": "look for who killed it: dmesg, the scheduler's log, the container's memory limit",
    "out_of_memory_host": "less memory on the host: fewer or leaner loader workers, no copies of the data per rank",
    "out_of_memory": "see the rank's allocator (gpuscope record --memory): the others wait since it failed",
    "crashed": "read the error in the rank's log; the others only wait for it",
    "exited": "let all ranks make equally many steps: uneven data ends one early (join(), drop_last)",
    "stopped": "kill -CONT its process; look for who stopped it (a scheduler's suspend, Ctrl-Z, a snapshot)",
    "gpu_error": "nvidia-smi -q and dmesg on its host for Xid and ECC errors; take the GPU out",
    "driver_error": "nvidia-smi and dmesg on its host: driver, devices visible to the process, what the Xid means",
    "program_error": "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer names the kernel or index at fault; suspect hardware "
    "only if it stays with one GPU",
    "blocked_call": "py-spy dump --native --pid PID there shows the CUDA or NCCL call, or the thread that holds the "
    "GIL; a longer TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC only hides it",
    "unresponsive": "look at its process: stopped, dead, or its host cut off",
    "network": "ibstat, the switch's counters and cables of the hosts named; NCCL_IB_TIMEOUT only hides it",
    "debugger": "take breakpoint() out, or let only ranks stop there that wait for nobody",
    "rendezvous": "let every rank of the job call new_group and init_process_group, in the same order",
    "compiling": "wait, or warm caches before: one shared TORCHINDUCTOR_CACHE_DIR, the first step before the timeout "
    "counts; mark_dynamic against recompilation (gpuscope analyze with TORCH_TRACE's logs)",
    "data_loader": "py-spy dump --subprocesses shows its workers; DataLoader(timeout=…) turns it into an error",
    "storage": "test the file system from that host (df, lsof, mount options); save asynchronously or from one rank",
    "device_wait": "py-spy dump --native, cuda-gdb or CUDA_LAUNCH_BLOCKING=1 show the kernel that does not end",
    "lock": "stacks of all its threads and children show who holds it (py-spy dump --subprocesses)",
    "gil": "release the lock in that extension, or move the work to a process",
    "host_code": "read the line named; two stacks some seconds apart show whether it goes on",
}
MISMATCH = "find the branch that only some ranks take before this call"
CIRCULAR = "let every rank call them in one order, and every receive have its send"
SILENT = (
    "look at its log, its process and its host (py-spy dump --pid PID while it lives); Flight Recorder dumps "
    "(TORCH_FR_BUFFER_SIZE=2000) tell what it enqueued last"
)
LAGGING = "torch itself names it as lagging"
DOING: Mapping[Doing, str] = {
    "debugger": "debugger",
    "rendezvous": "making a process group",
    "collective": "collective",
    "compiling": "compiling",
    "data_loader": "data loader",
    "storage": "saving or reading files",
    "device_wait": "waiting for the GPU",
    "autograd": "backward pass",
    "lock": "waiting for another thread or process",
    "gil": "waiting for the interpreter's lock",
    "host_code": "other code",
}
"""What a main thread was in, for tables."""
SOURCES: Mapping[SourceOfHang, str] = {
    "flight_recorder": "Flight Recorder dumps",
    "stacks": "stacks",
    "logs": "logs",
    "ras": "NCCL's RAS",
    "process_states": "states of processes",
    "compile_logs": "compile logs",
}
HOW: Mapping[SourceOfHang, str] = {
    "flight_recorder": "gpuscope record, or TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1",
    "stacks": "on each host, for each rank: py-spy dump --pid PID > stack_rankN.txt",
    "logs": "each rank's output in a file: torchrun --log-dir logs --redirects 3",
    "ras": "on a host of the job: ncclras -v -f json > ras.json (NCCL 2.24 or newer, while it hangs)",
    "process_states": "cat /proc/PID/status > status_rankN.txt",
    "compile_logs": "TORCH_TRACE=DIR, where torch.compile is used",
}
"""How to get what is missing of a source."""


def did(reason: Reason, place: str) -> str:
    """What the rank did, and where."""
    return f"{_DID[reason]} ({place})" if place else _DID[reason]


def called(text: str, others: str) -> str:
    """A mismatch by torch's own check."""
    return f"called {text}, where others called {others}"


def behind(launched: int, most: int, told_by: str, ahead: Collection[int] = ()) -> str:
    """A rank that had launched fewer operations than others; `ahead` are those that launched most, if few."""
    by = "NCCL's RAS" if told_by == "ras" else "torch's watchdog"
    others = rank_list(ahead) if ahead else "others"
    return f"had launched {launched} operations of a group, {others} {most}, by {by}: {most - launched} behind"


def enqueued_less(launched: int, operation: str, waiting: Collection[int]) -> str:
    """A rank that had not enqueued what others waited for until their time was up."""
    return f"never enqueued {operation}, where {rank_list(waiting)} {_wait(waiting)}: it had come to {launched}"


def silent(waiting: Collection[int], operation: str, op: str) -> str:
    """A rank of which nothing tells that it waited, while others did until their time was up."""
    source = ", whose source it may be" if op in ("broadcast", "scatter") else ""
    return f"reports no time-out, while {rank_list(waiting)} {_wait(waiting)} in {operation}{source}"


def other_group(own: str, waiting: Collection[int], operation: str) -> str:
    """A rank in one group's operation while others wait in another's."""
    return (
        f"waits in {own}, while {rank_list(waiting)} {_wait(waiting)} in {operation}: a different order on two "
        "communicators, or a call left out"
    )


def watchdog_stuck(text: str, waits: tuple[Collection[int], str] | None) -> str:
    """A rank whose watchdog thread stood still, and who waited meanwhile."""
    match = re.search(r"stuck for (\d+) seconds", text)
    lasted = f" for {match[1]} s" if match else ""
    others = "" if waits is None else f"; {rank_list(waits[0])} {_wait(waits[0])} in {waits[1]}"
    return f"its watchdog made no progress{lasted}: blocked in a CUDA or NCCL call, or by the GIL{others}"


def called_elsewhere(called: str, number: str, others: str) -> str:
    """A rank that waited in another operation, or one of another size, under the number that others waited in."""
    return f"called {called}{number}, where others called another ({others})"


def last_line(text: str, file: str, line: int) -> str:
    """Where a rank's log ends."""
    if not text:
        return f"; its log is empty ({file})"
    return f"; the last line of its program is «{text[:LAST_LINE]}» ({file}:{line})"


LAST_LINE = 160
"""Characters of a quoted line."""


def _wait(ranks: Collection[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def elsewhere(waiting: Collection[int]) -> str:
    """A rank whose stack is not in a collective."""
    return f"is not in a collective, as {rank_list(waiting)} may be"


def no_stack(waiting: Collection[int]) -> str:
    """A rank without a stack where those of all others wait."""
    return f"left no stack; {rank_list(waiting)} may wait for it"


def logged(text: str) -> str:
    """An error of the network."""
    return f"its log says: {text}"


def peer(address: str, host: str, ranks: Collection[int]) -> str:
    """The other end of a connection, as far as the logs name it."""
    known = ", ".join(part for part in (host, rank_list(ranks) if ranks else "") if part)
    return f"{address} ({known})" if known else address


def no_answer(host: str, other: str, *, at_start: bool) -> str:
    """A rank whose network card got no answer."""
    return (
        f"{f'on {host} ' if host else ''}got no answer from {other}{', and nothing had run before' if at_start else ''}"
    )


def unreachable(*, roce: bool, gid_index: str) -> str:
    """What to do where two network cards never reached each other."""
    if roce:
        gid = f"NCCL_IB_GID_INDEX={gid_index} is set: is it" if gid_index else "NCCL_IB_GID_INDEX:"
        return (
            f"let the cards reach each other. {gid} the RoCE v2 entry with an address that both hosts route (show_gids "
            "on both); NCCL_IB_HCA: ports of one fabric; ib_write_bw -x GID between the two hosts without NCCL"
        )
    return (
        "let the cards reach each other: ib_write_bw between the two hosts without NCCL; the subnet manager (sminfo), "
        "partitions (NCCL_IB_PKEY), NCCL_IB_HCA for ports of one fabric; on RoCE NCCL_IB_GID_INDEX (show_gids)"
    )


def waits_in_collective(rank: int) -> str:
    """Dump and stack of different moments, or a collective that the dump does not hold."""
    return (
        f"Rank {rank}: by its dump or counts it never came, by its stack it waits in a collective. They are of "
        "different moments, or that collective is of a group that is not recorded."
    )


def answers_though_gone(rank: int) -> str:
    """A log that says that a rank ended, and a process that lives."""
    return f"Rank {rank}: its log says that it ended, but its process answers: a log of another attempt?"


def ras_not_behind(rank: int) -> str:
    """RAS counts that are equal, where the dump lacks an operation."""
    return f"Rank {rank}: by its dump it never came, by NCCL's RAS it had launched as much as the others."


def seen(rank: int, text: str) -> str:
    """What a stack, a log or a state says outright."""
    return f"Rank {rank}: {text}."


def open_reasons(moments: bool, network: bool, idle: Collection[int]) -> list[str]:
    """What stacks and logs leave open."""
    found = []
    if moments:
        found.append("Whether it stays there: one stack is one moment. Two some seconds apart tell.")
    if network:
        found.append("Which side of the network failed: a peer that died looks the same.")
    if idle:
        found.append(f"What {rank_list(idle)} did instead: nothing here tells.")
    return found


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
