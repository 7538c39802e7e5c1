"""What measured times show by themselves: crossovers of NCCL's choices, runs beside one another, slow links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.collectives import collective, run_of
from helpers.nccl_logs import MIB, chosen, communicator, nccl_tests, said, write

import gpuscope
from gpuscope.schema.document import Report
from gpuscope.trace.kinds import exact_names, kernel_algorithm

KIB = 1 << 10
TIMES = {32 * KIB: 90.0, 64 * KIB: 160.0, 128 * KIB: 110.0, 256 * KIB: 150.0}


def report(*paths: Path) -> Report:
    return gpuscope.analyze(*paths).report


def codes(found: Report) -> dict[str, str]:
    return {finding["code"]: finding["message"] for finding in found["findings"]}


def test_a_smaller_message_that_takes_longer_names_the_choice_of_the_larger(tmp_path: Path) -> None:
    """64 KiB take 160 µs by a tree, 128 KiB 110 µs by a ring: by a ring 64 KiB take at most 110 µs."""
    log = chosen(dict.fromkeys([32 * KIB, 64 * KIB], "TREE LL") | dict.fromkeys([128 * KIB, 256 * KIB], "RING LL"))
    found = report(write(tmp_path, "t.log", communicator(2), log, nccl_tests(TIMES)))
    (entry,) = found["crossovers"]
    assert (entry["kind"], entry["bytes"], entry["like_bytes"]) == ("larger_is_faster", 64 * KIB, 128 * KIB)
    assert (entry["dur_ns"], entry["at_most_ns"]) == (160_000, 110_000)
    assert (entry["algorithm"], entry["faster_algorithm"], entry["faster_protocol"]) == ("tree", "ring", "ll")
    assert "64 KiB take 160.0 µs by tree/ll, 128 KiB only 110.0 µs by ring/ll" in codes(found)["nccl_crossover"]


def test_times_of_one_choice_that_are_out_of_order_are_noise(tmp_path: Path) -> None:
    """The same reading, but all of it a ring: no setting changes that. And where the disorder of one choice is 31 %,
    a difference of 20 % between two choices is noise too."""
    ring = chosen(dict.fromkeys(TIMES, "RING LL"))
    assert "crossovers" not in report(write(tmp_path, "a.log", communicator(2), ring, nccl_tests(TIMES)))
    noisy = {**TIMES, 512 * KIB: 400.0, MIB: 310.0}
    log = chosen(dict.fromkeys(TIMES, "RING LL") | {512 * KIB: "TREE SIMPLE", MIB: "RING SIMPLE"})
    found = report(write(tmp_path, "b.log", communicator(2), log, nccl_tests(noisy)))
    assert "crossovers" not in found


def test_a_rising_curve_has_no_crossover(tmp_path: Path) -> None:
    times = {size << 10: 20 + size * 0.3 for size in (4, 16, 64, 256, 1024)}
    assert "crossovers" not in report(write(tmp_path, "t.log", nccl_tests(times)))


def test_bus_bandwidth_that_drops_at_a_size(tmp_path: Path) -> None:
    """Two messages of 1 GiB take 2 · 100 ms, one of 2 GiB 260 ms."""
    times = {512 * MIB: 50_000.0, 1024 * MIB: 100_000.0, 2048 * MIB: 260_000.0}
    (entry,) = report(write(tmp_path, "t.log", nccl_tests(times)))["crossovers"]
    assert (entry["kind"], entry["bytes"], entry["at_most_ns"]) == ("bandwidth_drops", 2 << 30, 200_000_000)


def test_rows_without_a_warm_up_give_way_to_those_with_one(tmp_path: Path) -> None:
    cold = {size: time * 50 for size, time in TIMES.items()}
    write(tmp_path, "cold.log", nccl_tests(cold, warmup=0))
    write(tmp_path, "warm.log", nccl_tests({64 * KIB: 30.0}))
    found = report(tmp_path)
    assert {row["bytes"]: row["dur_ns"] for row in found["bandwidth"]}[64 * KIB] == 30_000
    assert [p["count"] for p in found["problems"] if p["code"] == "measurement_cold"] == [1]


def test_two_runs_are_compared_size_by_size(tmp_path: Path) -> None:
    """The variables of a run's log say by what it ran."""
    ring = [said("NCCL_ALGO set by environment to Ring"), said("NCCL_PROTO set by environment to Simple")]
    write(tmp_path, "default.log", nccl_tests({64 * KIB: 30.0, MIB: 200.0}))
    write(tmp_path, "ring.log", ring, nccl_tests({64 * KIB: 40.0, MIB: 150.0}))
    found = report(tmp_path)
    told = {entry["run"]: entry for entry in found["crossovers"]}
    assert (told["ring"]["bytes"], told["ring"]["faster_run"]) == (64 * KIB, "default")
    assert (told["default"]["bytes"], told["default"]["faster_algorithm"]) == (MIB, "ring")
    assert {row["run"] for row in found["bandwidth"]} == {"default", "ring"}


