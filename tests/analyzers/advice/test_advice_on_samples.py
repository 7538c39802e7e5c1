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
    ("run", "code", "value"),
    [
        ("ddp_slow_loader", "loader_workers", "1"),
        ("ddp_slow_rank", "slow_rank", "without the one of rank 1, until it is checked"),
    ],
)
def test_an_injected_fault_is_answered(samples: Path, run: str, code: str, value: str) -> None:
    report = analysed.report(samples / run)
    best = report["suggestions"][0]
    assert (best["code"], best["setting"]["value"]) == (code, value)
    predicted = best["predicted"]
    windows = [rank["window_ns"] / rank["steps"] for rank in report["ranks"]]
    assert predicted["step_ns_before"] == pytest.approx(sum(windows) / len(windows), abs=1)
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
    assert report["verdict"]["abstained"]
    assert report["suggestions"] == []
