"""Groups that talk within a layer (tensor, sequence, context, expert parallel) yet span hosts.

Such a group sends in every layer, so it belongs inside one host's NVLink; pipeline stages send little and may
cross hosts (Megatron-LM, Narayanan et al. 2021, arXiv:2104.04473, takeaway 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE, Result
from gpuscope.analyzers.base.lanes import LaneSummary, count_steps
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import GroupAcrossHosts
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import Spans, intersect, union
from gpuscope.trace.naming.frameworks import parallelism_of
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

INSIDE = frozenset({"tp", "sp", "cp", "ep"})


@dataclass(frozen=True)
class Spread:
    """A group that spans hosts though one host could hold it: its code and members."""

    kind: str
    group: int
    members: tuple[int, ...]
    hosts: tuple[str, ...]


def run(facts: RunFacts) -> Result:
    """A finding `group_across_hosts` per kind of parallelism whose exposed communication costs 1 % or more."""
    result = Result(ANALYZER.name)
    found: dict[str, list[Spread]] = {}
    for spread in _spread_groups(facts.trace):
        found.setdefault(spread.kind, []).append(spread)
    for kind, spreads in found.items():
        finding = _finding(facts.trace, facts.lanes, kind, spreads)
        if finding["share_frac"] >= MIN_SHARE:
            result.findings.append(finding)
    return result


def _spread_groups(trace: Trace) -> Iterator[Spread]:
    hosts = _hosts(trace)
    room = max(Counter(hosts.values()).values(), default=0)
    table = trace["groups"]
    for group in distinct_values(table["group"]).tolist():
        rows = np.flatnonzero(table["group"] == group)
        kind = parallelism_of(trace.names[int(table["description"][rows[0]])])
        members = tuple(sorted(set(table["rank"][rows].tolist())))
        if kind not in INSIDE or len(members) < int(table["size"][rows[0]]) or len(members) > room:
            continue
        own = {hosts.get(rank, "") for rank in members}
        if len(own) > 1 and "" not in own:
            yield Spread(kind, group, members, tuple(sorted(own)))


def _hosts(trace: Trace) -> dict[int, str]:
    """Host of each rank that records one."""
    ranks = trace["ranks"]
    known = np.flatnonzero(ranks["host"] != NO_NAME)
    return {int(ranks["rank"][row]): trace.names[int(ranks["host"][row])] for row in known}


def _finding(trace: Trace, lanes: Sequence[LaneSummary], kind: str, spreads: Sequence[Spread]) -> FindingEntry:
    members = sorted({rank for spread in spreads for rank in spread.members})
    groups = np.array([spread.group for spread in spreads])
    exposed = [(lane, _exposed(trace, lane, groups)) for lane in lanes if lane.rank in members]
    window = sum(lane.breakdown.window for lane in lanes)
    share = sum(spans.total for _, spans in exposed) / max(window, 1)
    per_step = [spans.total / max(count_steps(lane.steps), 1) for lane, spans in exposed]
    hosts = sorted({host for spread in spreads for host in spread.hosts})
    words = GroupAcrossHosts(kind, len(spreads), len(spreads[0].members), hosts, share)
    return made(
        words,
        ranks=members,
        share=share,
        cost_ns=sum(spans.total for _, spans in exposed),
        mean_ns=round(sum(per_step) / max(len(lanes), 1)),
        evidence=[evidence for lane, spans in exposed for evidence in _evidence(lane, spans, kind)][:EVIDENCE],
    )


def _exposed(trace: Trace, lane: LaneSummary, groups: Times) -> Spans:
    table = trace["collectives"]
    rows = np.flatnonzero((table["rank"] == lane.rank) & np.isin(table["group"], groups))
    rows = rows[table.known("start")[rows] & table.known("end")[rows]]
    return intersect(union(table["start"][rows], table["end"][rows]), lane.exposed_communication)


def _evidence(lane: LaneSummary, spans: Spans, kind: str) -> Iterator[Evidence]:
    if spans.total:
        longest = int(np.argmax(spans.end - spans.start))
        start, end = int(spans.start[longest]), int(spans.end[longest])
        yield {
            "rank": lane.rank,
            "start_ns": start,
            "dur_ns": end - start,
            "name": f"{kind} communication",
            "note": "between hosts",
        }


ANALYZER = RunAnalyzer("across_hosts", run, (Need("groups", "record process groups (torch 2.4 and later)"),))
