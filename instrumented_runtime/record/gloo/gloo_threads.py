"""gloo's worker threads, which must be idle before a group is destroyed, a profiler stops, or Python exits.

A gloo thread releases a collective shortly after its waiter resumes, and needs the GIL for that: to free tensors
that Python created, to run a future's callback. Meanwhile (torch 2.13, Python 3.11)

- the destructor of the group, which holds the GIL, joins the thread: deadlock;
- Python exits: taking the GIL then unwinds the thread through a destructor, and the process aborts with
  «terminate called without an active exception» (pytorch issue 38228). Groups that a DeviceMesh or a DDP module
  still refers to outlive `destroy_process_group`, so that alone is not enough;
- a profiler stops: gloo's thread writes the end of its annotation after it has woken the waiter and run the
  callbacks of the future. The profiler has freed that memory by then, and the process dies later of a corrupted
  heap («malloc(): unsorted double linked list corrupted»). Happens without gpuscope as well.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

THREAD = "pt_gloo_runloop"
"""ProcessGroupGloo's thread name, truncated to 15 characters by the kernel."""
LONGEST_S = 5.0
"""A thread still busy after so long is in a running collective: don't wait for it."""
PATIENCE_S = 1.0
"""How long a profiler's end waits for a collective that the script left running: it may need the next step."""
BLIND_S = 0.05
"""Used where the kernel does not list threads: many times what a thread needs on a machine that is not overloaded."""


def settle(unfinished: Callable[[], bool]) -> None:
    """`rest`, and up to `PATIENCE_S` for collectives that are `unfinished` because a peer is late."""
    end = time.monotonic() + PATIENCE_S
    while unfinished() and time.monotonic() < end:
        time.sleep(0.001)
    rest()


def rest() -> None:
    """Return when gloo's threads are idle or wait for another process; call with the GIL released.

    A thread is idle if it sleeps and has not woken up for four of Python's switch intervals: one that
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
        before = now  # none at all must be seen twice, too: a thread that has just begun has no name yet
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
