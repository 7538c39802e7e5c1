"""Blocks of a trace scanned by the native core on all cores, while the next are read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from queue import Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

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
