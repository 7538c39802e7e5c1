"""The fixed part of a transfer whose size never varies."""

from __future__ import annotations

import pytest

from gpuscope.collective_costs.fixed_part import fixed_part

MIB = 1 << 20
H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("alpha", "rate", "nbytes", "ranks"),
    [(20_000, 150.0, MIB, 2), (20_000, 150.0, MIB // 4, 2), (60_000, 150.0, MIB // 4, 2), (15_000, 200.0, 4 * MIB, 2),
     (35_000, 300.0, 8 * MIB, 8)],
)  # fmt: skip
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
