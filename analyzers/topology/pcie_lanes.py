"""GPUs whose PCIe link runs on fewer lanes than their cards have, as the recorder saw it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import SlowPcie
from gpuscope.sources.run_manifest import pcie_lanes


def narrow_links(facts: RunFacts, folders: Sequence[Path]) -> Result:
    """One finding for all ranks whose link is narrow."""
    result = Result("pcie")
    told = {rank: own for folder in folders for rank, own in pcie_lanes(folder).items()}
    narrow = {rank: own for rank, own in told.items() if own[0] < own[1] and rank in facts.trace.ranks}
    if not narrow:
        return result
    judged = [(lane.rank, facts.steady.breakdown(lane)) for lane in facts.lanes]
    cost = sum(
        round(own.exposed_memory * (1 - narrow[rank][0] / narrow[rank][1])) for rank, own in judged if rank in narrow
    )
    window = sum(own.window for _, own in judged)
    steps = sum(facts.steady.count(lane) for lane in facts.lanes)
    result.findings.append(
        made(
            SlowPcie(*min(narrow.values(), key=lambda own: own[0] / own[1])),
            ranks=narrow,
            share=cost / window if window else 0.0,
            cost_ns=cost,
            mean_ns=round(cost / steps) if steps else None,
        )
    )
    return result
