"""Advice on generated jobs: a fault is put in, its suggestion comes, and the job without the fault takes what was
predicted. That job, or another one, is where the suggestion must not come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import simulator.training
from simulator.catalogue import COMPUTE, MS, NARROW, READ_LOSS, SMALL, TINY
from simulator.counterfactuals import SHARDED
from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

import gpuscope
from gpuscope.report.schema.document import Report, SuggestionEntry

SINGLE = {"parallel": "single", "ranks": 1, "steps": 5}
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)"
ATTENTION = replace(COMPUTE, **SINGLE, smalls=2, small_ns=90_000, gemms=1, layers=6, batched=True, small_op="softmax")  # type: ignore[arg-type]
FULLY_SHARDED = replace(COMPUTE, parallel="fsdp", fsdp1=True, prefetch=1, rate=60.0)
UNITS = replace(SHARDED, keep_parameters=True, layer_bytes=MIB, first_bytes=8 * MIB, alpha_ns=200_000, layers=8,
                gemms=2, smalls=1, gemm_ns=30_000, prefetch=0, optimizer_ns=10_000)  # fmt: skip
STAGES = replace(COMPUTE, parallel="pipeline", layers=2, steps=6)
BY_HAND = replace(COMPUTE, wrapped=False, overlap=False, rate=40.0)
GRADIENT_EACH = replace(SMALL, bucket_bytes=MIB, layer_bytes=9 * MIB, alpha_ns=120_000, rate=60.0)


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


def analysed(job: Job, folder: Path, *left_out: int, log: str = "") -> Report:
    """The report on a job; `log`: NCCL's, beside its traces."""
    path = Case(replace(job, name=f"job{len(list(folder.iterdir()))}"), "", Profiler(left_out=left_out)).write(folder)
    if log:
        (path / "nccl.log").write_text(log)
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
