"""Why a device was idle: judged instant by instant on the thread that launches what ends the gap.

Each instant goes to the first of these that holds (docs/definitions.md: «Stalls: class and cause»):

1. The next operation had already been launched. Its first 10 µs are the latency of the launch, the rest has no cause.
2. The launching thread was in an event that has a cause by its name: a data loader, garbage collection, an allocator
   call, a file or network call.
3. Otherwise the lane is replayed with its blocking calls returning at once (`own_work.py`). The idle time that this
   removes is `sync`; of what remains, the thread's own code that runs unusually long without launching is other host
   work, and the rest is `launch`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import DEVICE_EVENTS, Attributed, FileAnalyzer, Result, attribute, only_present
from gpuscope.analyzers.base.lanes import GAPS, LaneView
from gpuscope.analyzers.device_time.gaps import Gaps, evidence, find_gaps, longest_gaps, named_events, unexplained
from gpuscope.analyzers.device_time.launching_threads import blocking_calls
from gpuscope.analyzers.device_time.own_work import own_work
from gpuscope.catalogue.cause import UNATTRIBUTED
from gpuscope.catalogue.suggestion import COVERING, SHOWN_BY_NAME
from gpuscope.schema.nccl_sections import GapEntry
from gpuscope.trace.intervals import EMPTY, Spans, clip, intersect, join, subtract, union
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import Array, Table, Times, among, distinct_values, rows_of_rank
from gpuscope.trace.trace import Trace

EXPLAINING = (Category.OP, Category.RUNTIME, Category.PYTHON, Category.OS, Category.SAMPLE)
"""Host events dense enough that time without any of them is Python between calls."""

NO_CAUSE = -1
"""Of a host event that stands for no cause by its name."""
LAUNCH_LATENCY = 10_000
"""ns that the driver and device usually take to start a launched operation. Idle time up to this is launch overhead; an
operation that starts later waited for something that the trace does not show."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """Attribute the idle time of every lane."""
    result = Result(ANALYZER.name)
    gaps: list[GapEntry] = []
    for view in lanes:
        result.causes[view.key], longest = _attribute(trace, view)
        gaps += longest
    if gaps:
        result.sections[GAPS] = gaps
    return result


def _attribute(trace: Trace, view: LaneView) -> tuple[dict[str, Attributed], list[GapEntry]]:
    """The idle time of a lane by cause, and its longest gaps."""
    host, idle = trace["host_events"], view.parts.idle
    low, high = rows_of_rank(host, view.lane.rank)
    explaining = among(host["category"][low:high], EXPLAINING)
    if not explaining.any():
        causes = only_present({UNATTRIBUTED: attribute(idle, view, unexplained(view, idle))})
        return causes, longest_gaps(trace, view, {UNATTRIBUTED: idle})
    gaps, queued = find_gaps(trace, view)
    queued = queued if view.lane.device != NA else EMPTY
    latency = Spans(queued.start, np.minimum(queued.end, queued.start + LAUNCH_LATENCY))
    left = subtract(idle, queued)
    found = {"launch": latency, UNATTRIBUTED: subtract(queued, latency), **_covering(trace, view, gaps, left)}
    left = subtract(left, join(*(found[cause] for cause, _ in COVERING)))
    unknown = intersect(left, gaps.where(~gaps.explained))
    left = subtract(left, unknown)
    # What a recorded launch ends is explained to its end, also behind the last call of the host.
    last = int(host["end"][low:high].max(initial=NA, where=explaining))
    last = max(last, int(gaps.end.max(initial=NA, where=gaps.launched)))
    inside = clip(left, int(host["start"][low + int(np.argmax(explaining))]), last)
    found[UNATTRIBUTED] = join(found[UNATTRIBUTED], unknown, subtract(left, inside))
    blocking = blocking_calls(trace, view)
    own, awaiting = own_work(trace, view, gaps, blocking, inside)
    for cause, spans in own.items():
        found[cause] = join(found.get(cause, EMPTY), spans)
    causes = {
        cause: attribute(
            spans, view, evidence(trace, view, spans, gaps, blocking if cause == "sync" else None, awaiting)
        )
        for cause, spans in found.items()
    }
    return only_present(causes), longest_gaps(trace, view, found, gaps)


def _covering(trace: Trace, view: LaneView, gaps: Gaps, left: Spans) -> dict[str, Spans]:
    """Where host events with a cause of their own cover idle time on the launching thread; innermost first."""
    host = trace["host_events"]
    causes = list(dict.fromkeys(cause for cause, _ in COVERING))
    cause_of = _cause_of_event(trace, view, causes)
    events = np.flatnonzero(cause_of >= 0)
    pieces = intersect(left, _on_launching_thread(host, events, gaps))
    bounds = distinct_values(np.concatenate([host["start"][events], host["end"][events]]))
    pieces = intersect(pieces, Spans(bounds[:-1], bounds[1:]))
    middle = (pieces.start + pieces.end) // 2
    inner = innermost(host, cause_of >= 0, gaps.thread[gaps.of(pieces)], middle)
    which = cause_of[inner]
    return {
        cause: join(Spans(pieces.start[which == place], pieces.end[which == place]))
        for place, cause in enumerate(causes)
    }


def _cause_of_event(trace: Trace, view: LaneView, causes: Sequence[str]) -> Array:
    """Per host event the place of the cause that it stands for by its name, or NO_CAUSE; shape (host events,)."""
    host = trace["host_events"]
    found = np.full(len(host), NO_CAUSE, np.int8)
    for cause, (categories, predicate) in reversed(COVERING):
        picked = named_events(trace, view, categories, predicate)
        if Category.OS in categories:
            # A lock inside a runtime call is that call waiting, not the program.
            calls = host["category"] == Category.RUNTIME
            picked = picked[innermost(host, calls, host["thread"][picked], host["start"][picked]) == NA]
        found[picked] = causes.index(cause)
    return found


def _on_launching_thread(host: Table, picked: Times, gaps: Gaps) -> Spans:
    """Where the picked host events cover a gap on that gap's launching thread."""
    parts: list[Spans] = []
    for thread in distinct_values(gaps.thread).tolist():
        own = gaps.thread == thread
        events = picked[host["thread"][picked] == thread]
        if len(events):
            covering = union(host["start"][events], host["end"][events])
            parts.append(intersect(Spans(gaps.start[own], gaps.end[own]), covering))
    return join(*parts) if parts else EMPTY


ANALYZER = FileAnalyzer(
    "idle",
    run,
    (DEVICE_EVENTS,),
    (GAPS,),
    causes=(*(cause.code for cause in SHOWN_BY_NAME), "sync", "launch", UNATTRIBUTED),
    cost=4,
    large=True,
)
