"""Numbers in words."""

from __future__ import annotations

import pytest

from gpuscope.words import units


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, "0 ns"),
        (812, "812 ns"),
        (25_400, "25.40 µs"),
        (999_960, "1.000 ms"),  # 999.96 µs would round to 1000 µs
        (999_940, "999.9 µs"),
        (31_000_000, "31.00 ms"),
        (1_234_000_000, "1.234 s"),
        (98_765_400_000_000, "98765 s"),
        (-1_500, "-1.500 µs"),
        (None, "-"),
    ],
)
def test_duration(ns: int | None, words: str) -> None:
    assert units.duration(ns) == words


@pytest.mark.parametrize(
    ("frac", "words"),
    [
        (0.0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.314, "31.4 %"),
        (0.9996, ">99.9 %"),
        (1.0, "100 %"),
        (float("nan"), "-"),
        (None, "-"),
    ],
)
def test_share(frac: float | None, words: str) -> None:
    assert units.share(frac) == words


@pytest.mark.parametrize(("frac", "words"), [(0.314, "31 %"), (0.001, "<1 %"), (0.999, ">99 %"), (1.0, "100 %")])
def test_whole_share(frac: float, words: str) -> None:
    assert units.whole_share(frac) == words


def test_sizes_and_rates() -> None:
    assert units.size(512) == "512 B"
    assert units.size(4_194_304) == "4.194 MB"
    assert units.bandwidth(186.24) == "186.2 GB/s"
    assert units.bandwidth(0.0001) == "100.0 kB/s"
    assert units.bandwidth(0.000299816) == "299.8 kB/s"
    assert units.bandwidth(float("nan")) == "-"
    assert units.flop_rate(3.12e14) == "312.0 TFLOP/s"


def test_places() -> None:
    assert units.offset(1_234_567_890) == "+1.234567 s"
    assert units.offset(47_299_999) == "+47.299 ms"
    assert units.offset(-2_000) == "-2 µs"
    assert units.exact_ns(1_694_128_201_545_123_456) == "1,694,128,201,545,123,456 ns"
    assert units.axis([0, 200_000_000, 1_000_000_000]) == ["0", "0.2 s", "1 s"]


def test_ranks() -> None:
    assert units.ranks([7, 0, 2, 1, 3, 3]) == "0-3,7"
    assert units.ranks([]) == "-"


def test_clean_spells_out_what_would_not_show() -> None:
    assert units.clean("a\x1b[2J\n\x9b\u202e\udc80\u200b b漢") == "a\\x1b[2J\\n\\x9b\\u202e\\udc80\\u200b b漢"


def test_writable_stands_in_for_what_the_encoding_lacks() -> None:
    assert units.writable("25 µs → 漢", "ascii") == "25 us -> \\u6f22"
    assert units.writable("25 µs", "latin-1") == "25 µs"
    assert units.writable("25 µs", "no-such-encoding") == "25 us"


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [("abcdefghij", 10, "abcdefghij"), ("abcdefghij", 8, "abcde…ij"), ("漢字漢字漢字", 8, "漢字…字"), ("abc", 1, "a")],
)
def test_crop_keeps_both_ends(text: str, width: int, short: str) -> None:
    assert units.crop(text, width) == short
