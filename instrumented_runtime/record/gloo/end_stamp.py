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

Stamp = ctypes.c_int64 * 2
"""Seconds and nanoseconds since the epoch; 0 until it is written: a 64-bit `struct timespec`."""


def writer(stamp: Any) -> Callable[[Any], object]:
    """What writes the time into `stamp` when it is called with a future."""
    return partial(_clock, time.CLOCK_REALTIME, stamp)


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
