"""Answers that were given before: what one viewer has asked for, the next one gets at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

KEPT = 64 << 20
"""Bytes kept in all; what was asked for longest ago goes first."""


class KeptAnswers:
    """Bytes by key; several threads may ask."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """What was kept under `key`, else what `make` returns, kept from now on."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = make()  # outside the lock: others are answered meanwhile
        with self._lock:
            if key not in self._kept and len(made) <= self._limit:
                self._kept[key] = made
                self._size += len(made)
            while self._size > self._limit:
                self._size -= len(self._kept.popitem(last=False)[1])
        return made