def inspected(rank: int, seq: int, nbytes: int, us: float, run: str) -> str:
    told = {
        "header": {"id": run, "rank": rank, "n_ranks": 2, "nnodes": 1},
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": seq,
            "coll_msg_size_bytes": nbytes,
            "coll_exec_time_us": us,
            "coll_busbw_gbs": 1.0,
        },
    }
    return json.dumps(told)


def test_of_the_inspector_the_shortest_time_of_each_operation_counts(tmp_path: Path) -> None:
    """Rank 0 waits 60 µs for rank 1 in every operation: 20 µs are the transfer."""
    for run, us in (("a", 20.0), ("b", 25.0)):
        for rank, wait in ((0, 60.0), (1, 0.0)):
            lines = [inspected(rank, seq, MIB, us + wait + 0.1 * (seq % 3), run) for seq in range(20)]
            write(tmp_path / run, f"rank{rank}.log", lines)
    found = report(tmp_path)
    assert [(row["run"], round(row["dur_ns"] / 1000)) for row in found["bandwidth"]] == [("a", 20), ("b", 25)]
    (entry,) = found["crossovers"]
    assert (entry["run"], entry["faster_run"]) == ("b", "a")
    assert "b takes longer than a at 1 MiB, by up to 24.9 %" in codes(found)["slower_run"]


TOPOLOGY = """<system version="1"><cpu numaid="0" arch="x86_64">
<pci busid="0000:00:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0"><nvlink target="0000:10:00.0" count="12" tclass="0x030200"/></gpu></pci>
<pci busid="0000:10:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="1"><nvlink target="0000:00:00.0" count="12" tclass="0x030200"/></gpu></pci>
</cpu></system>"""


@pytest.mark.parametrize(("busbw", "slow"), [(40, True), (220, False)])
def test_a_link_that_carries_less_than_half_of_its_rate(tmp_path: Path, busbw: int, slow: bool) -> None:
    """12 NVLinks 3 carry 300 GB/s; over 2 ranks algbw is busbw."""
    write(tmp_path, "topo.xml", [TOPOLOGY])
    times = {size * MIB: size * MIB / busbw / 1000 for size in (256, 1024)}
    write(tmp_path, "t.log", chosen(dict.fromkeys(times, "RING SIMPLE"), channels=2), nccl_tests(times))
    found = codes(report(tmp_path))
    assert ("low_busbw" in found) == slow
    if slow:
        assert "2 channels carry at most about 80.00 GB/s" in found["low_busbw"]


def test_what_was_timed_while_every_call_was_logged_is_told(tmp_path: Path) -> None:
    calls = [said("AllReduce: opCount 0 sendbuff 0x0 recvbuff 0x0 count 1 [nranks=2] stream 0x0")] * 40
    slow = nccl_tests({64 << 10: 40_000.0, MIB: 900.0, 2 * MIB: 1500.0, 4 * MIB: 3000.0})
    found = codes(report(write(tmp_path, "t.log", calls, slow)))
    assert "NCCL logged 40 calls" in found["measured_while_logging"]
    assert "nccl_crossover" not in found  # what takes 40 ms is writing the log
    quiet = codes(report(write(tmp_path, "quiet.log", slow)))
    assert "measured_while_logging" not in quiet
    assert "nccl_crossover" in quiet


@pytest.mark.parametrize(
    ("kernel", "op", "told"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce", ("tree", None)),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce", ("ring", None)),
        ("ncclKernel_AllReduce_TREE_LL_Sum_float(ncclWorkElem)", "all_reduce", ("tree", None)),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", (None, None)),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE", "all_reduce", ("ring", "simple")),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", (None, None)),
    ],
)
def test_a_kernel_s_name_says_no_more_than_nccl_s_source_makes_it(
    kernel: str, op: str, told: tuple[str | None, str | None]
) -> None:
    assert kernel_algorithm(kernel, op) == told
    exact = exact_names([kernel, "ncclDevKernel_AllReduce_Sum_f32_NVLS_SIMPLE"])
    assert exact
    if "_LL" in kernel:
        assert kernel_algorithm(kernel, op, exact)[1] == "ll"


def test_a_tree_in_a_kernel_s_name_reaches_the_report(tmp_path: Path) -> None:
    """No log beside the trace. On H100 «RING» may be NVLS, on A100 it is a ring."""

    def events(name: str) -> list[dict[str, object]]:
        kernel = {"name": f"ncclDevKernel_AllReduce_Sum_f32_{name}_LL(ncclDevKernelArgsStorage<4096ul>)"}
        return [collective(100 * number, 20, 4096, number) | kernel for number in (1, 2)]

    for gpu, name, expected in (
        ("NVIDIA H100 80GB HBM3", "TREE", "tree"),
        ("NVIDIA H100 80GB HBM3", "RING", None),
        ("NVIDIA A100-SXM4-80GB", "RING", "ring"),
    ):
        folder = tmp_path / f"{gpu[7:11]}{name}"
        folder.mkdir()
        (row,) = report(run_of(folder, events(name), events(name), gpu=gpu))["bandwidth"]
        assert (row["algorithm"], row["protocol"]) == (expected, None)
