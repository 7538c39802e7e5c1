"""The operations of all ranks of a pipeline job on one clock, each with its pipeline."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap, is_timed
from gpuscope.analyzers.step_graph.dependencies import BACKWARD, FORWARD, WEIGHT
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace


def of_recorded_ranks(trace: Trace) -> bool:
    """Whether the operations are a pipeline's, known from ranges or messages and not from timers of the job."""
    table = trace["operations"]
    return not is_timed(trace) and bool(((table["global_chunk"] != NA) | (table["stage"] == NA)).any())


def computations_alone(trace: Trace, operations: Table) -> bool:
    """Whether a job's timers know where each computation belongs, and nothing of messages between the stages."""
    computes = np.isin(operations["op"], [trace.names.find(op) for op in (FORWARD, BACKWARD, WEIGHT)])
    return is_timed(trace) and bool((computes & (operations["global_chunk"] != NA)).all())


def assembled(trace: Trace, stages: StageMap, clock: Clocks) -> Table:
    """`operations` with `dp_rank` and `stage` as the map says, times on the clock of the lowest rank."""
    table = trace["operations"]
    if not of_recorded_ranks(trace):
        return table
    table = table.take(np.isin(table["rank"], list(stages.places)))
    ranks = table["rank"].tolist()
    stage = np.array([stages.places[rank][1] for rank in ranks], np.int64)
    by_messages = (table["stage"] == NA) & (table["micro_batch"] != NA)
    columns = {
        "dp_rank": np.array([stages.places[rank][0] for rank in ranks], np.int64),
        "stage": stage,
        "global_chunk": np.where(by_messages, stage, table["global_chunk"]),
        "start": clock.common(table["rank"], table["start"]),
        "end": clock.common(table["rank"], table["end"]),
    }
    return Table(table.schema, {**table.columns, **columns})
