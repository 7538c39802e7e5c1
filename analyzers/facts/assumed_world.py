"""The world size of a run: as recorded, or assumed from devices and collectives (definitions: «World size»)."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.facts.call_order import clock_of
from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.matching import Instances, Matched
from gpuscope.analyzers.facts.whole_job import against_whole_job
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.trace import Trace
from gpuscope.trace.world import NOT_RECORDED, World, recorded_world

ENDS_AGREE_NS = 50_000
"""Matched collectives whose ranks end within this of each other are one operation (definitions: «World size»)."""
_MOST = 0.9
"""The part of the matched collectives whose ends must agree: a rank may leave a few of them late."""


def world(trace: Trace, matched: Matched, clocks: Clocks) -> World:
    """The world size of a merged trace, with where it comes from.

    As recorded; else the number of ranks at hand, if all devices of every host are there and the ends of the matched
    collectives tie all ranks to each other. `why` says what speaks for it, or what is missing.
    """
    recorded = recorded_world(trace)
    if recorded.size is not None or not trace.ranks:
        return recorded
    against = against_whole_job(trace)
    if against:
        return World(None, None, f"{NOT_RECORDED.why}, and {against}")
    if matched.varying:
        return World(
            None,
            None,
            f"{NOT_RECORDED.why}, and equal transfers take so unequal times that somebody who is "
            "in none of the files may be waited for",
        )
    if matched.unmatched.get("ranks_missing"):
        return World(None, None, f"{NOT_RECORDED.why}, and ranks of the collectives' groups are in none of the files")
    spread = _ends_apart(trace, matched, clocks)
    if not len(spread):
        return World(None, None, f"{NOT_RECORDED.why}, and no matched collective ties the ranks at hand to each other")
    far = int(np.sort(spread)[int(_MOST * (len(spread) - 1))])
    if far > ENDS_AGREE_NS:
        return World(
            None,
            None,
            f"{NOT_RECORDED.why}, and the ends of matched collectives are {far / 1e3:.0f} µs apart: "
            "the ranks at hand may not be of one job",
        )
    if not _tied(trace, matched):
        return World(None, None, f"{NOT_RECORDED.why}, and some of the ranks at hand meet no other in a collective")
    count = len(trace.ranks)
    hosts = len(set(clock_of(trace).values()))
    return World(
        count,
        "assumed",
        f"{NOT_RECORDED.why}; the {count} ranks at hand are assumed to be all of them: every device of "
        f"{'the host' if hosts == 1 else f'the {hosts} hosts'} is there, and {len(spread)} matched collectives end "
        f"within {max(far, 1_000) / 1e3:.0f} µs of each other",
    )


def _ends_apart(trace: Trace, matched: Matched, clocks: Clocks) -> Times:
    """Per matched collective of several ranks, how far its ends lie apart on the common clock, ns."""
    table = trace["collectives"]
    parts: list[Times] = []
    for found in (matched.instances, matched.partial):
        own = found.select((found.sizes > 1) & ~_one_way(trace, found))
        ends = clocks.common(table["rank"][own.rows], table["end"][own.rows])
        parts.append(own.reduce(np.maximum, ends) - own.reduce(np.minimum, ends))
    return np.concatenate(parts)


def _one_way(trace: Trace, found: Instances) -> Mask:
    """Messages from one rank to another: the sender may leave before the receiver."""
    if not len(found):
        return found.p2p
    exchange = trace["collectives"]["op"][found.rows[found.bounds[:-1]]] == trace.names.find("send_recv")
    return np.asarray(found.p2p & ~exchange)


def _tied(trace: Trace, matched: Matched) -> bool:
    """Whether every rank at hand meets every other in matched operations, directly or through others."""
    rank = trace["collectives"]["rank"]
    label = {own: own for own in trace.ranks}

    def root(own: int) -> int:
        while label[own] != own:
            own = label[own]
        return own

    for found in (matched.instances, matched.partial):
        head = np.repeat(rank[found.rows[found.bounds[:-1]]], found.sizes)
        for first, second in set(zip(head.tolist(), rank[found.rows].tolist(), strict=True)):
            low, high = sorted((root(first), root(second)))
            label[high] = low
    return len({root(own) for own in trace.ranks}) == 1
