"""What decides the role of each step of a rank, read from its trace (definitions: «Steps»)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.step_roles import StepFacts
from gpuscope.trace.columns.name_pool import NO_NAME, PerName
from gpuscope.trace.columns.table import Mask, Times, rows_of_rank, rows_where
from gpuscope.trace.intervals import measure_within, union
from gpuscope.trace.naming import kinds
from gpuscope.trace.naming.kernel_categories import OPTIMIZER, is_optimizer_step, kernel_category
from gpuscope.trace.schema import Kind
from gpuscope.trace.trace import Lane, Trace

UPDATE, REDUCTION = "update", "reduction"
"""What training needs: the optimizer's step, and the gradients' collectives."""
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def step_facts(trace: Trace, lane: Lane, numbers: Sequence[int], start: Times, end: Times) -> tuple[StepFacts, ...]:
    """Of each step of a lane by its number, which begin and end at these instants (ns, shape (steps,))."""
    phases = phases_of(trace, lane.rank)
    compiling = _compiling(trace, lane.rank, start, end)
    held = {UPDATE: _updates(trace, lane), REDUCTION: _reductions(trace, lane.rank)}
    inside = {name: np.searchsorted(at, end) > np.searchsorted(at, start) for name, at in held.items()}
    return tuple(
        StepFacts(
            int(end[place] - start[place]),
            compiling=float(compiling[place]),
            needed=frozenset(name for name, holds in inside.items() if holds[place]),
            phase=phases.get(numbers[place], ""),
        )
        for place in range(len(start))
    )


def phases_of(trace: Trace, rank: int) -> dict[int, str]:
    """The phases of a server's steps by their numbers; those without one are left out."""
    table = trace["steps"]
    own = np.flatnonzero((table["rank"] == rank) & (table["phase"] != NO_NAME))
    codes = table["phase"][own].tolist()
    return {step: trace.names[code] for step, code in zip(table["step"][own].tolist(), codes, strict=True)}


def _compiling(trace: Trace, rank: int, start: Times, end: Times) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Share of each step that host threads of the rank spent compiling, loading modules or autotuning."""
    rows = _named(trace, rank, trace.names.matching(kinds.is_compilation))
    host = trace["host_events"]
    spent = measure_within(union(host["start"][rows], host["end"][rows]), start, end)
    return np.asarray(spent / np.maximum(end - start, 1))


def _updates(trace: Trace, lane: Lane) -> Times:
    """Starts of the optimizer's kernels, ascending; of its ranges where no kernel tells by its name."""
    device = trace["device_events"]
    kernels = lane.rows[device.at("kind", lane.rows) == Kind.COMPUTE]
    updates = PerName(trace.names, lambda name: kernel_category(name) == OPTIMIZER)
    own = kernels[updates(device.at("name", kernels)).astype(np.bool_)]
    found = device["start"][own]
    if not len(found):
        found = trace["host_events"]["start"][_named(trace, lane.rank, trace.names.matching(is_optimizer_step))]
    return np.sort(found)


def _reductions(trace: Trace, rank: int) -> Times:
    """Starts of the collectives that may reduce gradients, ascending."""
    table = trace["collectives"]
    codes = [trace.names.find(name) for name in _REDUCING]
    return np.sort(table["start"][(table["rank"] == rank) & np.isin(table["op"], codes)])


def _named(trace: Trace, rank: int, names: Mask) -> Times:
    host = trace["host_events"]
    return rows_where(*rows_of_rank(host, rank), lambda block: names[host["name"][block]])
