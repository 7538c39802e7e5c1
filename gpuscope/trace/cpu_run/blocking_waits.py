"""Pauses of the training threads of a CPU run that are waits for a collective.

A blocking wait (`Work.wait`) leaves no event. It is known by two things: no training thread is inside an operator
that computes, and the pause ends as a collective does.
"""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Mask, Table, Times, blocks, looked_up
from gpuscope.trace.intervals import EMPTY, Spans, join, union
from gpuscope.trace.launch_links import innermost, longer_first
from gpuscope.trace.schema import NA, Category

BLOCKED_NS = 50_000
"""A pause must be at least so long before a collective's end to be a wait for it: Python between two operators
takes 5–50 µs."""
WAKE_NS = 300_000
"""A thread that was waiting goes on within this time of the collective's end (tens of µs on an idle machine), or on
a busy one within as long as it had waited."""
EARLY_NS = 1_000_000
"""By which the waiting thread may go on before gloo's thread has recorded the end: both do so as the work is done, and
on a busy machine gloo's thread may have to wait for a core first."""


_COMMUNICATING = ("c10d::", "_c10d_functional", "c10d_functional::")
_WAITS = ("c10d_functional::wait_tensor", "c10d::barrier", "c10d::monitored_barrier_")


def is_waiting_op(name: str) -> bool:
    """Operators in which a thread is blocked on a collective; the others only issue one and go on."""
    return name.endswith(_WAITS)


def is_message_op(name: str) -> bool:
    """Operators that issue a message: gloo writes what the socket takes before it returns."""
    return name.startswith(("c10d::send", "c10d::recv"))


def pauses(host: Table, names: NamePool, own: Times, threads: Times) -> Spans:
    """Where none of the `threads` computes for `BLOCKED_NS` or longer, between two of their events.

    `own` are the rows of those threads' host events, collectives left out. An operator computes where it has no others
    inside, or none that communicates and is PyTorch's own (`aten::mm` looks at its inputs before it multiplies); in all
    else (Python, a node of autograd, an operator that waits or issues a collective) a pause can be a wait.
    """
    start, end = _long_gaps(host, own)
    if not len(start):
        return EMPTY
    computing = _computing(host, names, own)
    every = np.zeros(len(host), np.bool_)
    every[own] = True
    free: Mask = np.ones(len(start), np.bool_)
    for thread in threads.tolist():
        rows = innermost(host, every, np.full(len(start), thread), (start + end) // 2)
        free &= ~((rows != NA) & computing[np.maximum(rows, 0)])
    return Spans(start[free], end[free])


def _long_gaps(host: Table, own: Times) -> tuple[Times, Times]:
    """Where none of these events begins or ends for `BLOCKED_NS` or longer."""
    found: list[Spans] = []
    for block in blocks(0, len(own)):
        bounds = np.concatenate((host["start"][own[block]], host["end"][own[block]]))
        bounds.sort()
        found.append(union(bounds, bounds + (BLOCKED_NS - 1)))
    near = join(*found)
    return near.end[:-1] - (BLOCKED_NS - 1), near.start[1:]


def _computing(host: Table, names: NamePool, own: Times) -> Mask:
    """Per host event, whether it is one of `own` that computes between the events inside it, too."""
    found = np.zeros(len(host), np.bool_)
    idle = names.matching(lambda name: is_waiting_op(name) or name.startswith("c10d::"))
    communicates = names.matching(lambda name: is_waiting_op(name) or name.startswith(_COMMUNICATING))
    own_work = names.matching(lambda name: name.startswith("aten::"))
    threads = host["thread"][own]
    for thread in distinct_values(threads).tolist():
        rows = own[threads == thread]
        rows = longer_first(host, rows)
        inner = host["start"][rows[looked_up(communicates, host["name"][rows])]]
        begun = np.zeros(1, np.int64)
        for block in blocks(0, len(rows)):
            name, end = host["name"][rows[block]], host["end"][rows[block]]
            after = host["start"][rows[block.start + 1 : block.stop + 1]]
            nested = np.zeros(len(end), np.bool_)
            nested[: len(after)] = after < end[: len(after)]
            begun = begun[-1] + np.cumsum(communicates[name])
            holds = np.searchsorted(inner, end) > begun  # one that communicates begins inside it
            computes = ~idle[name] & np.where(own_work[name], ~holds, ~nested)
            found[rows[block]] = computes & (host["category"][rows[block]] == Category.OP)
    return found


def ended_by(found: Spans, ends: Times, begins: Times | None = None, early: int = EARLY_NS) -> Spans:
    """Of pauses, those that end with one of the collectives' `ends` (ns), at most `early` before: for each the longest
    that can be. Where `begins` is given nobody waits for a collective before it."""
    before, after = found.start, found.end
    begins = np.full(len(ends), before.min(initial=0)) if begins is None else begins
    length = after - before
    picked = np.zeros(len(before), np.bool_)
    low = np.searchsorted(after, ends - early, "left")
    high = np.searchsorted(before, ends - BLOCKED_NS, "right")
    for begin, end, first, last in zip(begins.tolist(), ends.tolist(), low.tolist(), high.tolist(), strict=True):
        places = np.arange(first, last)
        blocked = np.minimum(after[places], end) - np.maximum(before[places], begin)
        places = places[(blocked >= BLOCKED_NS) & (after[places] - end <= np.maximum(WAKE_NS, blocked))]
        if len(places):
            picked[places[np.argmax(length[places])]] = True
    return Spans(before[picked], after[picked])
