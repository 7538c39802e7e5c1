"""The computations of a pipeline stage that no range is around, from the order in which its rank issues its work.

Between messages a stage computes: what autograd launches is a backward, what else was launched behind a receive (or,
on the first stage, ahead of a send) a forward. So far as every message is issued where it is needed, as in GPipe and
1F1B of torch.distributed.pipelining, Megatron-LM and DeepSpeed, with one model chunk per stage. A step in which that
does not add up has no computations here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.problems.reading import DIGEST_SAMPLED
from gpuscope.trace.kernel_categories import ENGINE
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Mask, Times
from gpuscope.trace.trace import Trace

_RING = when_used.pattern(r"(?:^|_)(?:cp|context)(?:_|$)|CONTEXT_PARALLEL", re.IGNORECASE)
"""Groups whose sends and receives are ring attention's."""
_SENDS, _RECEIVES = "c10d::send", "c10d::recv_"
FORWARD, BACKWARD, SEND, RECEIVE = range(4)


class Ordered(NamedTuple):
    """A computation on its rank's device."""

    kind: int
    """`FORWARD` or `BACKWARD`."""
    number: int
    """Number among those of its kind in the step, from 0: its micro-batch."""
    start: int
    end: int


class _Run(NamedTuple):
    """What was issued in a row, all of a kind: rows first to behind of what was issued."""

    kind: int
    first: int
    behind: int
    skipped: int = 0
    """ns of the first row that belong to none."""


class _Issued(NamedTuple):
    """Columns: when the host issued it, what it is, its time on the device (0 of messages), and how much work it is:
    one launch, or, of a digest, its time."""

    at: Times
    kind: Times
    start: Times
    end: Times
    work: Times


def between_stages(trace: Trace) -> Mask:
    """Which rows of `collectives` are a send or a receive that may be a pipeline's."""
    one_way = trace.names.matching(lambda op: op in ("send", "recv"))
    return np.asarray(one_way[trace["collectives"]["op"]] & ~of_ring_attention(trace), np.bool_)


def of_ring_attention(trace: Trace) -> Mask:
    """Which rows of `collectives` are of a group that is called after ring attention."""
    described = trace["collectives"]["group_description"]
    ring = trace.names.matching(lambda name: _RING.search(name) is not None)
    return np.asarray((described != NO_NAME) & ring[np.maximum(described, 0)], np.bool_)


def by_messages(trace: Trace, view: LaneView, windows: Sequence[tuple[int, int]]) -> list[list[Ordered]]:
    """The computations of a rank in each of these windows of its host, in order; of a window that they do not account
    for, none."""
    issued = _issued(trace, view)
    if issued is None:
        return [[] for _ in windows]
    bounds = np.array(windows, np.int64).reshape(-1, 2)
    low, high = np.searchsorted(issued.at, bounds[:, 0]), np.searchsorted(issued.at, bounds[:, 1])
    return [
        _computations(_Issued(*(column[first:behind] for column in issued)))
        for first, behind in zip(low.tolist(), high.tolist(), strict=True)
    ]


def _issued(trace: Trace, view: LaneView) -> _Issued | None:
    """A rank's computing and messages as its host issued them; None without messages or without backward passes."""
    at, kind, thread = _messages(trace, view)
    if not len(at) or any(problem.code == DIGEST_SAMPLED.code for problem in trace.problems):
        return None
    digested = any(source.format == "digest" for source in trace.sources)
    computing = _phases(trace, view) if digested else _launched(trace, view, thread)
    if BACKWARD not in computing.kind:
        return None
    none = np.zeros_like(at)
    pairs = zip(_Issued(at, kind, none, none, none), computing, strict=True)
    found = _Issued(*(np.concatenate(pair) for pair in pairs))
    order = np.lexsort((found.start, found.at))
    return _Issued(*(column[order] for column in found))


def _launched(trace: Trace, view: LaneView, messages: Times) -> _Issued:
    """What the device computed, a row per event; `messages` are the threads that issue those."""
    host, device = trace["host_events"], trace["device_events"]
    rows = view.rows[(device.at("launch", view.rows) != NA) & (device["kind"][view.rows] == Kind.COMPUTE)]
    launch, start = device.at("launch", rows), device["start"][rows]
    launched = host["start"][launch] if view.lane.device != NA else start
    backward = _by_autograd(trace, view, launched, host["thread"][launch], messages)
    return _Issued(launched, np.where(backward, BACKWARD, FORWARD), start, device["end"][rows], np.ones_like(start))


def _phases(trace: Trace, view: LaneView) -> _Issued:
    """What the training thread of a digest computed, a row per phase and piece between messages."""
    host = trace["host_events"]
    rows = np.flatnonzero((host["rank"] == view.lane.rank) & (host["category"] == Category.OP))
    start, end, backward = host["start"][rows], host["end"][rows], trace.names.find("backward")
    return _Issued(start, np.where(host["name"][rows] == backward, BACKWARD, FORWARD), start, end, end - start)


