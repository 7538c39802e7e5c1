"""Advice on generated jobs: a fault is put in, its suggestion comes, and the job without the fault takes what was
predicted. That job, or another one, is where the suggestion must not come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import simulator.training
from helpers.allocator import events, segment, snapshot
from helpers.nccl_logs import chosen, communicator, said, variables
from helpers.nsys import Export
from simulator.catalogue import COMPUTE, MS, NARROW, READ_LOSS, SMALL, TINY
from simulator.counterfactuals import SHARDED
from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

import gpuscope
from gpuscope.schema.document import Report, SuggestionEntry

SINGLE = {"parallel": "single", "ranks": 1, "steps": 5}
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)"
ATTENTION = replace(COMPUTE, **SINGLE, smalls=2, small_ns=90_000, gemms=1, layers=6, batched=True, small_op="softmax")  # type: ignore[arg-type]
FULLY_SHARDED = replace(COMPUTE, parallel="fsdp", fsdp1=True, prefetch=1, rate=60.0)
UNITS = replace(SHARDED, keep_parameters=True, layer_bytes=MIB, first_bytes=8 * MIB, alpha_ns=200_000, layers=8,
                gemms=2, smalls=1, gemm_ns=30_000, prefetch=0, optimizer_ns=10_000)  # fmt: skip
STAGES = replace(COMPUTE, parallel="pipeline", layers=2, steps=6)
BY_HAND = replace(COMPUTE, wrapped=False, overlap=False, rate=40.0)


@dataclass(frozen=True)
class Trial:
    """A job with a fault, and what is different without it."""

    code: str
    job: Job
    changed: Mapping[str, Any]
    silent: Job | None = None
    """A job that must not get the suggestion; None: the changed one."""
    small: str = ""
    """Name of its elementwise kernels, where it matters."""
    setting: str = ""
    """Part of what is to be set."""
    left_out: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.code} {self.job.mark}{' alone' if self.left_out else ''}".strip()


PREDICTED = [
    Trial("bucket_size", replace(COMPUTE, bucket_bytes=200 * MIB, rate=25.0), {"bucket_bytes": 25 * MIB}, COMPUTE),
    Trial("wire_bytes", replace(COMPUTE, rate=15.0), {"wire": 0.5}, replace(COMPUTE, rate=300.0)),
    Trial("overlap", replace(BY_HAND, mark="DeepSpeedEngine.train_batch"), {"overlap": True}, setting="true"),
    Trial("overlap", BY_HAND, {"overlap": True, "wrapped": True}, setting="around the model"),
    Trial("overlap", BY_HAND, {"overlap": True, "wrapped": True}, setting="around the model", left_out=(1,)),
    Trial("gradient_as_bucket_view", replace(COMPUTE, gradient_copies=True, layer_bytes=128 * MIB, rate=400.0),
          {"gradient_copies": False}),
    Trial("fsdp_keep_parameters", replace(SHARDED, prefetch=0, rate=60.0), {"keep_parameters": True}),
    Trial("fsdp_prefetch", replace(SHARDED, prefetch=0, rate=60.0), {"prefetch": 2}, replace(SHARDED, prefetch=2)),
    Trial("fsdp_group_modules", UNITS, {"layers": 2, "gemms": 8, "smalls": 4, "layer_bytes": 4 * MIB,
                                        "first_bytes": 11 * MIB}, replace(UNITS, alpha_ns=5_000)),
    Trial("backward_prefetch", replace(FULLY_SHARDED, prefetch=0), {"prefetch": 1}),
    Trial("limit_all_gathers", replace(FULLY_SHARDED, limited=True), {"limited": False}),
    Trial("micro_batches", replace(STAGES, ranks=4, gemm_ns=400_000), {"micro_batches": 8}, COMPUTE),
    Trial("even_stages", replace(STAGES, stage_slow={1: 1.5}), {"stage_slow": {0: 1.25, 1: 1.25}}, STAGES),
    Trial("slow_rank", replace(COMPUTE, device_slow={1: 1.5}), {"device_slow": {}}),
    Trial("even_data", replace(COMPUTE, data_scale={0: 1.6}), {"data_scale": {0: 1.3, 1: 1.3}}),
    Trial("late_host", replace(READ_LOSS, host_work_ns=9 * MS, host_work_ranks=(0,), ranks=3), {"host_work_ns": 0}),
    Trial("loader_workers", replace(READ_LOSS, loader_ns=9 * MS, workers=0), {"workers": 2}),
    Trial("cuda_graphs", TINY, {"graphs": True}),
    Trial("cuda_graphs", replace(TINY, steps=1), {"graphs": True}),
    Trial("remove_syncs", replace(NARROW, items=4, item_own_ns=150_000, device_syncs=4), {"blocking": False}),
    Trial("pinned_copies", replace(SMALL, items=1, copy="pageable", copy_bytes=6 * MIB), {"copy": "beside"}),
    Trial("copy_stream", replace(SMALL, items=1, copy_bytes=20 * MIB), {"copy": "beside"}),
    Trial("manual_gc", replace(NARROW, gc_ns=2 * MS), {"gc_ns": 0}),
    Trial("host_work_aside", replace(READ_LOSS, host_work_ns=9 * MS), {"host_work_ns": 0}),
    Trial("caching_allocator", replace(SMALL, **SINGLE, gemms=1, smalls=1, layers=6, allocations=6,  # type: ignore[arg-type]
                                       allocation_ns=300_000), {"allocations": 0}),
    Trial("expandable_segments", replace(SMALL, **SINGLE, allocations=2, allocation_ns=600_000),  # type: ignore[arg-type]
          {"allocations": 0}),
    Trial("fused_attention", ATTENTION, {"smalls": 0}, replace(ATTENTION, batched=False), small=SOFTMAX),
]  # fmt: skip


def analysed(job: Job, folder: Path, *left_out: int, log: str = "", topology: str = "") -> Report:
    """The report on a job; `log` and `topology`: NCCL's, beside its traces."""
    path = Case(replace(job, name=f"job{len(list(folder.iterdir()))}"), "", Profiler(left_out=left_out)).write(folder)
    if log:
        (path / "nccl.log").write_text(log)
    if topology:
        (path / "topology.xml").write_text(topology)
    return gpuscope.analyze(path).report


