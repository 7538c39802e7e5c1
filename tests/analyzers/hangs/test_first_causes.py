"""Labelled jobs that hang, each in its own way: which rank, and what it did. Synthetic: written as the tools write.

The jobs of `CASES` have four ranks, of which rank 1 is at fault. Each is read from one folder, under names as users
have them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.flight_recorder import Group, dump, entry

import gpuscope
from gpuscope.cli import cli

FOUR: Group = ("0", "default_pg", [0, 1, 2, 3])
SITE = "/usr/lib/python3.12/site-packages/torch"
ALL_REDUCE = [(f"{SITE}/distributed/distributed_c10d.py", 3010, "all_reduce"), ("/job/train.py", 40, "step")]
LOADER = [
    ("/usr/lib/python3.12/threading.py", 359, "wait"),
    ("/usr/lib/python3.12/queue.py", 180, "get"),
    (f"{SITE}/utils/data/dataloader.py", 1310, "_try_get_data"),
    ("/job/train.py", 33, "main"),
]
INDUCTOR = [
    ("/usr/lib/python3.12/subprocess.py", 1264, "wait"),
    (f"{SITE}/_inductor/async_compile.py", 390, "wait"),
    (f"{SITE}/_inductor/compile_fx.py", 1500, "compile_fx_inner"),
    (f"{SITE}/_dynamo/convert_frame.py", 600, "compile_inner"),
    ("/job/train.py", 36, "main"),
]
EXTENSION = [
    (f"{SITE}/utils/file_baton.py", 42, "wait"),
    (f"{SITE}/utils/cpp_extension.py", 1700, "load"),
    ("/job/ops.py", 3, "build"),
]
TRITON = [("/x/site-packages/triton/backends/nvidia/compiler.py", 300, "make_cubin"), ("/job/ops.py", 9, "fused")]
SAVE = [(f"{SITE}/serialization.py", 900, "_save"), ("/job/train.py", 60, "checkpoint")]
PDB = [
    ("/usr/lib/python3.12/pdb.py", 1200, "cmdloop"),
    ("/usr/lib/python3.12/bdb.py", 90, "trace_dispatch"),
    ("/job/train.py", 41, "step"),
]
SYNC = [(f"{SITE}/cuda/__init__.py", 980, "synchronize"), ("/job/train.py", 44, "step")]
LOCK = [("/usr/lib/python3.12/threading.py", 359, "wait"), ("/job/train.py", 45, "flush")]
NEW_GROUP = [(f"{SITE}/distributed/distributed_c10d.py", 5100, "new_group"), ("/job/train.py", 12, "setup")]
Frames = list[tuple[str, int, str]]


def faulthandler(folder: Path, rank: int, frames: Frames) -> None:
    """As `faulthandler.dump_traceback(all_threads=True)` writes it."""
    lines = ["Thread 0x00007f6d1affd6c0 (most recent call first):", '  File "/job/helper.py", line 4 in watch', ""]
    lines += ["Current thread 0x00007f6d3f7b8b80 (most recent call first):"]
    lines += [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    (folder / f"traceback-rank{rank}.txt").write_text("\n".join(lines) + "\n")


def py_spy(folder: Path, rank: int, frames: Frames) -> None:
    """As `py-spy dump --pid PID` prints it: files without the folder that they are imported from."""
    lines = [f"Process {7000 + rank}: python train.py", "Python v3.12.3 (/usr/bin/python3.12)", ""]
    lines += [f'Thread {7000 + rank} (idle): "MainThread"']
    lines += [
        f"    {name} ({file.rpartition('site-packages/')[2].rpartition('python3.12/')[2]}:{line})"
        for file, line, name in frames
    ]
    lines += [f'Thread {7100 + rank} (active+gil): "helper"' if frames is GIL else "", "    spin (helper.py:4)"]
    (folder / f"node0_{rank}.stack").write_text("\n".join(line for line in lines if line) + "\n")


GIL: Frames = [("/job/train.py", 50, "log")]


def py_spy_json(folder: Path, rank: int, frames: Frames) -> None:
    """As `py-spy dump --json` prints it."""
    told = [
        {"name": name, "filename": file, "short_filename": file, "module": None, "line": line, "locals": None}
        for file, line, name in frames
    ]
    thread = {
        "pid": 7000 + rank,
        "thread_id": 1,
        "thread_name": "MainThread",
        "os_thread_id": 7000 + rank,
        "active": False,
        "owns_gil": False,
        "frames": told,
        "process_info": None,
    }
    (folder / f"spy.{rank}.json").write_text(json.dumps([thread], indent=2))


def dumps(folder: Path, ranks: tuple[int, ...] = (0, 1, 2, 3), at_fault: tuple[int, ...] = (1,), **odd: Any) -> None:
    """Flight Recorder dumps of a job whose ranks at fault never came to the second operation."""
    for rank in ranks:
        late = [] if rank in at_fault else [entry(FOUR, 2, **(odd if rank == 3 else {}))]
        dump(folder, rank, [FOUR], [entry(FOUR, 1, done=True), *late])


def log(folder: Path, *lines: str, name: str = "train.out") -> None:
    (folder / name).write_text("\n".join(("step 3 loss 2.31", *lines)) + "\n")


def ras(folder: Path, launched: Mapping[int, int], missing: Mapping[int, bool]) -> None:
    """As `ncclras -f json` prints it (NCCL's docs); `missing` ranks are considered dead or not."""

    def process(rank: int) -> dict[str, Any]:
        return {"rank": rank, "host": "10.0.0.1", "pid": 7000 + rank, "cuda_dev": rank, "nvml_dev": rank}

    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    comm = {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0xb7:0xb8",
        "size": len(launched) + len(missing),
        "ranks_count": len(launched),
        "missing_ranks_count": len(missing),
        "ranks": [
            process(rank) | {"status": status, "collective_counts": {"Broadcast": 1, "AllReduce": count}}
            for rank, count in launched.items()
        ],
        "missing_ranks": [
            process(rank) | {"status": {"unresponsive": True, "considered_dead": dead}}
            for rank, dead in missing.items()
        ],
    }
    whole = {"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [comm], "ras": {"timeouts_count": 0}}
    (folder / "ras.json").write_text(json.dumps(whole, indent=2))


def watchdog(folder: Path) -> None:
    """As torch's NCCL watchdog logs it: three ranks time out, the fourth is told to dump."""
    what = "[PG ID 0 PG GUID 0(default_pg) Rank {0}] "
    lines = [
        f"[rank{rank}]:[E1125 16:00:00.1 ProcessGroupNCCL.cpp:683] {what.format(rank)}Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran "
        "for 600003 milliseconds before timing out."
        for rank in (0, 2, 3)
    ]
    lines += [
        f"[rank{rank}]:[E1125 16:00:01.1 ProcessGroupNCCL.cpp:1785] {what.format(rank)}Exception (either an "
        f"error or timeout) detected by watchdog at work: 12, last enqueued NCCL work: {12 - (rank == 1)}, last "
        "completed NCCL work: 11."
        for rank in range(4)
    ]
    log(folder, *lines)


FINGERPRINT = (
    "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective"
    ": CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float, "
    "TensorDeviceTypes=TensorOptions(dtype=float)), but Rank 1 is running collective: CollectiveFingerPrint("
    "SequenceNumber=3, OpType=BROADCAST, TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes="
    "TensorOptions(dtype=float)).Collectives differ in the following aspects:"
)
TORCHRUN = (
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-11-25_16:08:36",
    "  host      : node0",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : {0} (pid: 7001)",
    "  error_file: <N/A>",
)
IBV = (
    "node1:7001:7301 [1] NCCL INFO comm 0x55 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 41000 commId 0xab - Init "
    "COMPLETE",
    "node1:7001:7321 [1] transport/net_ib.cc:2010 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4791> with "
    "status=12 opcode=0 len=0 vendor err 129 (Send)",
)
COMPILE_BEGIN = (
    'V1125 16:00:00.000000 7001 torch/_dynamo/convert_frame.py:1 {{"{0}": {1}, "rank": {2}, '
    '"frame_id": 0, "frame_compile_id": 0, "attempt": 0}}'
)


def stacks(write: Callable[[Path, int, Frames], None], frames: Frames, *but: int) -> Callable[[Path], None]:
    """The stacks of all ranks, those at fault in `frames`, the others in a collective; without those of `but`."""

    def written(folder: Path) -> None:
        for rank in {0, 1, 2, 3} - set(but):
            write(folder, rank, frames if rank == 1 else ALL_REDUCE)

    return written


def compile_logs(folder: Path) -> None:
    for rank in (0, 1):
        begin = COMPILE_BEGIN.format("dynamo_start", '{"stack": []}', rank)
        end = COMPILE_BEGIN.format("compilation_metrics", '{"co_name": "f"}', rank)
        text = "\n".join([begin, *([end] if rank == 0 else [])]).replace("convert_frame.py:1 ", "convert_frame.py:1] ")
        (folder / f"dedicated_log_torch_trace_rank_{rank}_x.log").write_text(text + "\n")


def status(letter: str) -> Callable[[Path], None]:
    text = f"Name:\tpython\nUmask:\t0022\nState:\t{letter} (stopped)\nTgid:\t7001\nPid:\t7001\n"
    return lambda folder: (folder / "proc_status_rank1").write_text(text) and None


def both(*parts: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: [part(folder) for part in parts] and None


def dumped(**odd: Any) -> Callable[[Path], None]:
    return lambda folder: dumps(folder, **odd)


def logged(*lines: str, name: str = "train.out") -> Callable[[Path], None]:
    return lambda folder: log(folder, *lines, name=name)


def transfer(folder: Path) -> None:
    dumps(folder, at_fault=())


Case = tuple[str, str, str | None, bool, Callable[[Path], None]]
CASES: list[Case] = [
    ("loader, by py-spy", "never_arrived", "data_loader", True, both(dumped(), stacks(py_spy, LOADER))),
    ("loader, stacks alone", "elsewhere", "data_loader", False, stacks(faulthandler, LOADER)),
    ("loader, JSON", "elsewhere", "data_loader", False, stacks(py_spy_json, LOADER)),
    ("Inductor", "never_arrived", "compiling", True, both(dumped(), stacks(faulthandler, INDUCTOR))),
    ("Inductor, stacks alone", "elsewhere", "compiling", False, stacks(py_spy, INDUCTOR)),
    ("Triton", "never_arrived", "compiling", True, both(dumped(), stacks(py_spy, TRITON))),
    ("nvcc, another process builds", "never_arrived", "compiling", True, both(dumped(), stacks(py_spy, EXTENSION))),
    ("compile log alone", "elsewhere", "compiling", False, compile_logs),
    ("compile log and dumps", "never_arrived", "compiling", False, both(dumped(), compile_logs)),
    ("checkpoint", "never_arrived", "storage", True, both(dumped(), stacks(faulthandler, SAVE))),
    ("file system, by its process", "never_arrived", "storage", False, both(dumped(), status("D"))),
    ("debugger", "never_arrived", "debugger", True, both(dumped(), stacks(py_spy, PDB))),
    ("debugger's prompt", "never_arrived", "debugger", True, both(dumped(), logged("(Pdb) ", name="rank1.log"))),
    ("GPU", "never_arrived", "device_wait", False, both(dumped(), stacks(py_spy, SYNC))),
    ("lock", "never_arrived", "lock", False, both(dumped(), stacks(faulthandler, LOCK))),
    ("GIL", "never_arrived", "gil", False, both(dumped(), stacks(py_spy, GIL))),
    ("own code", "never_arrived", "host_code", False, both(dumped(), stacks(faulthandler, GIL))),
    ("process group", "never_arrived", "rendezvous", True, both(dumped(), stacks(py_spy, NEW_GROUP))),
    ("stopped, no dump", "no_dump", "stopped", True, both(dumped(ranks=(0, 2, 3)), status("T"))),
    ("stopped after it came", "gone", "stopped", True, both(transfer, status("T"))),
    (
        "killed",
        "no_dump",
        "killed",
        True,
        both(dumped(ranks=(0, 2, 3)), logged(*(line.format(-9) for line in TORCHRUN))),
    ),
    ("killed, log alone", "gone", "killed", True, logged(*(line.format(-9) for line in TORCHRUN))),
    ("segmentation fault", "gone", "crashed", True, logged(*(line.format(-11) for line in TORCHRUN))),
    (
        "device memory",
        "never_arrived",
        "out_of_memory",
        True,
        both(
            dumped(),
            logged(
                "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total"
            ),
        ),
    ),
    (
        "host memory",
        "gone",
        "out_of_memory_host",
        True,
        logged(
            "srun: error: node1: task 1: Out Of Memory", "slurmstepd: error: Detected 1 oom_kill event in StepId=9.0."
        ),
    ),
    (
        "exception",
        "never_arrived",
        "crashed",
        True,
        both(
            dumped(),
            logged(
                "[rank1]: Traceback (most recent call last):",
                '[rank1]:   File "/job/train.py", line 3, in <module>',
                "[rank1]: ValueError: bad sample",
            ),
        ),
    ),
    ("GPU error", "gone", "program_error", True, logged("[rank1]: RuntimeError: CUDA error: an illegal memory access")),
    (
        "GPU hardware",
        "gone",
        "gpu_error",
        True,
        logged("[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ),
    ("watchdog", "behind", None, True, watchdog),
    ("watchdog and stacks", "behind", "data_loader", True, both(watchdog, stacks(py_spy, LOADER))),
    ("lagging", "behind", None, False, logged("[rank0]: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 2000 ms")),
    ("RAS, behind", "behind", None, False, lambda folder: ras(folder, {0: 65, 1: 64, 2: 65, 3: 65}, {})),
    ("RAS, dead", "gone", "unresponsive", False, lambda folder: ras(folder, {0: 65, 2: 65, 3: 65}, {1: True})),
    (
        "RAS alive, kernel never ends",
        "never_arrived",
        "device_wait",
        False,
        both(dumped(), stacks(py_spy, SYNC), lambda folder: ras(folder, {0: 65, 1: 64, 2: 65, 3: 65}, {})),
    ),
    ("network", "network", "network", False, both(transfer, logged(*IBV, name="nccl.node1.7001.log"))),
    ("mismatch by torch", "mismatch", None, True, logged(*(FINGERPRINT.format(rank) for rank in (0, 2, 3)))),
    ("no stack", "no_dump", None, False, stacks(py_spy, ALL_REDUCE, 1)),
]


@pytest.mark.parametrize(
    ("kind", "reason", "certain", "write"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_first_cause_is_rank_1(
    tmp_path: Path, kind: str, reason: str | None, certain: bool, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    done = CliRunner().invoke(cli, ["hang", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    hang = json.loads(done.stdout)["hang"]
    first = hang["first_cause"][0]
    assert (first["rank"], first["kind"], first.get("reason")) == (1, kind, reason), hang["first_cause"]
    proved = first.get("reason_certain", first["certain"])
    assert proved is certain
    assert all(cause["rank"] == 1 for cause in hang["first_cause"] if cause["certain"])
    assert gpuscope.analyze(tmp_path).report["hang"]["first_cause"] == hang["first_cause"]


def test_what_only_waited_is_no_cause(tmp_path: Path) -> None:
    """A rank that torch aborted because it waited too long, and errors of those that lost a peer, are none."""
    watchdog(tmp_path)
    lines = [line.format(-6) for line in TORCHRUN] + [
        "[rank2]: Traceback (most recent call last):",
        "[rank2]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "[rank3]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    ]
    log(tmp_path, *lines, name="launcher.err")
    hang = gpuscope.analyze(tmp_path).report["hang"]
    assert [(cause["rank"], cause["kind"]) for cause in hang["first_cause"]] == [(1, "behind")]


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("waits_in_collective", both(dumped(), stacks(py_spy, ALL_REDUCE))),
        ("ras_not_behind", both(dumped(), lambda folder: ras(folder, dict.fromkeys(range(4), 65), {}))),
        ("answers_though_gone", both(logged(*(line.format(-9) for line in TORCHRUN)), status("S"))),
    ],
)
def test_sources_that_disagree_are_told_and_prove_nothing(
    tmp_path: Path, kind: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    hang = gpuscope.analyze(tmp_path).report["hang"]
    assert [(one["rank"], one["kind"]) for one in hang["contradictions"]] == [(1, kind)]
    assert kind == "ras_not_behind" or not hang["first_cause"][0]["certain"]


def test_ras_text_names_outliers(tmp_path: Path) -> None:
    """As NCCL's documentation prints it."""
    head = (
        "Job summary\n===========\n\n  Nodes  Processes\nCommunicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        "    0         1         4         8        32        32   RUNNING  {0}\n\n"
    )
    behind = (
        "Warnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  31 ranks have launched up to operation 6650\n"
        "  Rank 7 has launched up to operation 6649 -- GPU 3 managed by process 1650386 on n1\n"
    )
    dead = (
        "Errors\n======\n\nDEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n#0-0 (cf264af53edbe986) INCOMPLETE\n"
        "  Missing communicator data from 1 rank\n  The missing rank: 21\n"
    )
    found = []
    for name, body in (("MISMATCH", behind), ("INCOMPLETE", dead)):
        path = tmp_path / f"ras_{name}.txt"
        path.write_text(head.format(name) + body)
        found.append(gpuscope.analyze(path).report["hang"]["first_cause"][0])
    assert [(one["rank"], one["kind"], one.get("reason")) for one in found] == [
        (7, "behind", None),
        (21, "gone", "unresponsive"),
    ]


def test_the_page_says_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    both(dumped(), stacks(py_spy, LOADER, 1))(tmp_path)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(cli, ["hang", str(tmp_path), "--html", str(page)])
    assert "missing: stacks of 1: on each host" in " ".join(done.stdout.split())
    assert "py-spy dump --pid PID" in page.read_text()
    assert CliRunner().invoke(cli, ["hang", str(tmp_path), "--html", str(page)]).exit_code == 1


def test_a_healthy_job_with_odd_lines_in_its_log_did_not_hang(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, [FOUR], [entry(FOUR, 1, done=True)], gpuscope_note="at the end", dumped_ns=1)
    log(tmp_path, "[rank2]: WARNING: Connection closed by peer")
    assert not gpuscope.analyze(tmp_path).report["hang"]["hung"]
