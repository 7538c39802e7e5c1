"""How many recordings, or how much time, tuning may take. Never more."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuscope import when_used
from gpuscope.errors import UsageError

DEFAULT = "24"
_FORM = when_used.pattern(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Budget:
    """Runs or seconds, and what of them is left."""

    def __init__(self, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `UsageError` for what is neither a number of runs nor a time."""
        found = _FORM.fullmatch(text.strip())
        if found is None or not float(found[1]) or (not found[2] and "." in found[1]):
            raise UsageError(f"--budget {text}: is no budget", hint="runs, such as 8, or a time: 20m, 90s, 2h")
        self.text = text.strip()
        self._clock, self._began = clock, clock()
        self._most = None if found[2] else int(found[1])
        self._seconds = float(found[1]) * _SECONDS[found[2]] if found[2] else None
        self.runs = 0

    def start(self, expected_s: float = 0.0) -> bool:
        """Whether a run that takes so long may start; if so it is counted."""
        if (self._most is not None and self.runs >= self._most) or self.left_s <= expected_s:
            return False
        self.runs += 1
        return True

    def runs_left(self, each_s: float) -> int:
        """How many more runs may start if each takes so long."""
        counted = float("inf") if self._most is None else self._most - self.runs
        return max(int(min(counted, self.left_s / each_s)), 0)

    @property
    def left_s(self) -> float:
        """Seconds left; without end where runs are counted."""
        return float("inf") if self._seconds is None else self._seconds - self.spent_s

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began
