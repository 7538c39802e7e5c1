"""Waiting apart from transferring, latency from bandwidth, and who was late; worked out by hand (µs)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.kineto import call, kernel, note, write

import gpuscope
from gpuscope.collective_costs.message_cost import CostModel, assume, fit

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def collective(ts: int, dur: int, nbytes: int, seq: int, name: str = NCCL, ranks: int = 2, **told: Any) -> Any:
    arguments = {
        "Collective name": "allreduce",
        "In msg nelems": nbytes // 4,
        "Out msg nelems": nbytes // 4,
        "dtype": "Float",
        "Group size": ranks,
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(ranks))),
        "Seq": seq,
        **told,
    }
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
    """Rank 1 arrives 60 late, in each of three steps: rank 0 waits 60 and both transfer 40. Of the three steps the
    first two are judged; the table of collectives holds all that was recorded.

    100 MB in 40 µs is 2621 GB/s: bandwidth is what such a size is limited by, whatever the link.
    """
    size = 100 << 20
    report = gpuscope.analyze(late_rank_1(tmp_path, steps=3, size=size)).report
    causes = [rank["stall_ns"]["communication"] for rank in report["ranks"]]
    assert causes == [{"bandwidth": 80_000, "straggler": 120_000}, {"bandwidth": 80_000}]
    (entry,) = report["collectives"]
    assert (entry["op"], entry["count"], entry["bytes"]) == ("all_reduce", 3, 3 * size)
    assert (entry["dur_ns"], entry["wait_ns"], entry["transfer_ns"]) == (420_000, 180_000, 120_000)
    assert entry["algbw_gbps"] == pytest.approx(3 * size / 120_000)
    assert entry["busbw_gbps"] == entry["algbw_gbps"]  # 2 (n-1)/n is 1 for two ranks
    assert report["stragglers"] == [
        {
            "rank": 1,
            "caused_wait_ns": 120_000,
            "caused_wait_ns_per_step": 60_000,
            "per_step_ns": 60_000,
            "root_wait_ns": 120_000,
            "phase": None,
            "operation": "gemm",
            "recurrent": True,
            "reason": None,
            "reason_why": "it computes 60.00 µs per step longer; whether its device is slower or its data larger needs "
            "shapes (record_shapes=True)",
        }
    ]
    straggler = next(finding for finding in report["findings"] if finding["code"] == "straggler")
    assert straggler["ranks"] == [1]
    assert straggler["cost_ns_per_step"] == 30_000  # 60 µs a step on one of two ranks
    assert straggler["cost_ns"] == 120_000


@pytest.mark.parametrize(
    ("blocked", "transferred"),
    [
        ([], 20),  # rank 1 computes on during the first transfer: it would come to the second no earlier
        ([[120, 80]], 100),  # it waits for the first one itself, and computes after it
    ],
)
def test_waiting_beside_a_transfer(tmp_path: Path, blocked: list[list[int]], transferred: int) -> None:
    """Digests. On rank 0 the first all-reduce runs from 100 to 200, the second from 110 to 320. Rank 1 comes to them at
    120 and 300. The second makes rank 0 wait from 110 to 300 unless the first holds rank 1 up."""
    kind = {"kind": 0, "op": "all_reduce", "group": "0", "bytes": 100 << 20, "dtype": "float32"}
    for rank, first, second, waits in ((0, 100, 110, [[100, 220]]), (1, 120, 300, [*blocked, [300, 20]])):
        lines: list[Any] = [
            {"gpuscope_digest": 2, "rank": rank, "world_size": 2, "host": "one"},
            {"group": "0", "ranks": [0, 1]},
            kind,
        ]
        for step in range(8):
            rows = [[0, 2 * step, first, 200 - first], [0, 1, second - first, 320 - second]]
            lines.append(
                {
                    "step": step,
                    "rank": rank,
                    "end_ns": 10**6 * (step + 1),
                    "step_ns": 10**6,
                    "phases": [["backward", 10**6]],
                    "waits": [[1000 * at, 1000 * ns] for at, ns in waits],
                    "collectives": [[*row[:2], 1000 * row[2], 1000 * row[3]] for row in rows],
                }
            )
        (tmp_path / f"rank{rank}.digest").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    entry = gpuscope.analyze(tmp_path).report["ranks"][0]
    judged = 1000 * entry["steps"]
    assert entry["stall_ns"]["communication"] == {
        "bandwidth": judged * transferred,
        "straggler": judged * (220 - transferred),
    }


def test_recurrent_from_two_judged_steps_on(tmp_path: Path) -> None:
    """The last step is not judged where two others remain."""
    found = {
        steps: gpuscope.analyze(late_rank_1(tmp_path / str(steps), steps=steps, size=4096)).report["stragglers"]
        for steps in (1, 3)
    }
    assert {steps: entry["recurrent"] for steps, (entry,) in found.items()} == {1: False, 3: True}


def test_one_rank_of_eight_does_not_guess_the_culprit(tmp_path: Path) -> None:
    """90 of 100 are exposed communication: the class is certain; its cause needs the other ranks."""
    path = write(tmp_path / "rank3.json", kernel(0, 10), collective(10, 90, 1 << 20, 0, ranks=8), rank=3, world_size=8)
    report = gpuscope.analyze(path).report
    verdict = report["verdict"]
    assert (verdict["bound_by"], verdict["cause"], verdict["share_frac"]) == ("communication", None, 0.9)
    assert (verdict["abstained"], verdict["cause_abstained"]) == (False, True)
    assert "add the traces of ranks 0-2,4-7" in verdict["why"]
    assert report["ranks"][0]["stall_ns"]["communication"] == {"unattributed": 90_000}


@pytest.mark.parametrize(
    ("dur", "cause"),
    [
        (17, "latency"),  # under 2 × 8.6
        (18, "unattributed"),
        (34, "unattributed"),
        (35, "bandwidth"),  # at least 4 × 8.6
    ],
)
def test_sizes_not_recorded(tmp_path: Path, dur: int, cause: str) -> None:
    """The transfer time decides where it can, against the fixed cost of two ranks over PCIe 4: 6.6 + 2 · 1 µs."""
    for rank in (0, 1):
        write(
            tmp_path / f"rank{rank}.json", kernel(0, 90), kernel(90, dur, name=NCCL, stream=13), rank=rank, world_size=2
        )
    report = gpuscope.analyze(tmp_path).report
    assert [rank["stall_ns"]["communication"] for rank in report["ranks"]] == [{cause: 1000 * dur}] * 2


def test_neither_size_nor_partner(tmp_path: Path) -> None:
    """Exposed, of a cause the trace can't tell."""
    path = write(tmp_path / "r.json", kernel(0, 90), kernel(90, 10, name=NCCL, stream=13), world_size=2)
    report = gpuscope.analyze(path).report
    assert report["ranks"][0]["stall_ns"]["communication"] == {"unattributed": 10_000}
    assert [finding["code"] for finding in report["findings"]] == ["exposed_communication"]