def told(report: Report) -> set[str]:
    """Everything that is advised, with a predicted step or without."""
    return {one["code"] for one in (*report["suggestions"], *report["advice"]["unpredicted"])}


def step(report: Report) -> int:
    assert report["step_time"] is not None
    return report["step_time"]["median_ns"]


def suggestion(report: Report, code: str, value: str = "") -> SuggestionEntry:
    found = [one for one in report["suggestions"] if one["code"] == code and value in one["setting"]["value"]]
    assert found, (code, told(report), [finding["code"] for finding in report["findings"]])
    return found[0]


@pytest.mark.parametrize("trial", PREDICTED, ids=str)
def test_the_job_without_the_fault_takes_what_was_predicted(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trial.small:
        monkeypatch.setattr(simulator.training, "SMALL", trial.small)
    one = suggestion(analysed(trial.job, tmp_path, *trial.left_out), trial.code, trial.setting)
    assert all(one[text] for text in ("why", "risk", "verify"))
    mended = analysed(replace(trial.job, **trial.changed), tmp_path, *trial.left_out)
    predicted = one["predicted"]
    assert predicted["step_ns_after"] < predicted["step_ns_before"]
    assert predicted["low_ns"] <= step(mended) <= predicted["high_ns"], (predicted, step(mended))
    silent = mended if trial.silent is None else analysed(trial.silent, tmp_path, *trial.left_out)
    assert trial.code not in told(silent)


def nccl_log(*parts: Sequence[str], ranks: int = 2, nodes: int = 1, via: str = "P2P/CUMEM") -> str:
    """What NCCL logs of a job: version, communicator, the transport between ranks 0 and the last, and `parts`."""
    last, device = ranks - 1, (ranks - 1) % (ranks // nodes)
    host = f"n{nodes - 1}"
    lines = [
        said("NCCL version 2.29.2+cuda13.0", pid=100), *communicator(ranks, nodes),
        said(f"Channel 00/0 : 0[0] -> {last}[{device}] [send] via {via}", pid=100),
        said(f"Channel 00/0 : 0[0] -> {last}[{device}] [receive] via {via}", host=host, pid=100 + last),
    ]  # fmt: skip
    return "\n".join([*lines, *(line for part in parts for line in part)]) + "\n"


BUCKET = 33_554_428
"""Bytes of a bucket of `COMPUTE`: three gradients of its 32 MiB a layer."""
SLOW = replace(COMPUTE, rate=15.0)
RDMA = {"nodes": 2, "via": "NET/IB/0/GDRDMA"}
TREE = chosen({BUCKET: "TREE LL"}, channels=2)
COMPILES = replace(READ_LOSS, compile_ns=400 * MS, copy_bytes=MIB)
"""In its first step, behind the copy of the batch."""


@dataclass(frozen=True)
class Shown:
    """A job, with NCCL's log beside it, whose suggestion has no predicted step or rests on NCCL's choices; and what is
    different where it must not come."""

    code: str
    job: Job
    log: str = ""
    quiet: Mapping[str, Any] | None = None
    """Changes of the job…"""
    quiet_log: str | None = None
    """… or another log."""


SHOWN = [
    Shown("own_stream", replace(COMPUTE, one_stream=True, rate=40.0), quiet={"one_stream": False}),
    Shown("power_sgd", SLOW, quiet={"rate": 60.0}),
    Shown("static_graph", replace(NARROW, search_ns=800_000), quiet={"search_ns": 0}),
    Shown("pipeline_schedule", STAGES, quiet={"parallel": "ddp"}),
    Shown("overlapped_messages", replace(STAGES, micro_batches=8, activation_bytes=256 * MIB, rate=20.0),
          quiet={"activation_bytes": MIB, "alpha_ns": 1_000}),
    Shown("numa_binding", replace(TINY, parallel="ddp", ranks=2, layer_bytes=MIB), quiet={"parallel": "single",
                                                                                         "ranks": 1}),
    Shown("hybrid_shard", replace(SHARDED, rate=20.0, ranks=4), nccl_log(ranks=4, **RDMA),  # type: ignore[arg-type]
          quiet_log=nccl_log(ranks=4)),
    Shown("host_work_named", replace(READ_LOSS, host_work_ns=9 * MS, host_work="train.py(12): between"),
          quiet={"host_work_ns": 0}),
    Shown("broadcast_buffers", replace(READ_LOSS, host_work_ns=9 * MS, host_work="aten::flatten_dense_tensors"),
          quiet={"host_work_ns": 0}),
    Shown("asynchronous_checkpoint", replace(READ_LOSS, outlier_step=3, outlier_ns=60 * MS, steps=8),
          quiet={"outlier_work": "validate"}),
    Shown("compile_cache", COMPILES, quiet={"compile_ns": 0}),
    Shown("record_steady_steps", replace(COMPILES, steps=1), quiet={"steps": 8}),
    Shown("nccl_log", SLOW, quiet_log=nccl_log(TREE)),
    Shown("nccl_algorithm", SLOW, nccl_log(TREE), quiet_log=nccl_log(TREE, variables(NCCL_ALGO="Tree"))),
    Shown("nccl_protocol", SLOW, nccl_log(TREE), quiet_log=nccl_log(chosen({BUCKET: "TREE SIMPLE"}))),
    Shown("nccl_channels", SLOW, nccl_log(TREE), quiet_log=nccl_log(chosen({BUCKET: "TREE LL"}, channels=64))),
]  # fmt: skip


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.code)
def test_a_setting_without_a_predicted_step_comes_only_where_it_applies(shown: Shown, tmp_path: Path) -> None:
    report = analysed(shown.job, tmp_path, log=shown.log)
    assert shown.code in told(report), (sorted(told(report)), [finding["code"] for finding in report["findings"]])
    quiet = replace(shown.job, **(shown.quiet or {}))
    log = shown.log if shown.quiet_log is None else shown.quiet_log
    assert shown.code not in told(analysed(quiet, tmp_path, log=log))


def in_cpp(folder: Path, *, allocates: bool = False) -> Report:
    """A program that calls CUDA itself: six rounds of a kernel of 1 ms; in each 2 ms of allocating and freeing."""
    export, at = Export(), 1_000_000
    for number in range(6):
        for call in ("cudaMalloc_v3020", "cudaFree_v3020") if allocates else ():
            export.call(at, at + MS, 10 * number + 5 + len(call), call)
            at += MS
        export.call(at, at + 5_000, 10 * number + 1)
        export.kernel(at + 10_000, at + MS, 10 * number + 1, name="stencil")
        at += MS + 20_000
    return gpuscope.analyze(export.write(folder / f"cpp{len(list(folder.iterdir()))}")).report


def test_memory_is_allocated_once_in_cpp(tmp_path: Path) -> None:
    assert "allocate_once" in told(in_cpp(tmp_path, allocates=True))
    assert "allocate_once" not in told(in_cpp(tmp_path))


def short_of_memory(folder: Path, free_on_device: int) -> Report:
    """A snapshot: two segments of 120 MiB, each half in use, and a request of 100 MiB that fails, or does not."""
    first, second = 0x1000_0000, 0x2000_0000
    taken = [("segment_alloc", first, 120 * MIB), ("alloc", first, 120 * MIB), ("segment_alloc", second, 120 * MIB),
             ("alloc", second, 120 * MIB), ("free", first, 120 * MIB), ("free", second, 120 * MIB),
             ("alloc", first, 60 * MIB), ("alloc", second, 61 * MIB)]  # fmt: skip
    if free_on_device:
        taken.append(("oom", free_on_device, 100 * MIB))
    halves = [segment(first, (60 * MIB, "active_allocated"), (60 * MIB, "inactive")),
              segment(second, (61 * MIB, "active_allocated"), (59 * MIB, "inactive"))]  # fmt: skip
    return gpuscope.analyze(snapshot(folder / f"s{free_on_device}.pickle", halves, events(*taken))).report


def test_a_request_that_fails(tmp_path: Path) -> None:
    wall = {"smaller_micro_batch", "activation_checkpointing", "shard_states", "cpu_offload", "allocator_setting"}
    assert told(short_of_memory(tmp_path, 50 * MIB)) >= wall
    assert not told(short_of_memory(tmp_path, 0)) & (wall - {"allocator_setting"})
