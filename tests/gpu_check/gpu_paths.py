"""The paths of docs/trust.md: what is run for each, and what judges it. Several may look at one run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_check import judges

HERE = Path(__file__).parent
GPUSCOPE = (sys.executable, "-m", "gpuscope")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
ONE_DEVICE = (*TORCHRUN, "2", str(HERE / "one_device.py"))
# Large enough that a step without a fault is bound by compute on any device, with room for the fault on 16 GB.
LARGE = (
    "--set",
    "model.width=1024",
    "--set",
    "model.heads=16",
    "--set",
    "model.layers=8",
    "--set",
    "data.batch=4",
    "--set",
    "data.sequence=512",
)


def _train(*words: str) -> tuple[str, ...]:
    return (*GPUSCOPE, "train", "--parallel", "single", "--out", "RUN", *words)


def _record(*words: str) -> tuple[str, ...]:
    return (*GPUSCOPE, "record", "-o", "RUN", *words)


# RUN stands for the run folder, FACTS for a file beside it. Doses are strong, so that the fault outweighs all else.
RUNS: dict[str, tuple[str, ...]] = {
    "script": _record("--nvml-interval", "10", "--", *TORCHRUN, "1", str(HERE / "recorded_script.py"), "FACTS"),
    "sync_in_loop": _train(*LARGE, "--fault", "sync_in_loop:times=400"),
    "launch_bound": _train(*LARGE, "--fault", "launch_bound:ops=20000"),
    "pageable_copies": _train(*LARGE, "--fault", "pageable_copies:mb=512"),
    "allocator_churn": _train(*LARGE, "--fault", "allocator_churn:mb=256,times=100"),
    "cuda_graph": _train("--set", "train.cuda_graph=true"),
    "compile": _train("--set", "train.compile=true"),
    "loader": _train("--set", "data.workers=2"),
    "one_device": _record("--", *ONE_DEVICE),
    "slow_rank": _record("--", *ONE_DEVICE, "slow_rank"),
    "hang": _record("--hang-timeout", "5", "--", *ONE_DEVICE, "hang"),
    "messages": _record("--hang-timeout", "5", "--", *ONE_DEVICE, "messages"),
    "nsys": _record("--profiler", "nsys", "--", *ONE_DEVICE),
}
FAILS = {"hang"}
"""Runs whose command ends with an error."""


@dataclass(frozen=True)
class GpuPath:
    """One row of the checklist: `run` names its command, `judge` looks at the run folder; it needs the module and the
    program that are named."""

    name: str
    run: str
    judge: Callable[[Path], str]
    stand_in: str = ""
    """The test, below tests/, that goes as far as is possible without a GPU."""
    module: str = ""
    program: str = ""


PATHS = (
    GpuPath(
        "CUDA untouched until the script uses it",
        "script",
        judges.cuda_untouched,
        "runtime/record/capture/test_machine.py",
    ),
    GpuPath(
        "fault sync_in_loop", "sync_in_loop", judges.verdict_of_fault, "runtime/train/faults/test_faults_on_a_gpu.py"
    ),
    GpuPath(
        "fault launch_bound", "launch_bound", judges.verdict_of_fault, "runtime/train/faults/test_faults_on_a_gpu.py"
    ),
    GpuPath(
        "fault pageable_copies",
        "pageable_copies",
        judges.verdict_of_fault,
        "runtime/train/faults/test_faults_on_a_gpu.py",
    ),
    GpuPath(
        "fault allocator_churn",
        "allocator_churn",
        judges.verdict_of_fault,
        "runtime/train/faults/test_faults_on_a_gpu.py",
    ),
    GpuPath("fault slow_rank", "slow_rank", judges.slow_rank, "runtime/train/faults/test_faults_on_a_gpu.py"),
    GpuPath("CUDA graphs", "cuda_graph", judges.cuda_graphs, "runtime/train/test_on_a_fake_gpu.py"),
    GpuPath("compiled blocks", "compile", judges.compiled, "runtime/train/test_pieces.py", module="triton"),
    GpuPath("synchronisation events", "script", judges.sync_events, "runtime/record/capture/test_torch_profiler.py"),
    GpuPath(
        "snapshot at out-of-memory", "script", judges.out_of_memory, "runtime/record/capture/test_memory_snapshots.py"
    ),
    GpuPath(
        "NVML on the rank's own device",
        "script",
        judges.nvml,
        "runtime/record/capture/test_machine.py",
        module="pynvml",
    ),
    GpuPath("pinned transfers", "loader", judges.pinned, "runtime/train/test_on_a_fake_gpu.py"),
    GpuPath("pageable transfers", "pageable_copies", judges.pageable, "runtime/train/test_on_a_fake_gpu.py"),
    GpuPath("NCCL ranks on one device", "one_device", judges.nccl_ranks, "gpu_check/test_gpu_check.py"),
    GpuPath("Flight Recorder and gpuscope hang", "hang", judges.flight_recorder, "analyzers/hangs/test_hang.py"),
    GpuPath(
        "coalesced messages are no hang",
        "messages",
        judges.coalesced_messages,
        "runtime/record/hang/test_coalesced_messages.py",
    ),
    GpuPath(
        "graphs captured beside the hang watch",
        "messages",
        judges.captured_graphs,
        "runtime/record/hang/test_coalesced_messages.py",
    ),
    GpuPath(
        "nsys around each rank",
        "nsys",
        judges.nsys_reports,
        "runtime/record/capture/test_nsys_capture.py",
        program="nsys",
    ),
)
