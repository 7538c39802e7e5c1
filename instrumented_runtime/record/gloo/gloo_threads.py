"""Gloo's worker threads, which must be at rest before a group is destroyed or Python ends.

A gloo thread lets go of a collective a moment after whoever waited for it went on, and needs the GIL for that:
to free tensors that Python made, to run a future's callback. Meanwhile (torch 2.13, Python 3.11)

- the destructor of the group, which holds the GIL, joins the thread: both wait for ever;
- Python ends: taking the GIL then unwinds the thread through a destructor, and the process aborts with
  «terminate called without an active exception» (pytorch issue 38228). Groups that a DeviceMesh or a DDP module
  still refers to outlive `destroy_process_group`, so that it alone is no protection.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

THREAD = "pt_gloo_runloop"
"""ProcessGroupGloo's name for its workers, cut as the kernel cuts it to 15 characters."""
LONGEST_S = 5.0
"""A thread not at rest after so long is in a collective that goes on: not ours to wait for."""
BLIND_S = 0.05
"""Where the kernel does not show threads: many times what a thread needs on a machine that is not overloaded."""


def rest() -> None:
    """Return when gloo's threads have nothing left to do, or wait for another process; needs the GIL released.

    A thread is at rest if it sleeps and has not woken up for four of Python's switch intervals: one that
    waits for the GIL wakes once in each, and one that was preempted does not sleep.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        time.sleep(BLIND_S)
        return
    end = time.monotonic() + LONGEST_S
    before = None
    while (now := _sleeping(tasks)) is None or now != before:
        if time.monotonic() > end:
            return
        before = now
        if now == {}:
            return
        time.sleep(min(4 * sys.getswitchinterval(), BLIND_S))


def _sleeping(tasks: Path) -> dict[str, str] | None:
    """How often each gloo thread has been switched away from, by thread; None if one of them is not asleep."""
    found: dict[str, str] = {}
    for task in tasks.iterdir():
        try:
            if (task / "comm").read_text().strip() != THREAD[:15]:
                continue
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        except OSError:  # it ended meanwhile
            continue
        if status["State"].split()[0] != "S":
            return None
        found[task.name] = status["voluntary_ctxt_switches"] + status["nonvoluntary_ctxt_switches"]
    return found
