"""CPU training has no device: its training threads are the device (definitions: «Breakdown of a window»).

Operators become compute, time blocked on a collective becomes communication, also where it is a node of autograd
that blocks (FSDP's hooks, an all-to-all's backward); waiting for the data loader is left open, so that it is idle time
with the cause `input`. The rows so made refer to their host events.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuscope.trace.columns.distinct import among, distinct_values
from gpuscope.trace.columns.name_pool import NamePool, PerName
from gpuscope.trace.columns.table import Mask, Table, Times, blocks
from gpuscope.trace.cpu_run.blocking_waits import ended_by, is_message_op, is_waiting_op, pauses
from gpuscope.trace.intervals import EMPTY, Spans, clip, intersect, join, subtract, union, union_at
from gpuscope.trace.launch_links import outermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category, Kind

_BACKWARD = "autograd::engine::evaluate_function"


def training_threads(host: Table, names: NamePool, rows: Times) -> list[int]:
    """The thread that spends most time in operators, and those that run the backward pass."""
    spent: defaultdict[int, list[Spans]] = defaultdict(list)
    backward = names.matching(lambda name: name.startswith(_BACKWARD))
    found: set[int] = set()
    for ops in (rows[block] for block in blocks(0, len(rows))):
        ops = ops[host["category"][ops] == Category.OP]
        threads = host["thread"][ops]
        for thread in distinct_values(threads).tolist():
            own = ops[threads == thread]
            spent[thread].append(union(host["start"][own], host["end"][own]))
        found.update(distinct_values(threads[backward[host["name"][ops]]]).tolist())
    if not spent:
        return []
    main = max(sorted(spent), key=lambda thread: join(*spent[thread]).total)
    return [main, *sorted(found - {main})]


def work(host: Table, names: NamePool, rows: Times) -> dict[str, Times]:
    """Columns of device events for one rank (`rows`: its host events): what its training threads did."""
    threads = training_threads(host, names, rows)
    category, name = host.at("category", rows), host.at("name", rows)
    on_thread = among(host.at("thread", rows), threads)
    wrapper = names.matching(kinds.is_compile_wrapper) | names.matching(kinds.is_frame_compilation)
    ops: Mask = on_thread & (category == Category.OP) & ~wrapper[name]
    waits = rows[ops & names.matching(is_waiting_op)[name]]
    calls = rows[category == Category.COMMUNICATION]
    in_message = PerName(names, lambda name: kinds.collective_op(name) in kinds.POINT_TO_POINT)
    message = in_message(host["name"][calls]).astype(np.bool_)
    loading = _spans(host, rows[on_thread & names.matching(kinds.is_loader)[name]])
    blocked = intersect(_blocked(host, names, rows, calls, message, np.array(threads, np.int64)), _spans(host, calls))
    compiling = _spans(host, rows[on_thread & names.matching(kinds.is_frame_compilation)[name]])
    not_compute = join(loading, _spans(host, waits), blocked, compiling)
    parts = [(waits, _spans_of(host, waits), Kind.COMMUNICATION)]
    for thread in threads:
        top = outermost(host, rows[ops & (host.at("thread", rows) == thread)])
        spans = subtract(_spans(host, top), not_compute)
        owner = top[np.searchsorted(host["start"][top], spans.start, "right") - 1]
        parts.append((owner, spans, Kind.COMPUTE))
    # A thread that waits for the loader is not blocked on a collective that happens to be in flight.
    # Schedules post messages early and collect them late: in between they are seen where work hides them alone.
    seen = subtract(join(blocked, *(spans for _, spans, _ in parts)), loading)
    for call, posted in zip(calls.tolist(), message.tolist(), strict=True):
        whole = _spans_of(host, np.array([call]))
        spans = clip(seen, int(whole.start[0]), int(whole.end[0])) if posted else subtract(whole, loading)
        parts.append((np.full(len(spans.start), call), spans, Kind.COMMUNICATION))
    source = np.concatenate([owner for owner, _, _ in parts])
    return {
        "start": np.concatenate([spans.start for _, spans, _ in parts]),
        "end": np.concatenate([spans.end for _, spans, _ in parts]),
        "kind": np.concatenate([np.full(len(owner), kind, np.int8) for owner, _, kind in parts]),
        "name": host["name"][source],
        "launch": source,
    }


def _blocked(host: Table, names: NamePool, rows: Times, calls: Times, message: Mask, threads: Times) -> Spans:
    """Pauses of the training threads in which they wait for one of the `calls`, of which some are `message`s."""
    if not len(calls) or not len(threads):
        return EMPTY
    own = rows[among(host.at("thread", rows), threads) & (host.at("category", rows) != Category.COMMUNICATION)]
    found = pauses(host, names, own, threads)
    handing = own[names.matching(is_message_op)[host["name"][own]]]
    begin, end = host["start"][calls[message]], host["end"][calls[message]]
    # A collective runs on a thread of gloo's, which may note its end late; a message's end is that of the wait for it.
    of_messages = join(ended_by(found, end, begin, early=0), _spans(host, handing))
    return join(
        ended_by(found, distinct_values(host["end"][calls[~message]])), intersect(of_messages, union(begin, end))
    )


def _spans(host: Table, rows: Times) -> Spans:
    return union_at(host["start"], host["end"], rows)


def _spans_of(host: Table, rows: Times) -> Spans:
    """One span per row, not merged."""
    return Spans(host["start"][rows], host["end"][rows])
