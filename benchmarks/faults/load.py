"""Busy loops beside a recording: a machine that others use too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOOP = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""
"""Ends by itself within a second once its parent is gone, however that ended."""


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """Keep `count` processes computing, one core each where there are as many; gives their process ids.

    None is left when the block ends, by an exception or not. Each takes part as any other process does: at the
    priority of this one, and on the same cores.
    """
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen([sys.executable, "-S", "-c", _LOOP, str(os.getpid())]))
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
