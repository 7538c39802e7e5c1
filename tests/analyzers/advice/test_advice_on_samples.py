"""Advice on real recordings: the right setting where there is a fault, none where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import analysed

import gpuscope


def test_a_healthy_run_gets_no_advice_and_is_told_why(samples: Path) -> None:
    report = analysed.report(samples / "ddp_healthy")
    assert report["suggestions"] == []
    assert report["advice"]["why"].startswith("compute-bound")
    assert report["advice"]["unpredicted"] == []


@pytest.mark.parametrize(
    ("run", "code", "setting"),
    [
        ("ddp_slow_loader", "loader_workers", "DataLoader.num_workers=2"),  # loading takes longer than the rest
        ("ddp_slow_rank", "even_data", "the sampler of the data loader=batches by length"),
        ("ddp_uneven_sequences", "even_data", "the sampler of the data loader=batches by length"),
        ("ddp_host_stall", "host_work_aside", "torch.distributed.checkpoint.async_save=in place of the call"),
    ],
)
def test_an_injected_fault_is_answered(samples: Path, run: str, code: str, setting: str) -> None:
    report = analysed.report(samples / run)
    best = report["suggestions"][0]
    assert best["code"] == code
    assert f"{best['setting']['name']}={best['setting']['value']}".startswith(setting)
    predicted = best["predicted"]
    assert report["step_time"] is not None
    assert predicted["step_ns_before"] == report["step_time"]["median_ns"]
    assert predicted["low_ns"] <= predicted["step_ns_after"] <= predicted["high_ns"] < predicted["step_ns_before"]


def test_buckets_on_a_cpu_are_named_without_a_gain(samples: Path) -> None:
    """Not where nobody counted what they take from the backward pass (docs/predictions.md)."""
    report = analysed.report(samples / "ddp_tiny_buckets")
    assert "bucket_size" not in {one["code"] for one in report["suggestions"]}
    [untold] = [one for one in report["advice"]["unpredicted"] if one["code"] == "bucket_size"]
    assert untold["setting"] == {"kind": "python", "name": "DistributedDataParallel.bucket_cap_mb", "value": "None"}
    assert "gpuscope record counts it" in untold["why_not"]


def test_half_a_run_gets_no_advice_on_its_collectives(samples: Path) -> None:
    """Without rank 1 nobody knows whether it was late or the link slow."""
    report = gpuscope.analyze(samples / "ddp_slow_rank", ranks=[0]).report
    assert report["verdict"]["cause_abstained"]
    assert report["suggestions"] == []


def test_a_rank_with_longer_sequences_is_told_by_the_shapes_of_its_operators(samples: Path) -> None:
    """Its sequences are four times as long: forward and backward operators of a CPU run have their input shapes."""
    (late,) = (one for one in analysed.report(samples / "ddp_uneven_sequences")["stragglers"] if one["rank"] == 1)
    assert late["reason"] == "data"
    assert "4.0 times as large" in late["reason_why"]
