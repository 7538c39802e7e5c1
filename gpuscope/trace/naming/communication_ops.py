"""Which operation a communication kernel carries out, where its name does not say.

NCCL runs an all-to-all by its SendRecv kernel, and RCCL's kernels are all `Generic`. The framework names
the operation by a range around the launch (`nccl:all_to_all`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Table
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category

_PREFIXES = ("nccl:", "rccl:")
_UNNAMED = ("send_recv", "unknown")


def name_operations(data: Mapping[str, Table], names: NamePool) -> Table:
    """`collectives`, with the operation of each launching range where the kernel's own name leaves it open."""
    table, device, host = data["collectives"], data["device_events"], data["host_events"]
    open_rows = np.isin(table["op"], [names.find(op) for op in _UNNAMED]) & (table["event"] != NA)
    open_rows &= ~table.known("group")  # arguments were recorded: they name the operation
    rows = np.flatnonzero(open_rows)
    rows = rows[device["launch"][table["event"][rows]] != NA]
    named = names.matching(lambda name: name.startswith(_PREFIXES))[host["name"]]
    named &= host["category"] == Category.ANNOTATION
    if not len(rows) or not bool(named.any()):
        return table
    launch = device["launch"][table["event"][rows]]
    around = innermost(host, named, host["thread"][launch], host["start"][launch])
    op = table["op"].copy()
    for row, annotation in zip(rows.tolist(), around.tolist(), strict=True):
        op_name = kinds.collective_op(names[int(host["name"][annotation])].split(":", 1)[1]) if annotation != NA else ""
        if op_name:
            op[row] = names.code(op_name)
    return Table(table.schema, {**table.columns, "op": op})
