"""When a future completed, noted on gloo's thread without a Python frame.

For each callback torch makes a Python thread state on that thread and ends it again. A frame in it maps and unmaps
16 kB of stack, under the GIL and the process's memory lock: several times the cost of all else. So the callback
is libc's own clock, called with where to put the time.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any

_Stamp = ctypes.c_int64 * 2


class Note:
    """`write`, called with a future, puts the time into `stamp`: seconds and nanoseconds since the epoch, 0 before; a
    64-bit `struct timespec`. With 0 for the seconds it serves again."""

    __slots__ = ("stamp", "write")

    def __init__(self) -> None:
        self.stamp: Any = _Stamp()
        self.write: Callable[[Any], object] = partial(_clock, time.CLOCK_REALTIME, self.stamp)


def _libc_clock() -> Callable[[int, Any, Any], object] | None:
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    try:
        clock = ctypes.PyDLL(None).clock_gettime  # PyDLL: the GIL stays held, it is back at once
    except (AttributeError, OSError, TypeError):
        return None
    clock.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.py_object]  # the future: a register that libc ignores
    return clock


def _python_clock(clock: int, stamp: Any, future: Any) -> None:
    del clock, future
    stamp[:] = divmod(time.time_ns(), 1_000_000_000)


_clock = _libc_clock() or _python_clock
