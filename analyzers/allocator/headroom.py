"""Device memory that the allocator never took: room for larger batches, or for activations that are computed twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import Need, Result
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.trace.kernel_categories import is_optimizer_step

MOST = 0.5
"""Share of the device's memory at most reserved from which another half fits beside it."""
_RECOMPUTES = when_used.pattern(
    r"CheckpointFunction(Backward)?$|torch/utils/checkpoint\.py\(\d+\): (checkpoint|recompute_fn)"
)
"""Activation checkpointing, as autograd and recorded stacks name it."""


def run(facts: RunFacts) -> Result:
    """The findings `memory_headroom` and `needless_checkpointing` of a training whose devices stay half empty."""
    from gpuscope.catalogue.findings.memory import MemoryHeadroom, NeedlessCheckpointing

    result = Result(ANALYZER.name)
    names = facts.trace.names.names
    if not any(map(is_optimizer_step, names)):
        return result
    free = _free(facts)
    if not free:
        return result
    least = min(free, key=lambda rank: free[rank][1] - free[rank][0])
    reserved, capacity = free[least]
    if reserved > MOST * capacity:
        return result
    if any(_RECOMPUTES.search(name) for name in names):
        words = NeedlessCheckpointing(reserved, capacity)
        result.findings.append(made(words, ranks=free, cost_ns=None, mean_ns=None))
    result.findings.append(made(MemoryHeadroom(reserved, capacity), ranks=free, cost_ns=None, mean_ns=None))
    return result


def _free(facts: RunFacts) -> dict[int, tuple[int, int]]:
    """(most reserved, capacity) in bytes per rank; empty unless both are known of every rank with samples."""
    samples, ranks = facts.trace["memory_samples"], facts.trace["ranks"]
    found: dict[int, tuple[int, int]] = {}
    for rank in np.unique(samples["rank"]).tolist():
        own = samples["rank"] == rank
        device = int(samples["device"][own][0])
        rows = np.flatnonzero(ranks["rank"] == rank)
        header = facts.trace.sources[int(ranks["source"][rows[0]])].facts.get("header", {}) if len(rows) else {}
        capacity, reserved = _capacity(header, device), int(samples["reserved"][own].max())
        if capacity is None or reserved <= 0:
            return {}
        found[rank] = (reserved, capacity)
    return found


def _capacity(header: Mapping[str, Any], device: int) -> int | None:
    """Bytes of the device's memory, as Kineto's header says."""
    properties = header.get("deviceProperties")
    for one in properties if isinstance(properties, list) else ():
        if isinstance(one, dict) and one.get("id") == device and isinstance(one.get("totalGlobalMem"), int):
            return int(one["totalGlobalMem"]) or None
    return None


ANALYZER = RunAnalyzer(
    "headroom", run, (Need("memory_samples", "torch.profiler.profile(profile_memory=True)", optional=True),)
)
