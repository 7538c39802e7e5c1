"""«Per step» is a share of «the step»: rows add up to it and none exceeds it, whatever the mean of the steps is."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.analysed import report as analysed
from helpers.reports import report
from simulator.catalogue import CASES
from simulator.judged import Case

from gpuscope.report.view import report_rows
from gpuscope.schema.document import Report

MS = 1_000_000
SAMPLES = ("ddp_slow_rank", "ddp_slow_loader", "ddp_rotating_rank", "fsdp_healthy", "tp_healthy", "pp_1f1b")
PUBLIC = (
    "kineto/resnet50_num_workers_0",
    "kineto/hta_diff_control",
    "kineto/hta_nccl_args",
    "ascend/level0",
    "nsys/zx3xyy/result.sqlite",
    "straggler/trace-ST.parquet",
    "straggler/trace-AR.parquet",
)


def check(made: Report) -> None:
    """The parts and the causes add up to the step, and no row exceeds it."""
    step = report_rows.step_ns(made)
    if step is None:
        assert all(finding.get("per_step_ns") is None for finding in made["findings"])
        return
    rows = [row.per_step_ns for row in report_rows.causes(made)]
    window = sum(entry["window_ns"] for entry in made["ranks"])
    if window:
        compute = sum(entry["breakdown_ns"]["compute"] for entry in made["ranks"]) / window * step
        assert sum(row or 0 for row in rows) + compute == pytest.approx(step, abs=len(rows) + 1)
    shown = [*rows, *(one.get("per_step_ns") for one in made["findings"])]
    shown += [one["per_step_ns"] for one in made["stragglers"]]
    assert all(one is None or 0 <= one <= step for one in shown)


def test_a_cost_stands_beside_the_median_step() -> None:
    """Steps of 100, 100 and 400 ms, half of each idle: the mean is 100 ms of a step of 100, the share 50."""
    made = report(100.0, 100.0, 400.0, ranks=1)
    made["ranks"][0]["breakdown_ns"] = {
        "compute": 300 * MS,
        "exposed_communication": 0,
        "exposed_memory": 0,
        "idle": 300 * MS,
    }
    made["ranks"][0]["stall_ns"]["cpu"] = {"input": 300 * MS}
    [row] = report_rows.causes(made)
    assert row.per_step_ns == 50 * MS
    check(made)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_add_up(samples: Path, name: str) -> None:
    check(analysed(samples / name))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_add_up(shared_traces: Path, name: str) -> None:
    check(analysed(shared_traces / name))


@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: case.name)
def test_simulated_jobs_add_up(tmp_path: Path, case: Case) -> None:
    check(analysed(case.write(tmp_path)))
