"""What NCCL wrote beside traces, joined to their collectives; which pair a degraded link is between."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.collectives import collective, run_of

import gpuscope
from gpuscope.errors import InputError

MB = 1 << 20


def said(rank: int, text: str) -> str:
    return f"node1:{100 + rank}:{200 + rank} [{rank}] NCCL INFO {text}\n"


def init(rank: int, size: int, channels: int, bus: str) -> str:
    return (
        said(
            rank,
            f"ncclCommInitRank comm 0xa{rank} rank {rank} nranks {size} cudaDev {rank} busId {bus} "
            "commId 0x1 - Init START",
        )
        + said(rank, f"comm 0xa{rank} rank {rank} nRanks {size} nNodes 1 localRanks {size} localRank {rank}")
        + said(rank, f"{channels} coll channels, 0 collnet channels, 0 nvls channels, 32 p2p channels")
    )


def with_log(folder: Path, *lines: str) -> Path:
    """Two ranks with an all-reduce of 1 MiB and one of 8 MiB, and a log beside their traces."""
    events = [collective(100, 50, MB, 0), collective(300, 90, 8 * MB, 1)]
    run_of(folder, events, events)
    (folder / "nccl").mkdir()
    (folder / "nccl" / "nccl.node1.100.log").write_text("".join(lines))
    return folder


def test_choices_join_the_collectives_of_the_same_operation_and_size(tmp_path: Path) -> None:
    folder = with_log(
        tmp_path,
        init(0, 2, 24, "17000"),
        said(0, f"AllReduce: {MB} Bytes -> Algo TREE proto LL channel{{Lo..Hi}}={{0..3}}"),
        said(0, f"AllReduce: {8 * MB} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..23}}"),
        said(0, f"AllGather: {MB} Bytes -> Algo RING proto LL"),
        said(0, "NCCL_P2P_LEVEL set by environment to PHB"),
    )
    report = gpuscope.analyze(folder).report
    rows = [(row["bytes"], row["algorithm"], row["protocol"], row["channels"]) for row in report["bandwidth"]]
    assert rows == [(MB, "tree", "ll", 4), (8 * MB, "ring", "simple", 24)]
    # A line over sizes of two algorithms would be neither's.
    assert [(fit["algorithm"], fit["sizes"]) for fit in report["fits"]] == [("tree", 1), ("ring", 1)]
    assert report["nccl"]["environment"] == [{"name": "NCCL_P2P_LEVEL", "value": "PHB"}]
    assert report["trace"]["ranks_present"] == [0, 1]


def test_two_choices_for_one_size_join_by_the_communicator_or_not_at_all(tmp_path: Path) -> None:
    """A tree among 2 ranks, a ring among 4: the group of 2 took the tree. Without the sizes nobody knows."""
    called = "AllReduce: opCount 0 sendbuff 0x0 recvbuff 0x0 count 1 [nranks={}] stream 0x0"
    tree, ring = f"{MB} Bytes -> Algo 0 proto 0 time 9.5", f"{MB} Bytes -> Algo 1 proto 2 time 9.5"
    told = with_log(tmp_path / "a", *(said(0, text) for text in (called.format(2), tree, called.format(4), ring)))
    assert gpuscope.analyze(told).report["bandwidth"][0]["algorithm"] == "tree"
    untold = with_log(tmp_path / "b", said(0, "AllReduce: " + tree), said(0, "AllReduce: " + ring))
    assert gpuscope.analyze(untold).report["bandwidth"][0]["algorithm"] is None


def test_a_broken_record_beside_traces_is_a_problem_not_an_error(tmp_path: Path) -> None:
    run_of(tmp_path, [collective(100, 50, MB, 0)], [collective(100, 50, MB, 0)])
    (tmp_path / "topo.xml").write_text('<system version="1">\n<cpu numaid="0">')
    report = gpuscope.analyze(tmp_path).report
    assert [p["count"] for p in report["problems"] if p["code"] == "record_unreadable"] == [1]
    assert report["bandwidth"]
    with pytest.raises(InputError, match="cut off"):
        gpuscope.analyze(tmp_path / "topo.xml")


def topology(folder: Path, links: dict[tuple[int, int], int]) -> Path:
    """NCCL's XML of GPUs 0… on buses 10, 20 … with NVLinks between pairs."""
    gpus = sorted({gpu for pair in links for gpu in pair})
    pcie = 'class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"'
    rows = [
        f'<pci busid="0000:{gpu + 1}0:00.0" {pcie}><gpu dev="{gpu}">'
        + "".join(
            f'<nvlink target="0000:{other + 1}0:00.0" count="{count}" tclass="0x030200"/>'
            for pair, count in links.items()
            if gpu in pair
            for other in pair
            if other != gpu
        )
        + "</gpu></pci>"
        for gpu in gpus
    ]
    path = folder / "topo.xml"
    path.write_text('<system version="1"><cpu numaid="0">' + "".join(rows) + "</cpu></system>")
    return path


def test_the_pair_of_a_degraded_link_is_named_with_its_ranks(tmp_path: Path) -> None:
    """Four GPUs, 4 NVLinks between each two; between 1 and 3 only 2: GPUs 1 and 3 have 10 of 12."""
    links = {(0, 1): 4, (0, 2): 4, (0, 3): 4, (1, 2): 4, (1, 3): 2, (2, 3): 4}
    log = tmp_path / "nccl.log"
    log.write_text("".join(init(rank, 4, 24, f"{rank + 1}0000") for rank in range(4)))
    (finding,) = gpuscope.analyze(log, topology(tmp_path, links)).report["findings"]
    assert finding["code"] == "degraded_link"
    assert finding["message"] == "2 of 4 NVLinks between GPU 0000:20:00.0 and GPU 0000:40:00.0 (rank 1, 3)"
    assert finding["ranks"] == [1, 3]


def test_a_cube_mesh_is_not_degraded(tmp_path: Path) -> None:
    """One and two links by turns, three for every GPU."""
    links = {(0, 1): 2, (2, 3): 2, (0, 2): 1, (1, 3): 1}
    assert gpuscope.analyze(topology(tmp_path, links)).report["findings"] == []


def test_fewer_channels_name_the_pair_that_the_topology_shows(tmp_path: Path) -> None:
    links = {(0, 1): 4, (0, 2): 4, (1, 2): 2}
    log = tmp_path / "nccl.log"
    few = "".join(init(rank, 3, 12 if rank else 24, f"{rank + 1}0000") for rank in range(3))
    log.write_text(few)
    found = {f["code"]: f["message"] for f in gpuscope.analyze(log, topology(tmp_path, links)).report["findings"]}
    assert "12 instead of 24" in found["fewer_channels"]
    assert "between GPU 0000:20:00.0 and GPU 0000:30:00.0" in found["fewer_channels"]