def _messages(trace: Trace, view: LaneView) -> tuple[Times, Times, Times]:
    """When the host issued each message, which it is, and on which thread. Several that one kernel carries out are
    known by their operators alone."""
    host, table, device, names = trace["host_events"], trace["collectives"], trace["device_events"], trace.names
    called = np.zeros(0, np.int64)
    operators = [code for code in (names.find(_SENDS), names.find(_RECEIVES)) if code != NO_NAME]
    if operators:
        mine = (host["rank"] == view.lane.rank) & (host["category"] == Category.OP)
        called = np.flatnonzero(mine & np.isin(host["name"], operators))
    own = np.flatnonzero((table["rank"] == view.lane.rank) & between_stages(trace))
    if len(called) and len(called) >= len(own):
        kind = np.where(host["name"][called] == names.find(_SENDS), SEND, RECEIVE)
        return host["start"][called], kind, host["thread"][called]
    event, caller = table["event"][own], table["host_event"][own]
    if len(device):
        caller = np.where(event != NA, device.at("launch", np.maximum(event, 0)), caller)
    own, caller = own[caller != NA], caller[caller != NA]
    kind = np.where(table["op"][own] == names.find("send"), SEND, RECEIVE)
    return host["start"][caller], kind, host["thread"][caller]


def _by_autograd(trace: Trace, view: LaneView, at: Times, thread: Times, messages: Times) -> Mask:
    """Whether each launch was autograd's: within one of its nodes, or, where none are recorded, on a thread of a GPU's
    process that issues no messages."""
    host, device = trace["host_events"], view.lane.device
    engine = trace.names.matching(lambda name: name.startswith(ENGINE))
    nodes = engine[host["name"]] & (host["rank"] == view.lane.rank)
    if not nodes.any():
        return ~np.isin(thread, messages) & (device != NA)
    return np.asarray(innermost(host, nodes, thread, at) != NA, np.bool_)


def _runs(kind: Times) -> list[_Run]:
    first = np.flatnonzero(np.diff(kind, prepend=-1))
    columns = (kind[first], first, np.append(first[1:], len(kind)))
    return [_Run(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def _computations(issued: _Issued) -> list[Ordered]:
    """In order; none where there are not as many backwards as forwards."""
    runs = _runs(issued.kind)
    forwards = _forwards(runs)
    done = np.append(0, np.cumsum(issued.work))
    least = min((done[run.behind] - done[run.first] for run, own in zip(runs, forwards, strict=True) if own), default=0)
    found: list[_Run] = []
    apart = True  # whether a message or a forward lies between this and the backward before
    for run, forward in zip(runs, forwards, strict=True):
        if forward:  # all micro-batches do the same: what one has more of comes before it
            first = int(np.searchsorted(done, done[run.behind] - least, "right")) - 1
            found.append(run._replace(first=first, skipped=int(done[run.behind] - least - done[first])))
        elif run.kind == BACKWARD and not apart:  # interrupted by what is no part of either
            found[-1] = found[-1]._replace(behind=run.behind)
        elif run.kind == BACKWARD:
            found.append(run)
        apart = forward or run.kind in (SEND, RECEIVE) or (apart and run.kind != BACKWARD)
    if 2 * sum(run.kind == FORWARD for run in found) != len(found):
        return []
    numbers: Counter[int] = Counter()
    ordered = []
    for run in found:
        own = slice(run.first, run.behind)
        start = int(issued.start[own].min()) + run.skipped
        ordered.append(Ordered(run.kind, numbers[run.kind], start, int(issued.end[own].max())))
        numbers[run.kind] += 1
    return ordered


def _forwards(runs: Sequence[_Run]) -> list[bool]:
    """Which runs are a micro-batch's forward."""
    received = _behind_a_receive(runs)
    sent = [run.kind == FORWARD and _sends_next(runs, place) for place, run in enumerate(runs)]
    if next((run.kind for run in runs if run.kind in (SEND, RECEIVE)), None) == SEND:
        return sent  # the first stage: nothing comes in before its first forward
    both = [first and then for first, then in zip(received, sent, strict=True)]
    return both if any(both) else received  # the last stage sends none on


def _behind_a_receive(runs: Sequence[_Run]) -> list[bool]:
    """Of each run, whether it is a forward whose input was received since the computation before it."""
    found, waiting = [], False
    for run in runs:
        found.append(run.kind == FORWARD and waiting)
        waiting = run.kind == RECEIVE or (waiting and run.kind == SEND)
    return found


def _sends_next(runs: Sequence[_Run], place: int) -> bool:
    """Whether a send is among the messages directly behind a run."""
    for run in runs[place + 1 :]:
        if run.kind in (FORWARD, BACKWARD):
            return False
        if run.kind == SEND:
            return True
    return False
