"""Advice on real recordings: the right setting where there is a fault, none where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import analysed
from helpers.collectives import collective
from helpers.kineto import Event, call, kernel, note, write

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
        ("ddp_slow_rank", "own_work", "aten::mm before forward on rank 1=removed"),
        (
            "ddp_uneven_sequences",
            "even_data",
            "the sampler of the data loader=batches of the same number of tokens on every rank",
        ),
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


def test_nothing_is_prefetched_where_gathers_block_their_thread(samples: Path) -> None:
    """gloo's do: measured, two modules ahead take as long as none."""
    codes = [one["code"] for one in analysed.report(samples / "fsdp_healthy")["suggestions"]]
    assert codes == ["fsdp_keep_parameters"]


def test_two_judged_steps_show_a_rank_that_is_half_a_step_late(samples: Path) -> None:
    """For what it alone runs, not for its device."""
    report = analysed.report(samples / "ddp_slow_rank")
    assert [(entry["rank"], entry["recurrent"]) for entry in report["stragglers"]] == [(1, True)]
    assert "slow_rank" not in {one["code"] for one in report["suggestions"]}


def test_a_rank_that_comes_last_again_and_again_is_answered(tmp_path: Path) -> None:
    """Six steps of 640 µs, five of them judged, in each of which rank 1 computes 600 and rank 0 100; the host waits
    for its device at the end of each."""
    for rank, busy in ((0, 100), (1, 600)):
        events: list[Event] = []
        for step in range(6):
            at = 640 * step
            events += [
                note(at, 640, f"ProfilerStep#{step}"),
                call(at, 2, 2 * step + 1),
                kernel(at + 5, busy, 2 * step + 1),
                call(at + 3, 2, 2 * step + 2),
                collective(at + 5 + busy, 630 - busy, 1 << 20, step, launch=2 * step + 2),
                call(at + 6, 632, 100 + step, name="cudaDeviceSynchronize"),
            ]
        write(tmp_path / f"rank{rank}.json", *events, rank=rank, world_size=2)
    report = gpuscope.analyze(tmp_path).report
    (late,) = report["stragglers"]
    assert (late["rank"], late["caused_wait_ns"], late["recurrent"]) == (1, 5 * 500_000, True)
    # Without shapes its device can't be told from its data: what to record comes before any hardware is replaced, and
    # what it costs is known all the same.
    (best,) = [one for one in report["suggestions"] if one["code"] == "slow_rank"]
    assert best["setting"] == {"kind": "python", "name": "torch.profiler.profile.record_shapes", "value": "True"}
    assert "needs shapes" in best["why"]
    assert best["predicted"]["step_ns_after"] == pytest.approx(140_000, rel=0.05)


def test_buckets_on_a_cpu_are_named_without_a_gain(samples: Path) -> None:
    """Not where nobody counted what they take from the backward pass (docs/trust.md)."""
    report = analysed.report(samples / "ddp_tiny_buckets")
    assert "bucket_size" not in {one["code"] for one in report["suggestions"]}
    [untold] = [one for one in report["advice"]["unpredicted"] if one["code"] == "bucket_size"]
    assert untold["setting"] == {
        "kind": "python",
        "name": "DistributedDataParallel.bucket_cap_mb",
        "value": "None  # the default: 25 MiB",
    }
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
