"""Several Traces of one run become one, with names, threads and row references carried over."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from gpuscope.problems.problem import merged
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.table import Array, Table, stored
from gpuscope.trace.schema import NA, SCHEMAS, TableSchema
from gpuscope.trace.trace import Trace


def merge(traces: Sequence[Trace], ranks: Collection[int] | None = None) -> Trace:
    """One Trace of all ranks (or only `ranks`), rows in each table's declared order.

    Ranks of different traces must be distinct.
    """
    if len(traces) == 1 and (ranks is None or set(traces[0].ranks) <= set(ranks)):
        return traces[0]
    names = NamePool()
    recode = [names.codes(trace.names.names, len(trace.names)) for trace in traces]
    ordered = sorted(range(len(traces)), key=lambda i: min(traces[i].ranks, default=0))
    data = {name: _concatenate(schema, traces, recode, ordered) for name, schema in SCHEMAS.items()}
    problems = merged([problem for index in ordered for problem in traces[index].problems])
    sources = [source for index in ordered for source in traces[index].sources]
    whole = Trace(data, names, sources, problems)
    if ranks is not None:
        whole = whole.select_ranks(ranks)
    whole.check()
    return whole


def _concatenate(schema: TableSchema, traces: Sequence[Trace], recode: list[Array], ordered: list[int]) -> Table:
    columns: dict[str, list[Array]] = {column.name: [] for column in schema.columns}
    offset = dict.fromkeys((*SCHEMAS, "sources"), 0)
    for index in ordered:
        trace = traces[index]
        for column in schema.columns:
            values = trace[schema.name][column.name]
            target = column.refs or ("sources" if column.name == "source" else None)
            if column.dtype == "name" and len(recode[index]):
                values = np.where(values == NO_NAME, NO_NAME, recode[index][values])
            elif target is not None:
                values = np.where(values == NA, NA, values + offset[target])
            columns[column.name].append(values)
        for name in SCHEMAS:
            offset[name] += len(trace[name])
        offset["sources"] += len(trace.sources)
    return Table(schema, {c.name: stored(np.concatenate(columns.pop(c.name)), c) for c in schema.columns})
