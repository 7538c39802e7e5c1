"""Decimal microseconds in text to integer nanoseconds, exactly.

Through float64 about every epoch stamp comes out wrong, by up to 253 ns. So digits are weighed as
integers: for all stamps of a block at once, and eight digits of a stamp at a time, as one 64-bit word
(the method of simdjson's `parse_eight_digits_unrolled`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from decimal import Decimal
from queue import Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import typing as npt

from gpuscope.trace.schema import NA, NS_PER_US
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


# Blocks of a trace scanned by the native core on all cores, while the next are read.

_BLOCKS_AHEAD = 1
_SCANNERS = 4
"""At most so many: one thread hands the blocks on, and is busy with fewer."""


def read_ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, read and gunzipped in a thread of their own; errors are raised where the block was due."""
    queue: Queue[tuple[bytes | None, BaseException | None]] = Queue(_BLOCKS_AHEAD)
    stopped = Event()

    def put(item: tuple[bytes | None, BaseException | None]) -> None:
        while not stopped.is_set():
            try:
                queue.put(item, timeout=0.1)
                return
            except Full:
                continue

    def read() -> None:
        try:
            for block in blocks:
                put((block, None))
                if stopped.is_set():
                    return
            put((None, None))
        except BaseException as error:  # of whatever kind: it is raised in the thread that waits
            put((None, error))

    thread = Thread(target=read, name="gpuscope-read", daemon=True)
    thread.start()
    try:
        while (item := queue.get())[0] is not None:
            yield item[0]
        if item[1] is not None:
            raise item[1]
    finally:
        stopped.set()
        thread.join()


@dataclass
class Guess:
    """A block being scanned, cut where an event most likely ends."""

    buffer: bytes
    """The block and what followed it when it was cut."""
    end: int
    following: int
    found: Future[Any] | None = None
    """What a thread makes of it; None while no other block waits."""
    later: list[bytes] = field(default_factory=list)
    """What was read since: to go back to where the cut was wrong."""

    @property
    def text(self) -> memoryview:
        """The events."""
        return memoryview(self.buffer)[: self.end]


class Scanners:
    """Threads that scan, and the blocks that they have not been asked for yet, in the order of the file."""

    def __init__(self, scan: Callable[[memoryview], Any]) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._scan = scan
        self._count = max(1, min(cores, _SCANNERS))
        self._pool: ThreadPoolExecutor | None = None
        self.waiting: deque[Guess] = deque()

    def __enter__(self) -> Scanners:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Whether each has a block to go on with while what was found is taken in: more save no time."""
        return len(self.waiting) > self._count

    def submit(self, buffer: bytes, end: int, following: int) -> None:
        """Scan `buffer[:end]`; the rest, from `following`, is for the next block."""
        self.waiting.append(Guess(buffer, end, following))
        if len(self.waiting) == 1:  # a small trace needs no threads, whose import is a hundredth of its time
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._count, "gpuscope-scan")
        for guess in self.waiting:
            guess.found = guess.found or self._pool.submit(self._scan, guess.text)

    def next(self) -> tuple[Guess, Any]:
        """The first block that waits, and what was found in it."""
        guess = self.waiting.popleft()
        return guess, self._scan(guess.text) if guess.found is None else guess.found.result()

    def read(self, block: bytes) -> None:
        """Remember what was read after the blocks that wait."""
        for guess in self.waiting:
            guess.later.append(block)


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
