"""Decimal microseconds in text to integer nanoseconds, exactly.

Through float64 about every epoch stamp comes out wrong, by up to 253 ns. So digits are weighed as
integers: for all stamps of a block at once, and eight digits of a stamp at a time, as one 64-bit word
(the method of simdjson's `parse_eight_digits_unrolled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.trace.schema import NA, NS_PER_US

_COMMA, _POINT = ord(","), ord(".")
_WORD = 8
_MAX_DIGITS = 2 * _WORD
"""Digits before the point that are weighed; longer stamps, and those near int64's end, go the slow way."""
_MAX_HIGH = 40_000_000
"""For the upper eight of sixteen digits: 4·10^15 µs is 4·10^18 ns, still within the limit."""
LIMIT_NS = 2**62

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


def to_ns(stamps: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Nanoseconds of JSON numbers (or quoted numbers) in µs, given as bytes or `msgspec.Raw`, shape (n,).

    `NA` where one is no number or beyond ±2^62 ns. Digits past the nanosecond are rounded half to even.
    """
    if not stamps:
        return np.empty(0, np.int64)
    text = b"".join((b"0" * _MAX_DIGITS, b",", b",".join(stamps), b",000"))
    if b'"' in text:
        text = text.replace(b'"', b"")
    letters = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(letters == _COMMA)
    if len(commas) != len(stamps) + 1:  # some «number» holds a comma itself
        return np.array([_slow(bytes(stamp).strip(b'"')) for stamp in stamps], np.int64)
    first, end = commas[:-1] + 1, commas[1:]
    point = _points(letters, end)
    result, plain = _weigh(text, letters, first, point, end)
    for row in np.flatnonzero(~plain).tolist():
        result[row] = _slow(text[first[row] : end[row]])
    return result


def _points(letters: npt.NDArray[np.uint8], end: Places) -> Places:
    """Where the (first) point of each stamp stands; its end where it has none."""
    found = np.flatnonzero(letters == _POINT)
    owner = np.searchsorted(end, found)
    point = end.copy()
    point[owner[::-1]] = found[::-1]
    return point


def _weigh(
    text: bytes, letters: npt.NDArray[np.uint8], first: Places, point: Places, end: Places
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Nanoseconds of `[first, end)`, and whether each is plain: up to 16 digits, then up to three decimals."""
    whole, decimals = point - first, np.maximum(end - point - 1, 0)
    plain = (whole > 0) & (whole <= _MAX_DIGITS) & (decimals <= 3)
    # Every position of the text as the start of a (mostly unaligned) word.
    words: Words = np.ndarray(len(text) - _WORD + 1, np.dtype("<u8"), text, strides=(1,))
    low, good = _eight_digits(words[point - _WORD], np.minimum(whole, _WORD))
    plain &= good
    total = low
    if bool((whole > _WORD).any()):
        high, good = _eight_digits(words[point - _MAX_DIGITS], np.clip(whole - _WORD, 0, _WORD))
        plain &= good
        plain &= high < _MAX_HIGH
        total = total + high * 100_000_000
    for place in (1, 2, 3):
        total *= 10
        there = decimals >= place
        if bool(there.any()):
            digit = letters[np.where(there, point + place, 0)] - np.uint8(ord("0"))  # letters[0] is a zero
            plain &= digit <= 9
            total += digit
    return total, plain


def _eight_digits(words: Words, count: Places) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The number that the last `count` of each word's eight characters spell, and whether they are digits."""
    zeros = np.uint64(0x3030303030303030)
    # What stands before them becomes zeros. A shift by 64 bits is undefined, so it is done in two.
    half = (4 * (_WORD - count)).astype(np.uint64)
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) << half << half
    digits = (words ^ zeros) & mask
    good = ((digits + np.uint64(0x0606060606060606)) & np.uint64(0xF0F0F0F0F0F0F0F0)) == 0
    digits &= np.uint64(0x0F0F0F0F0F0F0F0F)  # what is no digit must not overflow either
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    value = (fours * np.uint64(10_000) + (fours >> np.uint64(32))) & np.uint64(0x00000000FFFFFFFF)
    return value.astype(np.int64), good


def _slow(text: bytes) -> int:
    try:
        value = Decimal(text.decode("ascii")) * NS_PER_US
    except (ArithmeticError, ValueError):
        return NA
    # Compared before it becomes an int too: one of 1e999999 would have a million digits.
    if not value.is_finite() or abs(value) > LIMIT_NS:
        return NA
    ns = int(value.to_integral_value())
    return ns if abs(ns) < LIMIT_NS else NA
