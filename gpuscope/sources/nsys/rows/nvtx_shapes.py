"""Input shapes of operators, where `emit_nvtx(record_shapes=True)` wrote them into the range's text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.sources.nsys.rows.event_tables import NVTX, Events
from gpuscope.sources.nsys.rows.host_events import HostRows
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming.shaped_operators import is_shaped

_SIZES = when_used.pattern(r", sizes = (\[.*?\])(?:, input_op_ids = |$)", re.DOTALL)


def add_shapes(builder: TraceBuilder, tables: Tables, events: Events, placed: Sequence[HostRows]) -> None:
    """Rows of `shapes` for the operators of which an analysis uses them."""
    names = builder.names
    shaped = [code for code in events.operators.tolist() if is_shaped(names[code])]
    if not shaped:
        return
    for part in placed:
        index = np.flatnonzero(np.isin(part.rows["name"], shaped))
        mask = np.zeros(events.nvtx_rows, np.bool_)
        mask[part.rows["row"][index]] = True
        found = [_SIZES.search(text or "") for text in tables.texts(NVTX, "text", mask)]
        dims = np.array([names.code(match[1]) if match else NO_NAME for match in found], np.int32)
        known = dims != NO_NAME
        # Rows that `part` holds stand in the order of the table, as the texts do.
        builder.add("shapes", int(known.sum()), {"event": (part.first + index)[known], "dims": dims[known]})
