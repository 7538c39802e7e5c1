"""CPU share taken by other processes, without which a time measured on a shared machine means little.

From /proc/stat and the ranks' own CPU time, so that the job's own load does not count. 0 on systems
other than Linux, where it is unknown.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Places of idle and iowait among the CPU's columns (proc_stat(5))."""


def busy_s() -> float:
    """CPU seconds that the whole machine has spent, stolen time included."""
    if not _STAT.exists():
        return 0.0
    columns = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks for place, ticks in enumerate(columns) if place not in _IDLE) / os.sysconf("SC_CLK_TCK")


class Others:
    """The share of the machine's CPU time that other jobs took since this was made; call on every rank."""

    def __init__(self) -> None:
        self.busy, self.own, self.at = busy_s(), time.process_time(), time.monotonic()

    def share(self) -> float:
        """The same on all ranks."""
        own = torch.tensor([time.process_time() - self.own], dtype=torch.float64)
        wall = time.monotonic() - self.at
        dist.all_reduce(own)
        found = torch.tensor([(busy_s() - self.busy - float(own)) / (wall * (os.cpu_count() or 1))])
        dist.broadcast(found, 0)
        return max(0.0, float(found)) if _STAT.exists() else 0.0


def wait_for_quiet(share: float, until: float, look_s: float = 0.2) -> None:
    """Return once others take at most `share` for `look_s`, or at `until` (monotonic); call on every rank."""
    while True:
        others = Others()
        time.sleep(look_s)
        go = torch.tensor([int(others.share() <= share or time.monotonic() > until)])
        dist.broadcast(go, 0)
        if go:
            return
