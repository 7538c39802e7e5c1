"""Bandwidth by operation, group and size against the link's peak, sums by hand; the fixed part of a transfer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.collectives import collective, run_of

import gpuscope
from gpuscope.collective_costs.message_cost import CostModel, fit_or_why, fixed_part
from gpuscope.schema.document import Report

MB = 1_000_000


def analyze(*paths: Path) -> Report:
    return gpuscope.analyze(*paths).report


def two_ranks(folder: Path, *timed: tuple[int, int], gpu: str = "NVIDIA H100 80GB HBM3") -> Path:
    """All-reduces of (bytes, µs); rank 1 comes 5 µs later and both end together."""
    early = [collective(100 + 1000 * i, dur + 5, size, i) for i, (size, dur) in enumerate(timed)]
    late = [collective(105 + 1000 * i, dur, size, i) for i, (size, dur) in enumerate(timed)]
    return run_of(folder, early, late, gpu=gpu)


def test_efficiency_of_a_trace(tmp_path: Path) -> None:
    """90 MB twice, in 400 and 600 µs without the waiting: 180 MB / 1 ms = 180 GB/s of the H100's 18 × 25 = 450."""
    found = analyze(two_ranks(tmp_path, (90 * MB, 400), (90 * MB, 600)))
    (row,) = found["bandwidth"]
    assert (row["tool"], row["op"], row["group_size"], row["count"]) == ("trace", "all_reduce", 2, 2)
    assert (row["bytes"], row["dur_ns"], row["lower_bound"]) == (90 * MB, 500_000, False)
    assert row["busbw_gbps"] == pytest.approx(180.0)  # 2(n−1)/n is 1
    assert (row["peak_gbps"], row["link"]) == (450.0, "18 × NVLink 4")
    assert row["efficiency_frac"] == pytest.approx(0.4)


def test_one_rank_of_two_is_a_lower_bound(tmp_path: Path) -> None:
    run_of(tmp_path, [collective(100, 500, 100 * MB, 0)], [])
    (row,) = analyze(tmp_path / "rank0.json")["bandwidth"]
    assert row["lower_bound"] is True
    assert row["efficiency_frac"] is None
    assert "hosts" in row["peak_basis"]


@pytest.mark.parametrize(
    ("gpu", "peak", "basis"),
    [
        ("NVIDIA A100-SXM4-80GB", 300.0, "all links"),
        ("AMD Instinct MI300X", 448.0, "all links"),
        ("NVIDIA GeForce RTX 4090", 31.50768, "all links"),
        ("NVIDIA A100 80GB PCIe", None, "whether NVLink connects these GPUs"),
        ("Some other accelerator", None, "whether NVLink connects these GPUs"),
    ],
)
def test_peak_by_model_only_where_the_model_tells(tmp_path: Path, gpu: str, peak: float | None, basis: str) -> None:
    (row,) = analyze(two_ranks(tmp_path, (MB, 100), gpu=gpu))["bandwidth"]
    assert row["peak_gbps"] == (None if peak is None else pytest.approx(peak))
    assert basis in row["peak_basis"]


def matrix(folder: Path, *cells: str) -> Path:
    """`nvidia-smi topo -m` of as many GPUs as the rows have cells."""
    header = "\t" + "\t".join(f"GPU{i}" for i in range(len(cells)))
    lines = [header, *(f"GPU{i}\t" + "\t".join(row.split()) for i, row in enumerate(cells))]
    path = folder / "topo.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("rows", "peak", "link"),
    [
        (("X NV4", "NV4 X"), 100.0, "4 × NVLink 3"),  # a bridge: 4 · 25
        # A board of four: 4 links to each of 3 others, of which a group of two uses one set.
        (("X NV4 NV4 NV4", "NV4 X NV4 NV4", "NV4 NV4 X NV4", "NV4 NV4 NV4 X"), 100.0, "4 × NVLink 3"),
        # Behind switches every pair shows all 12.
        (("X NV12 NV12", "NV12 X NV12", "NV12 NV12 X"), 300.0, "12 × NVLink 3"),
        (("X PHB", "PHB X"), 31.50768, "PCIe 4.0 ×16"),
    ],
)
def test_peak_by_topology(tmp_path: Path, rows: tuple[str, ...], peak: float, link: str) -> None:
    folder = two_ranks(tmp_path / "run", (MB, 100), gpu="NVIDIA A100 80GB PCIe")
    (row,) = analyze(folder, matrix(tmp_path, *rows))["bandwidth"]
    assert (row["peak_gbps"], row["link"]) == (pytest.approx(peak), link)
    assert row["peak_basis"].startswith("topology in topo.txt")


