"""What `TORCH_DISTRIBUTED_DEBUG=DETAIL` costs: before every collective it holds all ranks at a barrier and compares
what they are about to call."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE, Result
from gpuscope.analyzers.base.evidence import shown_by
from gpuscope.analyzers.base.lanes import bounds, step_at
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.facts.waits import rows_by_lane
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.data_parallel import DebugChecks
from gpuscope.schema.document import Evidence
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.intervals import measure_within, union
from gpuscope.trace.nested_messages import is_debug_check
from gpuscope.trace.schema import NA


def run(facts: RunFacts) -> Result:
    """The finding `debug_checks`: time in the checks of the judged steps once all ranks have come to them, in which a
    rank computes nothing."""
    result = Result(ANALYZER.name)
    checks = check_rows(facts)
    if not checks.any():
        return result
    table, waits, steady = facts.trace["collectives"], facts.waits, facts.steady
    cost = window = steps = count = 0
    evidence: list[Evidence] = []
    ranks: set[int] = set()
    for lane, own in rows_by_lane(facts.trace, facts.lanes):
        judged = [step for step in lane.steps if steady.judged(step.step)]
        begins, ends = bounds(judged) if judged else (np.array([lane.window[0]]), np.array([lane.window[1]]))
        window += steady.breakdown(lane).window
        rows = own[checks[own]]
        if not len(rows):
            continue
        ranks.add(lane.rank)
        rows = rows[step_at(begins, ends, table["start"][rows]) != NA]
        begun = np.where(waits.arrived[rows] == NA, table["start"][rows], waits.arrived[rows])
        begun = np.clip(begun, table["start"][rows], table["end"][rows])
        spans = union(begun, table["end"][rows])
        # A device's own timeline does not show what its host waits for: no more than it idles.
        exposed = int(measure_within(lane.exposed_communication, spans.start, spans.end).sum())
        cost += exposed if lane.device == NA else min(spans.total, steady.breakdown(lane).idle)
        count += len(rows)
        steps += max(len(judged), 1)
        longest = rows[np.argsort(begun - table["end"][rows], kind="stable")][:EVIDENCE]
        evidence += [_shown(facts, int(row)) for row in longest.tolist()]
    share = cost / window if window else 0.0
    if ranks and cost:
        words = DebugChecks(round(count / max(steps, 1)), share)
        result.findings.append(
            made(
                words,
                ranks=ranks,
                share=share,
                cost_ns=cost,
                mean_ns=round(cost / max(steps, 1)),
                evidence=evidence[:EVIDENCE],
            )
        )
    return result


def check_rows(facts: RunFacts) -> Mask:
    """Which rows of `collectives` are such checks."""
    table, host, names = facts.trace["collectives"], facts.trace["host_events"], facts.trace.names
    checked = names.matching(is_debug_check)
    found = np.zeros(len(table), np.bool_)
    called = np.flatnonzero((table["host_event"] != NA) & (table["op"] == names.find("barrier")))
    found[called] = checked[host["name"][table["host_event"][called]]]
    return found


def _shown(facts: RunFacts, row: int) -> Evidence:
    table = facts.trace["collectives"]
    event = int(table["host_event"][row])
    note = "checks what all ranks are about to call"
    return shown_by(facts.trace, "host_events", event, note, (int(table["start"][row]), int(table["end"][row])))


ANALYZER = RunAnalyzer(
    "debug_checks", run, (Need("collectives", "record collectives: a job on one device has none", optional=True),)
)
