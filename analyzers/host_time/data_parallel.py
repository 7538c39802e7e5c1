"""`nn.DataParallel`: one process that drives all devices, scatters each batch, and copies the model in every step."""

from __future__ import annotations

from collections import defaultdict

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.data_parallel import SingleProcess
from gpuscope.trace.schema import NA

FORWARD = "DataParallel.forward"
"""The range that torch.nn.DataParallel writes around its forward pass."""


def run(facts: RunFacts) -> Result:
    """A finding `single_process` where a rank drives several devices through `nn.DataParallel`."""
    result = Result(ANALYZER.name)
    devices: dict[int, list[LaneSummary]] = defaultdict(list)
    for lane in facts.lanes:
        if lane.device != NA:
            devices[lane.rank].append(lane)
    if facts.trace.names.find(FORWARD) < 0:
        return result
    for rank, lanes in devices.items():
        if len(lanes) > 1:
            _add(result, facts, rank, lanes)
    return result


def _add(result: Result, facts: RunFacts, rank: int, lanes: list[LaneSummary]) -> None:
    judged = [facts.steady.breakdown(lane) for lane in lanes]
    window = max(breakdown.window for breakdown in judged)
    busiest = max(breakdown.compute for breakdown in judged)
    lost = max(window - busiest, 0)
    if not window:
        return
    share, steps = lost / window, max(facts.steady.count(lanes[0]), 1)
    words = SingleProcess(len(lanes), share)
    result.findings.append(made(words, ranks=[rank], share=share, cost_ns=lost, mean_ns=lost // steps))


ANALYZER = RunAnalyzer("data_parallel", run, (Need("ranks", "record the ranks' activity"),))
