"""NCCL's collectives as torch's Flight Recorder has timed them, read so seldom that it costs next to nothing.

The recorder's ring has to be copied whole, some milliseconds. So of a job with short steps some steps lack their
collectives; those that are there are the same on all ranks only by chance, and are compared by their numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective
from gpuscope.instrumented_runtime.record.hang.nccl_progress import collectives_in
from gpuscope.instrumented_runtime.record.hang.torch_recorder import has_nccl, recorded

SHARE = 0.001
"""Of the time, at most, that reading takes."""
LOOK_S = 1.0


class NcclRing:
    """What was completed since the last look."""

    def __init__(self) -> None:
        self._next = 0.0
        self._there = False
        self._told: dict[str, int] = {}

    def take(self) -> list[Collective] | None:
        """Those that have completed and were timed, in order; None where this process has no NCCL group."""
        now = time.monotonic()
        if now < self._next:
            return [] if self._there else None
        self._there = has_nccl()
        if not self._there:
            self._next = now + LOOK_S
            return None
        found = timed(recorded(stacks=False), self._told)
        self._next = now + max(LOOK_S, (time.monotonic() - now) / SHARE)
        return found


def timed(dump: Mapping[str, Any], told: dict[str, int]) -> list[Collective]:
    """The collectives of a dump that have a duration on the device and were not told before; `told` is the last number
    of each group."""
    _, entries = collectives_in(dump)
    raw = [entry for entry in dump.get("entries", []) if not entry["profiling_name"].startswith("gloo:")]
    found = []
    for one, entry in zip(entries, raw, strict=True):
        took = entry.get("duration_ms")
        if one.is_p2p or not took or one.seq <= told.get(one.group.name, -1):
            continue
        one.completed_ns = one.issued_ns + round(took * 1e6)
        found.append(one)
    for one in found:
        told[one.group.name] = max(one.seq, told.get(one.group.name, -1))
    return found
