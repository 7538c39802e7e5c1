"""algbw, busbw and the factors of nccl-tests, and the table of links."""

import math

import pytest

from gpuscope.collective_costs.bus_bandwidth import algbw, busbw, busbw_factor
from gpuscope.hardware.link_rates import gpu_nvlink, gpu_pcie, links, network, pcie


def test_algbw_is_bytes_per_nanosecond() -> None:
    assert algbw(3_000_000_000, 1_000_000_000) == 3.0  # 3 GB in 1 s
    assert math.isnan(algbw(1, 0))


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.75),  # 2·7/8
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
        ("barrier", None),
    ],
)
def test_factor_over_eight_ranks(op: str, factor: float | None) -> None:
    assert busbw_factor(op, 8) == factor


def test_busbw_of_eight_gib_over_eight_ranks() -> None:
    # An all-reduce of 8 GiB in 20 ms: 429.5 GB/s algbw, 751.6 GB/s busbw.
    assert busbw("all_reduce", 2**33, 20_000_000, 8) == pytest.approx(751.62, abs=0.01)
    assert math.isnan(busbw("barrier", 8, 1, 8))


def test_one_rank_moves_nothing() -> None:
    assert busbw_factor("all_reduce", 1) == 0
    assert busbw_factor("all_reduce", 0) is None


def test_links_are_per_direction() -> None:
    table = links()
    assert table["nvlink4"].peak == 450.0  # half of the 900 GB/s that the data sheet counts both ways
    assert table["nvlink4"].of(6).peak == 150.0
    assert table["pcie4"].peak == pytest.approx(31.508, abs=0.001)
    assert table["ib_ndr"].peak == 50.0
    assert all(0 < link.usable < link.peak for link in table.values())


def test_pcie_of_eight_lanes() -> None:
    link = pcie(5, 8)
    assert link is not None
    assert link.usable == 24.0
    assert pcie(2) is None


def test_gpu_names_are_matched_by_whole_words() -> None:
    for name, key in [
        ("NVIDIA H100 80GB HBM3", "nvlink4"),
        ("NVIDIA H20", "nvlink4"),
        ("NVIDIA A100-SXM4-80GB", "nvlink3"),
        ("NVIDIA RTX A6000", "nvlink3_ga102"),
        ("Tesla V100-SXM2-16GB", "nvlink2"),
        ("NVIDIA B200", "nvlink5"),
    ]:
        link = gpu_nvlink(name)
        assert link is not None
        assert (link.key, link.units) == (key, 1)
    assert gpu_nvlink("NVIDIA RTX 6000 Ada Generation") is None
    assert gpu_nvlink("Some other accelerator") is None
    ada = gpu_pcie("NVIDIA RTX 6000 Ada Generation")
    assert ada is not None
    assert ada.key == "pcie4"


def test_network_by_rate() -> None:
    assert network("infiniband", 400).peak == links()["ib_ndr"].peak
    assert network("ethernet", 10).usable == pytest.approx(links()["ethernet_10"].usable, abs=0.001)
