"""Mixtures of experts: how unevenly tokens go to ranks, what that costs, and what another routing would give."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE, Result
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.base.sections import EXPERTS
from gpuscope.analyzers.changes import ExpertLoads, Predicted
from gpuscope.analyzers.experts.exchanges import Exchange, Pace, exchanges, paces
from gpuscope.analyzers.facts.run_facts import RunFacts, WhatIf, WhatIfAnalyzer
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import ExpertImbalance
from gpuscope.report.view.per_step import per_step_ns
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.experts_section import ExpertCost, ExpertGain, ExpertPassEntry, ExpertRankEntry, ExpertsSection
from gpuscope.trace.columns.table import Array
from gpuscope.trace.schema import NA
from gpuscope.words import units

IMBALANCED = 1.2
"""Times the mean that the busiest rank receives from which it is worth a line: routers balance to within 10–20 %
(GShard, arXiv:2006.16668, capacity factors of 1.0 to 1.25)."""
CAPACITIES = (1.0, 1.25, 1.5, 2.0)
"""Capacity factors that are tried: those of GShard and Switch Transformers (arXiv:2101.03961, section 2.2)."""
LEAST_DROPPED = 0.001
"""A capacity that drops less changes nothing."""

_Paces = Mapping[tuple[int, int], Pace]


def run(facts: RunFacts, what_if: WhatIf) -> Result:
    """The section `experts`; findings `expert_imbalance`, by group."""
    result = Result(ANALYZER.name)
    found, left_out = exchanges(facts)
    unsized = _unsized(facts)
    if not found:
        result.status, result.why = "skipped", unsized or "no dispatch with its combine in a judged step"
        return result
    pace = paces(found)
    passes = _passes(facts, found, pace)
    section: ExpertsSection = {
        "passes": passes, "ranks": _ranks(found), "cost": _cost(passes), "gains": _gains(facts, what_if, found, pace),
        "left_out": left_out,
    }  # fmt: skip
    result.sections[EXPERTS] = section
    if unsized:
        section["not_separable"] = unsized
    for group in sorted({one.group for one in found}):
        own = [one for one in found if one.group == group]
        if (
            finding := _finding(facts, own, [one for one in passes if one["group"] == _name(facts, group)])
        ) is not None:
            result.findings.append(finding)
    return result


def _name(facts: RunFacts, group: int) -> str:
    return facts.trace.names[group] if group >= 0 else "one group"


def _unsized(facts: RunFacts) -> str:
    """All-to-alls whose kernels hold no sizes, in words; empty where there are none."""
    table, names = facts.trace["collectives"], facts.trace.names
    rows = np.flatnonzero(
        (table["op"] == names.find("all_to_all")) & (table["received"] == NA) & (table["event"] != NA)
    )
    if not len(rows):
        return ""
    device = facts.trace["device_events"]
    kernels = Counter(names[int(code)] for code in device["name"][table["event"][rows]]) if len(device) else Counter()
    took = int((table["end"][rows] - table["start"][rows]).sum())
    shown = ", ".join(name.partition("(")[0][:60] for name, _ in kernels.most_common(2)) or "all-to-alls"
    return (
        f"{units.plural(len(rows), 'all-to-all')} without sizes ({shown}): {units.duration(took)} of waiting and "
        "transferring in one, not separable"
    )


def _saved(one: Exchange, pace: Pace) -> tuple[float, float]:
    """ns that even routing saves of a pass: of the busiest rank's experts, and of both transfers."""
    busiest, mean = float(pace.time(float(one.load.max()))), float(pace.time(one.mean))
    transfers = (one.dispatch_ns + one.combine_ns) * (1 - 1 / one.imbalance)
    return max(busiest - mean, 0.0), transfers


def _passes(facts: RunFacts, found: Sequence[Exchange], pace: _Paces) -> list[ExpertPassEntry]:
    own: dict[tuple[int, int], list[Exchange]] = defaultdict(list)
    for one in found:
        own[one.group, one.number].append(one)
    entries: list[ExpertPassEntry] = []
    for (group, number), each in sorted(own.items()):
        line = pace[group, number]
        saved = [_saved(one, line) for one in each]
        slowest = [float(one.experts.max()) for one in each]
        expected = [float(line.time(float(one.load.max()))) for one in each]
        busiest = Counter(int(one.ranks[int(one.load.argmax())]) for one in each)
        entries.append({
            "group": _name(facts, group), "number": number, "bytes": round(fmean(one.mean for one in each)),
            "imbalance": fmean(one.imbalance for one in each), "busiest": busiest.most_common(1)[0][0],
            "ranks": each[0].ranks.tolist(), "loads": np.mean([one.load / one.mean for one in each], axis=0).tolist(),
            "experts_ns": round(fmean(slowest)), "imbalance_ns": round(fmean(map(sum, saved))),
            "straggler_ns": round(fmean(max(t - e, 0.0) for t, e in zip(slowest, expected, strict=True))),
            "dispatch_ns": round(fmean(one.dispatch_ns for one in each)),
            "combine_ns": round(fmean(one.combine_ns for one in each)),
        })  # fmt: skip
    return entries