def test_fit_with_its_errors(tmp_path: Path) -> None:
    """20 µs + S / 100 GB/s exactly: no error; too few sizes: no fit, and why."""
    sizes = [MB, 10 * MB, 40 * MB]
    (fit,) = analyze(two_ranks(tmp_path / "a", *((size, 20 + size // 100_000) for size in sizes)))["fits"]
    assert (fit["sizes"], fit["why"]) == (3, "")
    assert fit["alpha_ns"] == pytest.approx(20_000)
    assert fit["busbw_gbps"] == pytest.approx(100)
    assert (fit["alpha_error_ns"], fit["busbw_error_gbps"]) == (pytest.approx(0, abs=1), pytest.approx(0, abs=0.01))
    (none,) = analyze(two_ranks(tmp_path / "b", (MB, 100), (2 * MB, 200)))["fits"]
    assert (none["alpha_ns"], none["why"]) == (None, "2 message sizes, a fit needs 3")


def test_standard_errors_are_those_of_least_squares() -> None:
    """T/T = α/T + β·S/T over T = (10, 10, 25, 40) for S = (0.1, 10, 20, 30): s² (XᵀX)⁻¹ by its own formula."""
    sizes, times = np.array([0.1, 10.0, 20.0, 30.0]), np.array([10, 14, 25, 40])
    model = fit_or_why(sizes, times)
    assert isinstance(model, CostModel)
    x, y = 1 / times, sizes / times
    determinant = (x**2).sum() * (y**2).sum() - (x * y).sum() ** 2
    s2 = (((model.alpha + model.beta * sizes) / times - 1) ** 2).sum() / 2
    assert model.alpha_error == pytest.approx(np.sqrt(s2 * (y**2).sum() / determinant))
    assert model.beta_error == pytest.approx(np.sqrt(s2 * (x**2).sum() / determinant))


def test_messages_from_rank_to_rank(tmp_path: Path) -> None:
    """Rank 0 sends 4 MB twice: the receiver waits 50 µs before the first, so the transfers are 20 and 30 µs."""
    sends = [
        collective(200, 20, 4 * MB, 0, op="send", **{"Dst Rank": 1}),
        collective(400, 30, 4 * MB, 1, op="send", **{"Dst Rank": 1}),
    ]
    receives = [
        collective(150, 70, 4 * MB, 0, op="recv", **{"Src Rank": 0}),
        collective(400, 30, 4 * MB, 1, op="recv", **{"Src Rank": 0}),
    ]
    found = analyze(run_of(tmp_path, sends, receives))
    assert found["traffic"] == [{"rank": 0, "peer": 1, "count": 2, "bytes": 8 * MB, "dur_ns": 50_000}]


def test_timezzx_reaches_72_percent_of_its_nvlinks(shared_traces: Path) -> None:
    """2 × A100 with 12 NVLinks between them: 8 GiB at 216.6 of 300 GB/s; the fit's asymptote within its error."""
    folder = shared_traces / "nccl" / "timezzx"
    found = analyze(folder / "nccl.log", folder / "topo_real.xml")
    last = found["bandwidth"][-1]
    assert (last["link"], last["peak_basis"]) == ("12 × NVLink 3", "topology in topo_real.xml")
    assert last["efficiency_frac"] == pytest.approx(0.722, abs=0.001)
    assert (last["algorithm"], last["protocol"], last["channels"]) == ("ring", "simple", 24)
    (fit,) = found["fits"]
    assert fit["alpha_ns"] == pytest.approx(43_120, rel=0.01)


MIB = 1 << 20
H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("alpha", "rate", "nbytes", "ranks"),
    [
        (20_000, 150.0, MIB, 2),
        (20_000, 150.0, MIB // 4, 2),
        (60_000, 150.0, MIB // 4, 2),
        (15_000, 200.0, 4 * MIB, 2),
        (35_000, 300.0, 8 * MIB, 8),
    ],
)
def test_a_link_that_nvlink_can_be_is_found(alpha: int, rate: float, nbytes: int, ranks: int) -> None:
    """Within a quarter of the transfer, and in range."""
    bus = nbytes * 2 * (ranks - 1) / ranks
    transfer = alpha + bus / rate
    found = fixed_part(transfer, bus, "all_reduce", ranks, H100, True)
    assert found.least <= alpha <= found.most
    assert abs(found.expected - alpha) <= transfer / 4


def test_the_parts_are_in_order_and_within_the_transfer() -> None:
    for transfer in (5_000.0, 50_000.0, 500_000.0, 50_000_000.0):
        for nbytes in (1, MIB, 1 << 30):
            for inside in (True, False, None):
                found = fixed_part(transfer, nbytes, "all_gather", 8, H100, inside)
                assert 0 <= found.least <= found.expected <= found.most <= transfer


def test_a_transfer_that_no_link_explains_leaves_it_open() -> None:
    """2 MiB in 414 us inside a host: far too slow for its links, far too long for their fixed costs."""
    found = fixed_part(414_000, 2 * MIB, "all_reduce", 2, H100, True)
    assert found.least < 20_000
    assert found.most > 400_000


def test_between_hosts_more_may_be_fixed_than_inside_one() -> None:
    inside, between = (fixed_part(150_000, 2 * MIB, "all_reduce", 2, H100, own) for own in (True, False))
    assert between.expected > inside.expected


def test_a_transfer_faster_than_any_link_is_not_divided() -> None:
    found = fixed_part(1_000, 1 << 30, "all_reduce", 2, H100, True)
    assert (found.least, found.most) == (0, 1_000)
