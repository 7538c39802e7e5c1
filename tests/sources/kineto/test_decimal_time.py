"""Microseconds in text become nanoseconds without passing through floats."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.sources.kineto.text.decimal_time import to_ns
from gpuscope.trace.schema import NA


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1694128201545123.456", 1694128201545123456),  # through float64 this ends in …500
        (b"1610366662254562", 1610366662254562000),  # integer epoch microseconds
        (b"4366787550969.463", 4366787550969463),  # since baseTimeNanoseconds
        (b'"1736405443863674.400"', 1736405443863674400),  # Ascend writes strings
        (b"72994.4384375", 72994438),  # more digits than there are nanoseconds
        (b"0.5", 500),
        (b"-3.25", -3250),
        (b"1e3", 1_000_000),
        (b"null", NA),
        (b'"abc"', NA),
        (b"", NA),
        (b"99999999999999999999", NA),  # beyond any clock
        (b"9303565271463602", NA),  # fits sixteen digits, but no int64 of nanoseconds
        (b"4611686018427387.903", 2**62 - 1),
        (b"4611686018427387.904", NA),
        (b"1e999999", NA),
        (b'"1,5"', NA),
    ],
)
def test_one(text: bytes, ns: int) -> None:
    assert to_ns([text]).tolist() == [ns]


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 3), st.integers(0, 999)), min_size=1, max_size=20))
def test_exact_against_decimal(parts: list[tuple[int, int, int]]) -> None:
    """Stamps of different widths in one block."""
    texts = [f"{whole}.{part % 10**places:0{places}d}" if places else str(whole) for whole, places, part in parts]
    assert to_ns([text.encode() for text in texts]).tolist() == [int(Decimal(text) * 1000) for text in texts]
