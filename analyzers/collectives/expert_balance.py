"""All-to-alls in which some ranks receive more than others: experts with more tokens, not a slow network."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE, Result
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.collectives.stragglers import judged_rows
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import ExpertImbalance
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.words import units

IMBALANCED = 1.2
"""Times the mean that the busiest rank receives from which it is worth a line: routers balance to within 10–20 %
(GShard, arXiv:2006.16668, capacity factors of 1.0 to 1.25)."""


def run(facts: RunFacts) -> Result:
    """The finding `expert_imbalance`, for each process group whose all-to-alls are uneven over the judged steps."""
    result = Result(ANALYZER.name)
    table = facts.trace["collectives"]
    _, judged = judged_rows(facts)
    rows = np.flatnonzero((table["received"] != NA) & judged)
    for group in np.unique(table["group"][rows]).tolist():
        own = rows[table["group"][rows] == group]
        if (finding := _finding(facts, own, group)) is not None:
            result.findings.append(finding)
    return result


def _finding(facts: RunFacts, rows: Times, group: int) -> FindingEntry | None:
    """What one group's ranks received, where it differs; None where it does not or only one rank is here."""
    table = facts.trace["collectives"]
    ranks, place = np.unique(table["rank"][rows], return_inverse=True)
    received = np.bincount(place, weights=table["received"][rows])
    mean = float(received.mean())
    if len(ranks) < 2 or not mean or received.max() < IMBALANCED * mean:
        return None
    busiest = ranks[received >= IMBALANCED * mean].tolist()
    name = facts.trace.names[group] if group >= 0 else "one group"
    steps = max(len(facts.steady.durations), 1)
    largest = rows[np.argsort(-table["received"][rows], kind="stable")[:EVIDENCE]]
    evidence: list[Evidence] = [
        {
            "rank": int(table["rank"][row]), "start_ns": int(table["start"][row]),
            "dur_ns": int(table["end"][row] - table["start"][row]), "name": "all_to_all",
            "note": f"receives {units.memory(int(table['received'][row]))}",
        }
        for row in largest.tolist()
    ]  # fmt: skip
    words = ExpertImbalance(name, busiest, received.max() / mean, round(mean / steps))
    return made(words, ranks=busiest, evidence=evidence)


ANALYZER = RunAnalyzer(
    "expert_balance", run,
    (Need("all-to-alls with sizes", "record collective arguments (torch.profiler on NCCL, or `gpuscope record`)",
          lambda trace: bool((trace["collectives"]["received"] != NA).any()), optional=True),),
)  # fmt: skip
