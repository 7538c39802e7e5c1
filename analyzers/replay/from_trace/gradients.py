"""Which gradients a bucket holds, and when each was there: what other buckets rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from gpuscope.analyzers.facts.message_sizes.accumulated_gradients import accumulated, in_hooks
from gpuscope.analyzers.replay.graph import Call, Gradient
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.intervals import Spans
from gpuscope.trace.trace import Trace

ELEMENT_BYTES = (1, 2, 4, 8)
PADDING = 0.02
"""By which a bucket's bytes may exceed those of its gradients: alignment."""


def with_gradients(
    trace: Trace, rank: int, hooks: Spans, calls: Sequence[Call], issued: Times, begun: Times
) -> list[Call]:
    """The calls of a rank with gradients' hooks, each issued at an instant, with the gradients that they hold.

    A call that a gradient's hook issued holds those that became ready since the one before was issued (and since
    the window, the first of what has `begun`), in the backward pass it is of: passes before may have accumulated alone
    (`no_sync`). Calls behind the backward pass, with no gradient between them, hold all since then together, and are
    taken to send them in the order in which they became ready. Where recorded gradients do not make up a call's bytes,
    they stay unknown.
    """
    gradients_of = accumulated(trace, rank)
    at, elements = gradients_of.at, gradients_of.elements
    hooked = in_hooks(hooks, issued)
    reducing = [
        place
        for place in np.argsort(issued, kind="stable").tolist()
        if calls[place].op == "all_reduce" or (calls[place].op == "reduce_scatter" and not hooked[place])
    ]
    ready = np.searchsorted(at, issued, "right")
    found = list(calls)
    first = np.searchsorted(at, begun, "right")
    own_pass = first[np.maximum(np.searchsorted(begun, issued, "right") - 1, 0)]
    groups = [reducing]
    # What another group reduces in between (tensor parallelism) may hold none of them.
    groups += [
        [place for place in reducing if calls[place].group == group]
        for group in dict.fromkeys(calls[place].group for place in reducing)
    ]
    since = int(first[0]), own_pass
    each = [dict(_by_issue(own, hooked, ready, since, (at, elements), calls, issued)) for own in groups]

    def explained(held: dict[int, tuple[Gradient, ...]]) -> tuple[int, int]:
        by_hooks = sum(bool(hooked[place]) for place in held)
        # Where hooks send gradients, others with the bytes of some have them by coincidence.
        return by_hooks, -len(held) if by_hooks else len(held)

    for place, gradients in max(each, key=explained).items():
        found[place] = replace(calls[place], gradients=gradients)
    return found


def _by_issue(
    places: Sequence[int],
    hooked: Mask,
    ready: Times,
    since: tuple[int, Times],
    gradients: tuple[Times, Times],
    calls: Sequence[Call],
    issued: Times,
) -> Iterator[tuple[int, tuple[Gradient, ...]]]:
    """Of collectives in order of issue, each with what became ready since the one before (at first: `since` a place),
    of its own pass if that makes up its bytes."""
    (at, elements), (low, own_pass) = gradients, since
    for _, same in groupby(places, lambda place: place if hooked[place] else -1 - int(ready[place])):
        own = list(same)
        high = int(ready[own[0]])
        for first in dict.fromkeys((max(low, int(own_pass[own[0]])), low)):
            if held := list(_held(at[first:high], elements[first:high], own, calls, issued)):
                yield from held
                break
        low = high


def _held(
    at: Times, elements: Times, places: Sequence[int], calls: Sequence[Call], issued: Times
) -> Iterator[tuple[int, tuple[Gradient, ...]]]:
    """The calls (by place) among which these gradients were sent one after the other, each with what it holds."""
    sizes = [calls[place].bytes or 0 for place in places]
    total, count = sum(sizes), int(elements.sum())
    if not count or not bool(elements.all()) or not all(sizes):
        return
    if not any(0 <= total / (count * own) - 1 <= PADDING for own in ELEMENT_BYTES):
        return
    ends = np.rint(np.cumsum(elements) / count * total).astype(np.int64)
    begin = 0
    for place, size in zip(places, sizes, strict=True):
        first = int(np.searchsorted(ends, begin, "right"))
        last = int(np.searchsorted(ends, begin + size, "left"))
        cuts = np.minimum(ends[first : last + 1], begin + size)
        early = issued[place] - at[first : last + 1]
        if calls[place].backward and last + 1 == len(ends):
            early[-1] = 0  # what the bucket waited for
        bytes_of = np.diff(cuts, prepend=begin).tolist()
        yield place, tuple(Gradient(*pair) for pair in zip(bytes_of, early.tolist(), strict=True))
        begin += size
