"""Messages between ranks: a sparse matrix of bytes and time from each sender to each receiver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.base.sections import TRAFFIC
from gpuscope.analyzers.facts.matching import Instances
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.schema.nccl_sections import TrafficEntry
from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.schema import NA


def run(facts: RunFacts) -> Result:
    """The section `traffic`, where sends or receives record their other end.

    A matched message counts once, with its transfer; one of which only one end is recorded with that end's time,
    waiting included. An exchange (one kernel that sends and receives) is not split: its directions are not recorded.
    """
    result = Result(ANALYZER.name)
    trace, matched = facts.trace, facts.matched
    table = trace["collectives"]
    send, receive = (table["op"] == trace.names.find(name) for name in ("send", "recv"))
    rows = np.flatnonzero((send | receive) & (table["end"] != NA) & (table["start"] != NA))
    if not len(rows):
        return result
    rank = table["rank"][rows]
    other = matched.groups.other_of_two(rows, rank)
    peer = np.where(table["peer"][rows] == NA, other, table["peer"][rows])
    source = np.where(send[rows], rank, peer)
    target = np.where(send[rows], peer, rank)
    spent = _transfers(table, matched.instances)[rows]
    # Of a matched message the sender's row counts; its receiver's is the same message.
    counts = (peer != NA) & (send[rows] | (matched.of_row[rows] == NA))
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    columns = (column[counts].tolist() for column in (source, target, table["bytes"][rows], spent))
    for one, two, nbytes, dur in zip(*columns, strict=True):
        pairs[one, two].append((nbytes, dur))
    if pairs:
        result.sections[TRAFFIC] = [_entry(pair, pairs[pair]) for pair in sorted(pairs)]
    return result


def _transfers(table: Table, instances: Instances) -> Times:
    """Per row of `collectives`: the shortest duration over the ends of a matched operation, else its own."""
    spent = table["end"] - table["start"]
    spent[instances.rows] = instances.reduce(np.minimum, spent[instances.rows])[instances.owner]
    return spent


def _entry(pair: tuple[int, int], messages: Sequence[tuple[int, int]]) -> TrafficEntry:
    sizes = [nbytes for nbytes, _ in messages]
    return {
        "rank": pair[0],
        "peer": pair[1],
        "count": len(messages),
        "bytes": None if NA in sizes else sum(sizes),
        "dur_ns": sum(dur for _, dur in messages),
    }


ANALYZER = RunAnalyzer(
    "traffic",
    run,
    (Need("collectives", "sends and receives are recorded with NCCL's or gloo's calls", optional=True),),
    (TRAFFIC,),
)
