"""Waiting apart from transferring, latency from bandwidth, and who was late; worked out by hand (µs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.kineto import call, kernel, note, write

import gpuscope
from gpuscope.analyzers.collectives.message_cost import CostModel, assume, fit

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def collective(ts: int, dur: int, nbytes: int, seq: int, name: str = NCCL, ranks: int = 2, **told: Any) -> Any:
    arguments = {
        "Collective name": "allreduce", "In msg nelems": nbytes // 4, "Out msg nelems": nbytes // 4, "dtype": "Float",
        "Group size": ranks, "Process Group Name": "0", "Process Group Ranks": str(list(range(ranks))), "Seq": seq,
        **told,
    }  # fmt: skip
    return kernel(ts, dur, None, name, 13, **arguments)


def late_rank_1(folder: Path, steps: int, size: int) -> Path:
    """Two ranks; in each step rank 0 computes 10–100, rank 1 10–160; the all-reduce ends at 200 for both."""
    for rank, late in ((0, 0), (1, 60)):
        events: list[Any] = []
        for step in range(steps):
            at = step * 1000
            events += [
                note(at, 1000, f"ProfilerStep#{step}"),
                call(at + 1, 2, step + 1),
                kernel(at + 10, 90 + late, step + 1),
                collective(at + 100 + late, 100 - late, size, step),
            ]
        write(folder / f"rank{rank}.json", *events, rank=rank, world_size=2)
    return folder


def test_wait_and_transfer(tmp_path: Path) -> None:
    """Rank 1 arrives 60 late, in each of three steps: rank 0 waits 60 and both transfer 40.

    100 MB in 40 µs is 2621 GB/s: bandwidth is what such a size is limited by, whatever the link.
    """
    size = 100 << 20
    report = gpuscope.analyze(late_rank_1(tmp_path, steps=3, size=size)).report
    causes = [rank["stall_ns"]["communication"] for rank in report["ranks"]]
    assert causes == [{"bandwidth": 120_000, "straggler": 180_000}, {"bandwidth": 120_000}]
    (entry,) = report["collectives"]
    assert (entry["op"], entry["count"], entry["bytes"]) == ("all_reduce", 3, 3 * size)
    assert (entry["dur_ns"], entry["wait_ns"], entry["transfer_ns"]) == (420_000, 180_000, 120_000)
    assert entry["algbw_gbps"] == pytest.approx(3 * size / 120_000)
    assert entry["busbw_gbps"] == entry["algbw_gbps"]  # 2 (n-1)/n is 1 for two ranks
    assert report["stragglers"] == [
        {
            "rank": 1,
            "caused_wait_ns": 180_000,
            "caused_wait_ns_per_step": 60_000,
            "root_wait_ns": 180_000,
            "phase": None,
            "operation": "gemm",
            "recurrent": False,
        }
    ]
    straggler = next(finding for finding in report["findings"] if finding["code"] == "straggler")
    assert straggler["ranks"] == [1]
    assert straggler["cost_ns_per_step"] == 30_000  # 60 µs a step on one of two ranks


def test_recurrent_is_beyond_chance(tmp_path: Path) -> None:
    """Six times last of two is 1/64 by chance; three times is 1/8."""
    (entry,) = gpuscope.analyze(late_rank_1(tmp_path, steps=6, size=4096)).report["stragglers"]
    assert entry["recurrent"] is True


def test_one_rank_of_eight_does_not_guess_the_culprit(tmp_path: Path) -> None:
    path = write(tmp_path / "rank3.json", kernel(0, 10), collective(10, 90, 1 << 20, 0, ranks=8), rank=3, world_size=8)
    verdict = gpuscope.analyze(path).report["verdict"]
    assert verdict["abstained"] is True
    assert "1 of 8 ranks" in verdict["why"]


def test_sizes_not_recorded(tmp_path: Path) -> None:
    """No size, no partner: exposed, of a cause the trace can't tell."""
    path = write(tmp_path / "r.json", kernel(0, 90), kernel(90, 10, name=NCCL, stream=13))
    report = gpuscope.analyze(path).report
    assert report["ranks"][0]["stall_ns"]["communication"] == {"unattributed": 10_000}
    assert [finding["code"] for finding in report["findings"]] == ["exposed_communication"]


def test_collective_on_the_compute_stream_is_communication(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", kernel(0, 50), kernel(50, 50, name=NCCL, stream=7))
    report = gpuscope.analyze(path).report
    assert report["ranks"][0]["breakdown_ns"]["exposed_communication"] == 50_000
    shared = [finding for finding in report["findings"] if finding["code"] == "shared_stream"]
    assert [finding["cost_ns_per_step"] for finding in shared] == [50_000]


def test_collective_on_its_own_stream_shares_none(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", kernel(0, 50), kernel(50, 50, name=NCCL, stream=13))
    assert "shared_stream" not in [finding["code"] for finding in gpuscope.analyze(path).report["findings"]]


def test_fit_finds_alpha_and_beta() -> None:
    """T = 20 µs + S / 100 GB/s; longer repetitions (waiting) do not move the fit."""
    sizes = np.array([1e4, 1e5, 1e6, 1e7, 1e7])
    times = np.array([20_100, 21_000, 30_000, 120_000, 900_000])
    model = fit(sizes, times)
    assert model is not None
    assert model.alpha == pytest.approx(20_000, rel=0.01)
    assert 1 / model.beta == pytest.approx(100, rel=0.01)
    assert model.latency_bound(1e6)
    assert not model.latency_bound(1e7)


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ([1e6, 1e6, 1e6], [10, 20, 30]),  # one size says nothing of the slope
        ([1e6, 1.5e6, 2e6], [10, 15, 20]),  # nor does too narrow a range
        ([1e4, 1e6, 1e8, 1e5], [56_000, 2_000, 2_500, 7_000]),  # nor do times that do not follow the size
    ],
)
def test_no_fit_where_data_do_not_support_one(sizes: list[float], times: list[int]) -> None:
    assert fit(np.array(sizes), np.array(times)) is None


def test_assumed_fixed_cost_is_trusted_within_a_factor_of_ten() -> None:
    """1 MB over gloo: 5 ms is a slow start, 100 ms is a slow link; a fit is believed as it is."""
    assumed = assume("gloo", "", 2)
    assert assumed.latency_bound(1e6, transfer=5_000_000)
    assert not assumed.latency_bound(1e6, transfer=100_000_000)
    assert CostModel(1e6, 0.5, 0.1, "fitted").latency_bound(1e6, transfer=100_000_000)


def test_beyond_the_expected_transfer_one_rank_can_not_tell(tmp_path: Path) -> None:
    """16 MiB at 24 GB/s (PCIe 4) and a fixed cost of 8.6 µs take 708 µs; 9.292 ms of 10 remain untold."""
    path = write(tmp_path / "rank0.json", kernel(0, 10), collective(10, 10_000, 16 << 20, 0), world_size=2)
    report = gpuscope.analyze(path).report
    expected = round(6600 + 2 * 1000 + (16 << 20) / 24)
    assert report["ranks"][0]["stall_ns"]["communication"] == {
        "bandwidth": expected,
        "unattributed": 10_000_000 - expected,
    }
    assert "assumed_link" in [problem["code"] for problem in report["problems"]]
