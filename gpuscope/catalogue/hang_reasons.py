"""What ranks that made a job hang did instead of going on, in words, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from gpuscope.catalogue.findings.hangs import rank_list
from gpuscope.schema.hang_section import Doing, Reason, SourceOfHang

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
