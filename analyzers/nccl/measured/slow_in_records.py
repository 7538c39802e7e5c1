"""Who comes late, and whose link is slow, in the records of NCCL's Inspector: every operation of every rank, timed.

An operation ends on all its ranks together, so whoever came last has the shortest time, and the others' are longer by
what they waited. Clocks don't matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import LateInRecords, SlowLinkInRecords
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

WORTH = 0.1
"""Share of the operations' time from which waiting for a late rank is told."""


@dataclass(frozen=True)
class _Recorded:
    """A communicator's operations that all its recorded ranks have, in order."""

    ranks: list[int]
    seq: Times
    kind: tuple[tuple[int, int], ...]
    """Operation and bytes of each."""
    dur: Times
    """Shape (operations, ranks)."""


def run(facts: RunFacts) -> Result:
    """Findings `late_in_records` and `slow_link`."""
    result = Result(ANALYZER.name)
    found = dict(_recorded(facts.trace))
    for name, one in found.items():
        result.findings += _late(facts.trace.names[name], one)
    result.findings += _links({facts.trace.names[name]: one for name, one in found.items()})
    return result


def _recorded(trace: Trace) -> Iterator[tuple[int, _Recorded]]:
    from gpuscope.analyzers.collectives.slow_members import WINDOW

    table, rows = trace["measurements"], np.flatnonzero(_numbered(trace))
    by_communicator: dict[int, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for row, name, seq, rank in zip(
        rows.tolist(), *(table[column][rows].tolist() for column in ("communicator", "seq", "rank")), strict=True
    ):
        by_communicator[name][seq][rank] = row
    for name, operations in by_communicator.items():
        ranks = sorted({rank for own in operations.values() for rank in own})
        whole = [(seq, own) for seq, own in sorted(operations.items()) if len(own) == len(ranks)]
        if len(ranks) < 2 or len(whole) < WINDOW:
            continue
        places = np.array([[own[rank] for rank in ranks] for _, own in whole], np.int64)
        first = places[:, 0]
        kind = tuple(zip(table["op"][first].tolist(), table["bytes"][first].tolist(), strict=True))
        yield name, _Recorded(ranks, np.array([seq for seq, _ in whole]), kind, table["dur"][places])


def _late(name: str, one: _Recorded) -> Iterator[FindingEntry]:
    from gpuscope.analyzers.collectives.slow_members import slow

    shortest, longest = one.dur.min(axis=1), one.dur.max(axis=1)
    for found in slow(one.seq, -one.dur.astype(np.float64), float(np.median(longest))):
        lost = int((np.median(one.dur, axis=1) - shortest).sum())
        share = lost / max(int(longest.sum()), 1)
        if share >= WORTH:
            words = LateInRecords(name, len(one.seq), found.by_ns, found.since)
            yield made(words, ranks=[one.ranks[found.member]], share=share, cost_ns=lost, mean_ns=None)


def _links(found: Mapping[str, _Recorded]) -> Iterator[FindingEntry]:
    """Communicators of one size that carry out the same operations one after the other are compared."""
    from gpuscope.analyzers.collectives.slow_members import WINDOW, slow_links

    by_kind: dict[object, list[str]] = defaultdict(list)
    for name, one in found.items():
        by_kind[len(one.ranks), one.kind[-WINDOW:]].append(name)
    for alike in by_kind.values():
        count = min(len(found[name].seq) for name in alike)
        spent = {name: found[name].dur.min(axis=1)[-count:].astype(np.float64) for name in alike}
        usual = float(np.median(np.concatenate(list(spent.values()))))
        members = {name: found[name].ranks for name in alike}
        for link in slow_links(found[alike[0]].seq[-count:], spent, members, dict.fromkeys(alike, 0), usual):
            words = SlowLinkInRecords(list(link.groups), link.times, link.since)
            yield made(words, ranks=link.ranks, cost_ns=None, mean_ns=None, severity="medium")


def _numbered(trace: Trace) -> Mask:
    table = trace["measurements"]
    return np.asarray(
        (table["rank"] != NA) & (table["seq"] != NA) & (table["group_size"] > 1) & table.known("communicator")
    )


ANALYZER = RunAnalyzer(
    "slow_in_records",
    run,
    (
        Need(
            "numbered operations of NCCL's Inspector",
            "load its plugin (NCCL_PROFILER_PLUGIN)",
            lambda trace: bool(_numbered(trace).any()),
            optional=True,
        ),
    ),
)