def _ranks(found: Sequence[Exchange]) -> list[ExpertRankEntry]:
    steps = len({one.step for one in found})
    load: dict[int, list[float]] = defaultdict(list)
    received: Counter[int] = Counter()
    experts: Counter[int] = Counter()
    for one in found:
        columns = (one.ranks.tolist(), one.load.tolist(), one.experts.tolist())
        for rank, own, took in zip(*columns, strict=True):
            load[rank].append(own / one.mean)
            received[rank] += own
            experts[rank] += took
    return [
        {"rank": rank, "load": fmean(load[rank]), "bytes_per_step": received[rank] // steps,
         "experts_ns_per_step": experts[rank] // steps}
        for rank in sorted(load)
    ]  # fmt: skip


def _cost(passes: Sequence[ExpertPassEntry]) -> ExpertCost:
    return {
        "imbalance_ns": sum(one["imbalance_ns"] for one in passes),
        "straggler_ns": sum(one["straggler_ns"] for one in passes),
        "network_ns": round(sum((one["dispatch_ns"] + one["combine_ns"]) / one["imbalance"] for one in passes)),
    }


def _gains(facts: RunFacts, what_if: WhatIf, found: Sequence[Exchange], pace: _Paces) -> list[ExpertGain]:
    """Even routing, and capacity factors that drop something; none where routing is even."""
    if max(one.imbalance for one in found) < 1 + LEAST_DROPPED:
        return []
    sent = sum(float(one.load.sum()) for one in found)
    gains = [_gain(facts, what_if, found, pace, None, 0.0)]
    for factor in CAPACITIES:
        kept = sum(float(np.minimum(one.load, factor * one.mean).sum()) for one in found)
        if 1 - kept / sent >= LEAST_DROPPED:
            gains.append(_gain(facts, what_if, found, pace, factor, 1 - kept / sent))
    return gains


def _gain(
    facts: RunFacts, what_if: WhatIf, found: Sequence[Exchange], pace: _Paces, capacity: float | None, dropped: float
) -> ExpertGain:
    outcome = what_if.predict(rerouted(facts, found, pace, capacity))
    if not isinstance(outcome, Predicted):
        return {"capacity_factor": capacity, "dropped_frac": dropped, "predicted": None, "why_not": outcome.why}
    return {
        "capacity_factor": capacity, "dropped_frac": dropped, "why_not": "",
        "predicted": {
            "step_ns_before": outcome.before, "step_ns_after": outcome.after, "low_ns": outcome.low,
            "high_ns": outcome.high, "basis": outcome.basis, "provenance": outcome.provenance,
        },
    }  # fmt: skip


def rerouted(facts: RunFacts, found: Sequence[Exchange], pace: _Paces, capacity: float | None) -> ExpertLoads:
    """The change to a routing in which each rank receives the mean, or no more than `capacity` times it."""
    table = facts.trace["collectives"]
    windows: list[tuple[int, int, int, float]] = []
    transfers: list[tuple[int, int, int, float]] = []
    for one in found:
        line = pace[one.group, one.number]
        after: Array = (
            np.full(len(one.load), one.mean) if capacity is None else np.minimum(one.load, capacity * one.mean)
        )
        # What is slow for another reason stays as slow.
        factors = np.maximum(1 + (line.time(after) - line.time(one.load)) / np.maximum(one.experts, 1), 0.0)
        shorter = float(after.max()) / float(one.load.max())
        for place, rank in enumerate(one.ranks.tolist()):
            sent, back = int(one.dispatch[place]), int(one.combine[place])
            windows.append((rank, int(table["end"][sent]), int(table["start"][back]), float(factors[place])))
            transfers += [(rank, int(table["start"][row]), int(table["end"][row]), shorter) for row in (sent, back)]
    what = "every rank's experts with the mean of the tokens" if capacity is None else (
        f"no rank's experts with more than {capacity:g} times the mean of the tokens")  # fmt: skip
    return ExpertLoads(tuple(windows), tuple(transfers), f"{what}; time by tokens from the recorded passes")


def _finding(facts: RunFacts, found: Sequence[Exchange], passes: Sequence[ExpertPassEntry]) -> FindingEntry | None:
    """What one group's ranks received, where it differs; None where it does not."""
    entries = _ranks(found)
    most = max(one["load"] for one in entries)
    if most < IMBALANCED:
        return None
    busiest = [one["rank"] for one in entries if one["load"] >= IMBALANCED]
    table = facts.trace["collectives"]
    rows = sorted((int(row) for one in found for row in one.dispatch), key=lambda row: -int(table["received"][row]))
    evidence: list[Evidence] = [
        {
            "rank": int(table["rank"][row]), "start_ns": int(table["start"][row]),
            "dur_ns": int(table["end"][row] - table["start"][row]), "name": "all_to_all",
            "note": f"receives {units.memory(int(table['received'][row]))}",
        }
        for row in rows[:EVIDENCE]
    ]  # fmt: skip
    steps = len({one.step for one in found})
    cost, step = sum(one["imbalance_ns"] for one in passes), facts.step_ns
    mean = round(fmean(one["bytes_per_step"] for one in entries))
    share = min(cost / step, 1.0) if step else 0.0
    words = ExpertImbalance(_name(facts, found[0].group), busiest, most, mean, per_step_ns(share, step) or cost)
    return made(words, ranks=busiest, share=share, cost_ns=cost * steps, mean_ns=cost, evidence=evidence)


ANALYZER = WhatIfAnalyzer(
    "experts", run,
    (Need("all-to-alls", "mixtures of experts exchange tokens by them",
          lambda trace: bool((trace["collectives"]["op"] == trace.names.find("all_to_all")).any()), optional=True),),
    (EXPERTS,),
)  # fmt: skip
