"""How long messages that the host carried out (gloo, MPI) were on their way.

The host sees a message from the call until it is waited for, which can be much later than its arrival: schedules post
receives early and collect sends at the end of a step. Neither end of such a row says when data moved. What a link can
do is seen where the receiver was there first and took the message up at once: the shortest times from a send's start
to its receive's end, by link and size. A message of the same link and size takes no longer; the rest is waiting.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.facts.matching import Instances
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

SHORTEST = 0.1
"""Quantile that counts as the shortest: a sender that loses its core as it sends is stamped late, so that single
times are too short."""


def by_host(trace: Trace) -> Mask:
    """Per row of `collectives`, whether only the host's call of it is recorded."""
    table = trace["collectives"]
    return np.asarray((table["host_event"] != NA) & (table["event"] == NA))


def message_times(trace: Trace, found: Instances, start: Times, end: Times) -> Times:
    """Per instance, how long it was on its way once both ends were there, ns; NA where that can't be told, and for all
    but such messages.

    `start` and `end` are those of `found.rows`, on the common clock.
    """
    table, names = trace["collectives"], trace.names
    none = np.full(len(found), NA, np.int64)
    op, rank, owner = table["op"][found.rows], table["rank"][found.rows], found.owner
    mine = found.p2p[owner] & by_host(trace)[found.rows]
    send, receive = (np.flatnonzero(mine & (op == names.find(name))) for name in ("send", "recv"))
    begun, source, target, posted, taken = (none.copy() for _ in range(5))
    begun[owner[send]], source[owner[send]] = start[send], rank[send]
    posted[owner[receive]], taken[owner[receive]], target[owner[receive]] = start[receive], end[receive], rank[receive]
    size = table["bytes"][found.rows[found.bounds[:-1]]] if len(found) else none
    whole = np.flatnonzero((source != NA) & (target != NA) & (size != NA))
    if not len(whole):
        return none
    width = int(max(source[whole].max(), target[whole].max())) + 1
    _, link = distinct((source * width + target)[whole])
    _, key = distinct(link * (int(size[whole].max()) + 1) + size[whole])
    seen = (posted[whole] <= begun[whole]) & (taken[whole] > begun[whole])
    none[whole] = _low(key, (taken - begun)[whole], seen)[key]
    return none


def _low(key: Times, values: Times, seen: Mask) -> Times:
    """Per key (0 to its highest), the `SHORTEST` quantile of its values that are `seen`, one of them; or NA."""
    order = np.lexsort((values, key))
    order = order[seen[order]]
    count = np.bincount(key[order], minlength=int(key.max()) + 1)
    place = np.cumsum(count) - count + (SHORTEST * count).astype(np.int64)
    low = np.full(len(count), NA, np.int64)
    low[count > 0] = values[order[place[count > 0]]]
    return low
