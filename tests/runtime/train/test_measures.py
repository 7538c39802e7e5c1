"""What a step is measured by, on input whose answer is worked out by hand."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gpuscope.hardware.device_peaks import peak_flops
from gpuscope.instrumented_runtime.train.measures import GarbageCollector, StepMeter, Workload, percentile, summarize
from gpuscope.instrumented_runtime.train.model import GPT, flops_per_token
from gpuscope.instrumented_runtime.train.settings.config import ModelConfig
from gpuscope.instrumented_runtime.train.train_run import LiveView, summary_line

CPU = torch.device("cpu")


def record(step_ns: int, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "first": False,
        "step_ns": step_ns,
        "tokens": 100,
        "mfu": None,
        "data_wait_ns": 0,
        "exposed_communication_ns": None,
        "gc_ns": 0,
        "checkpoint_ns": 0,
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": None,
        "peak_host_bytes": 7,
        "allocator_retries": None,
        "ooms": None,
        "joules": None,
        "goodput": 0.9,
        "loss": None,
    }
    return values | changes


@pytest.mark.parametrize(("share", "expected"), [(0.0, 10), (0.5, 50), (0.9, 90), (0.99, 100), (1.0, 100)])
def test_percentiles_by_nearest_rank(share: float, expected: int) -> None:
    assert percentile(list(range(10, 101, 10)), share) == expected


def test_a_summary_leaves_out_the_first_step() -> None:
    summary = summarize(
        [
            record(9_000, first=True, data_wait_ns=9_000, joules=5.0),
            record(1_000, data_wait_ns=100, exposed_communication_ns=500, joules=2.0, loss=3.5),
            record(3_000, data_wait_ns=300, exposed_communication_ns=1_500, joules=2.0),
        ],
        ranks=2,
    )
    assert summary["step_ns"] == {"min": 1_000, "p50": 1_000, "p90": 3_000, "p99": 3_000, "max": 3_000}
    assert summary["tokens_per_s"] == pytest.approx(200 / 4_000e-9)
    assert (summary["data_wait_frac"], summary["exposed_communication_frac"]) == (0.1, 0.5)
    assert (summary["joules"], summary["last_loss"], summary["steps"]) == (9.0, 3.5, 3)
    assert summary["joules_per_token"] == 2 * 4.0 / 200


def test_what_nobody_knows_stays_unknown() -> None:
    summary = summarize([record(1_000)])
    assert [summary[key] for key in ("mfu", "joules", "joules_per_token", "ooms")] == [None] * 4


def test_mfu_and_tokens_of_a_step(tmp_path: Path) -> None:
    # 1,000 tokens of 6 FLOPs over 2 ranks: 3,000 FLOPs of this rank.
    meter = StepMeter(Workload(tokens=1_000, flops_per_token=6, ranks=2, peak_flops=1e12), rank=1, device=CPU)
    meter.write_to(tmp_path / "rank1.jsonl", restart=0)
    meter.begin()
    with meter.timed("data"):
        pass
    done = meter.end(0, torch.tensor(2.5), torch.tensor(0.5), 1e-3, exposed_ns=None)
    assert done.mfu == pytest.approx(3_000 / (done.step_ns / 1e9) / 1e12)
    assert done.tokens_per_s == pytest.approx(1_000 / (done.step_ns / 1e9))
    assert (done.first, done.loss, done.gradient_norm, done.rank) == (True, 2.5, 0.5, 1)
    meter.close()
    (line,) = (tmp_path / "rank1.jsonl").read_text().splitlines()
    assert json.loads(line)["step_ns"] == done.step_ns


def test_the_time_of_a_checkpoint_is_not_the_steps() -> None:
    meter = StepMeter(Workload(1, 1, 1, None), rank=0, device=CPU)
    meter.begin()
    with meter.timed("checkpoint"):
        sum(range(200_000))
    done = meter.end(0, None, None, None, None)
    assert done.checkpoint_ns > done.step_ns


def test_garbage_is_collected_every_so_many_steps() -> None:
    collector, counted = GarbageCollector(every=2), []
    collector.start()
    try:
        assert not gc.isenabled()
        collector.take()
        for step in range(4):
            collector.after_step(step)
            counted.append(collector.take() > 0)
    finally:
        collector.stop()
    assert counted == [False, True, False, True]
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 311.9e12),
        ("NVIDIA L40S", 362.1e12),
        ("NVIDIA GeForce GT 710", None),
    ],
)
def test_peaks_by_device_name(name: str, expected: float | None) -> None:
    assert peak_flops(name, "bf16") == expected


def test_flops_are_six_per_weight_and_the_attention() -> None:
    config = ModelConfig(layers=2, width=8, heads=2, vocabulary=16)
    weights = sum(p.numel() for name, p in GPT(config, 4).named_parameters() if "norm" not in name)
    embedding = 16 * 8  # looked up, not multiplied
    assert flops_per_token(config, 4) == 6 * (weights - embedding) + 12 * 2 * 8 * 4


def test_the_last_line_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    summary = summarize([record(2_000_000, mfu=0.4, data_wait_ns=500_000, loss=1.25)])
    with LiveView(1, 0, shown=True) as view:
        view.summary(summary)
    expected = (
        "1 steps, 2.0 ms (p50; p99 2.0 ms), 50,000 tok/s, waits for data 25 %, MFU 40.0 %, goodput 90 %, loss 1.2500"
    )
    assert capsys.readouterr().err == f"gpuscope: {expected}\n"
    assert summary_line(summary) == expected