def test_collective_on_the_compute_stream_is_communication(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", kernel(0, 50), kernel(50, 50, name=NCCL, stream=7))
    report = gpuscope.analyze(path).report
    assert report["ranks"][0]["breakdown_ns"]["exposed_communication"] == 50_000
    shared = [finding for finding in report["findings"] if finding["code"] == "shared_stream"]
    assert [finding["cost_ns_per_step"] for finding in shared] == [50_000]


@pytest.mark.parametrize(("streams", "told"), [((7, 7), [([0, 1], 0.5, 50_000)]), ((7, 13), [([0], 0.25, 25_000)])])
def test_what_ranks_have_alike_is_one_finding_of_all_windows(
    streams: tuple[int, int], told: list[tuple[list[int], float, int]], tmp_path: Path
) -> None:
    for rank, stream in enumerate(streams):
        events = kernel(0, 50), kernel(50, 50, name=NCCL, stream=stream)
        write(tmp_path / f"rank{rank}.json", *events, rank=rank, world_size=2)
    found = [one for one in gpuscope.analyze(tmp_path).report["findings"] if one["code"] == "shared_stream"]
    assert [(one["ranks"], one["share_frac"], one["cost_ns_per_step"]) for one in found] == told
    assert f"{told[0][1]:.1%}".replace("%", " %") in found[0]["message"]


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


def test_how_often_a_size_occurs_is_no_cost_of_its_bytes() -> None:
    """On a busy machine 50 transfers of each small size and 5 of the largest take 0.5 ms and up to 10 ms longer: the
    shortest of 50 is shorter than that of 5, and yet all cost the same."""
    small = np.repeat([12_416.0, 16_384.0, 20_608.0], 50)
    sizes = np.concatenate((small, np.full(5, 65_536.0)))
    delays = np.linspace(0, 1, 52)[1:-1] * 10e6
    times = np.concatenate((np.tile(delays, 3), np.linspace(0, 1, 7)[1:-1] * 10e6)) + 500_000
    model = fit(sizes, times.astype(np.int64))
    assert model is not None
    assert model.latency_bound(65_536.0)


def test_assumed_fixed_cost_is_trusted_within_a_factor_of_ten() -> None:
    """1 MB over gloo: 5 ms is a slow start, 100 ms is a slow link; a fit is believed as it is."""
    assumed = assume("gloo", "", 2)
    assert assumed.latency_bound(1e6, transfer=5_000_000)
    assert not assumed.latency_bound(1e6, transfer=100_000_000)
    assert CostModel(1e6, 0.5, 0.1, "fitted").latency_bound(1e6, transfer=100_000_000)


def test_one_rank_divides_nothing_of_what_it_exposes(tmp_path: Path) -> None:
    """16 MiB in 10 ms, of which a transfer over PCIe 4 would take 0.7: how much was waiting, its partner would tell."""
    path = write(tmp_path / "rank0.json", kernel(0, 10), collective(10, 10_000, 16 << 20, 0), world_size=2)
    report = gpuscope.analyze(path).report
    assert report["ranks"][0]["stall_ns"]["communication"] == {"unattributed": 10_000_000}
    assert "assumed_link" not in [problem["code"] for problem in report["problems"]]  # nothing rests on a link
