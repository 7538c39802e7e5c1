"""NCCL's cost model by algorithm, protocol and channels; figures of its tables, sums by hand."""

from __future__ import annotations

import pytest

from gpuscope.analyzers.nccl.predicted_cost import SPREAD, Estimate, changed, predict
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.what_if_changes import Algorithm, Refused
from gpuscope.collective_costs.bus_bandwidth import Choice, Place, available, bandwidth, latency_ns, steps
from gpuscope.collective_costs.message_cost import CostModel

HGX = Place(ranks=8, nodes=1, nvlink=True, generation="hopper")
FOUR_HOSTS = Place(ranks=32, nodes=4, nvlink=False, generation="volta")
RING = Choice("ring", "simple", 16)
FITTED = CostModel(56_000.0, 1 / 200, 0.1, "fitted to 5 message sizes")
ASSUMED = CostModel(1.0, 1.0, None, "assumed: PCIe 4.0", provenance="assumed")


def test_steps() -> None:
    """n = 8: a ring goes round twice, 7 steps each. n = 32 on 4 hosts: 62 steps, 2·3 of them between hosts;
    a tree 7 down and 7 up each host's chain, log2(4) = 2 levels each way."""
    assert steps("all_reduce", "ring", HGX).total == 14
    assert steps("all_gather", "ring", HGX).total == steps("reduce_scatter", "ring", HGX).total == 7
    assert (steps("all_reduce", "ring", FOUR_HOSTS).inside, steps("all_reduce", "ring", FOUR_HOSTS).between) == (56, 6)
    assert (steps("all_reduce", "tree", FOUR_HOSTS).inside, steps("all_reduce", "tree", FOUR_HOSTS).between) == (14, 4)


@pytest.mark.parametrize(
    ("choice", "place", "us"),
    [
        (Choice("ring", "ll"), HGX, 6.6 + 14 * 0.6),
        (Choice("ring", "simple"), HGX, 8.4 + 14 * 3.4),
        (Choice("tree", "ll"), FOUR_HOSTS, 6.8 + 14 * 1.0 + 4 * 5.0),
        (Choice("ring", "simple"), FOUR_HOSTS, (8.4 + 56 * 5.7 + 6 * 14.0) * 1.9),  # with the plateau of large rings
        (Choice("nvls", "simple"), HGX, 25.0),
    ],
)
def test_fixed_cost(choice: Choice, place: Place, us: float) -> None:
    assert latency_ns("all_reduce", 1 << 20, choice, place) == pytest.approx(us * 1000)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_planner_has_the_fixed_cost_of_a_ring(op: str) -> None:
    """In a host NCCL's for protocol LL; over two of eight: 30 steps of an all-reduce, 2 of them over the network."""
    assert cluster_of("8xH100").latency_ns(op, 8, 1) == pytest.approx(latency_ns(op, 1, Choice("ring", "ll"), HGX))
    rounds = 2 if op == "all_reduce" else 1
    assert cluster_of("2x8xH100").latency_ns(op, 16, 1) == 6_600 + rounds * (14 * 600 + 2_700)


def test_bandwidth_of_a_ring_is_the_links() -> None:
    """Bus bandwidth 200: an all-reduce over 8 moves its array at 200·8/14, an all-gather at 200·8/7; LL at half."""
    assert bandwidth("all_reduce", 1 << 30, RING, HGX, 200.0) == pytest.approx(200 * 8 / 14)
    assert bandwidth("all_gather", 1 << 30, RING, HGX, 200.0) == pytest.approx(200 * 8 / 7)
    assert bandwidth("all_reduce", 1 << 30, Choice("ring", "ll"), HGX, 200.0) == pytest.approx(100 * 8 / 14)


def test_nvls_sends_the_array_and_its_share_of_the_result() -> None:
    """n = 8, 16 channels: NCCL's 2 · 0.85 · 15/16 · 8/14 = 0.91 of the links is more than the 8/9 they can carry."""
    assert bandwidth("all_reduce", 1 << 30, Choice("nvls", "simple", 16), HGX, 200.0) == pytest.approx(200 * 8 / 9)


def test_unchanged_it_is_the_fit() -> None:
    """56 µs + 1 MB · 1.75 / 200 GB/s = 64.75 µs, ± 10 %."""
    found = predict("all_reduce", 1_000_000, HGX, RING, RING, FITTED)
    assert isinstance(found, Estimate)
    assert (found.ns, found.low, found.high) == (64_750, round(64_750 / 1.1), 71_225)


def test_another_protocol_scales_both_parts() -> None:
    """LL: 15.0 of 56.0 µs fixed, twice the 8.75 µs for the bytes: 32.5 µs, within √2 and the fit's 10 %."""
    found = predict("all_reduce", 1_000_000, HGX, RING, Choice("ring", "ll", 16), FITTED)
    assert isinstance(found, Estimate)
    assert found.ns == 32_500
    assert found.high == pytest.approx(32_500 * 1.1 * SPREAD, abs=1)
    assert found.low == pytest.approx(32_500 / (1.1 * SPREAD), abs=1)
    assert "NCCL 2.29's cost model" in found.basis


def test_channels_bound_what_one_setting_can_not_tell() -> None:
    """8 of 16 channels: the 8.75 µs stay or double. 32: they stay or halve."""
    fewer = predict("all_reduce", 1_000_000, HGX, RING, changed(RING, Algorithm(channels=8)), FITTED)
    more = predict("all_reduce", 1_000_000, HGX, RING, changed(RING, Algorithm(channels=32)), FITTED)
    assert isinstance(fewer, Estimate)
    assert isinstance(more, Estimate)
    assert (fewer.low, fewer.high) == (round(64_750 / 1.1), round((56_000 + 17_500) * 1.1))
    assert (more.low, more.high) == (round((56_000 + 4_375) / 1.1), 71_225)


@pytest.mark.parametrize(
    ("now", "then", "fitted", "why"),
    [
        (None, RING, FITTED, "NCCL_DEBUG"),
        (
            RING,
            Choice("ring", "ll"),
            ASSUMED,
            "three sizes",
        ),
        (RING, Choice("ring", "ll128"), FITTED, "corrupts"),
        (RING, Choice("collnet_direct", "simple"), FITTED, "reduces"),
        (Choice("ring", "simple"), Choice("ring", "simple", 8), FITTED, "how many channels"),
    ],
)
def test_refused_where_it_would_be_a_guess(now: Choice | None, then: Choice, fitted: CostModel, why: str) -> None:
    found = predict("all_reduce", 1 << 20, HGX, now, then, fitted)
    assert isinstance(found, Refused)
    assert why in found.why


def test_what_nccl_has() -> None:
    """Trees only all-reduce; NVLS only on a switch that reduces, for more than two; PAT only with one GPU per host."""
    ampere = Place(8, 1, True, "ampere")
    assert available("all_reduce", Choice("tree", "ll"), HGX)
    assert not available("all_gather", Choice("tree", "ll"), HGX)
    assert available("all_gather", Choice("nvls", "simple"), HGX)
    assert not available("all_reduce", Choice("nvls", "simple"), ampere)
    assert not available("all_reduce", Choice("nvls", "simple"), Place(2, 1, True, "hopper"))
    assert available("all_gather", Choice("pat", "simple"), Place(8, 8, False, "hopper"))
    assert not available("all_to_all", RING, HGX)
