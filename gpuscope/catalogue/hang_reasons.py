"""What ranks that made a job hang did instead of going on, in words, and what to do next."""

from __future__ import annotations

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
    "gpu_error": "its GPU reports an error",
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
    "logs": "telling lines of logs",
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


def behind(launched: int, most: int, told_by: str) -> str:
    """A rank that had launched fewer operations than others."""
    by = "NCCL's RAS" if told_by == "ras" else "torch's watchdog"
    return f"had launched {launched} operations of a group, others {most}, by {by}"


def elsewhere(waiting: Collection[int]) -> str:
    """A rank whose stack is not in a collective."""
    return f"is not in a collective, as {rank_list(waiting)} may be"


def no_stack(waiting: Collection[int]) -> str:
    """A rank without a stack where those of all others wait."""
    return f"left no stack; {rank_list(waiting)} may wait for it"


def logged(text: str) -> str:
    """An error of the network."""
    return f"its log says: {text}"


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
