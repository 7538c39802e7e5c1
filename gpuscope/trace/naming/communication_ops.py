"""What the range around a launch says of a collective whose kernel carries no arguments: its operation and size.

NCCL runs an all-to-all by its SendRecv kernel, and RCCL's kernels are all `Generic`. The framework names
the operation by a range around the launch (`nccl:all_to_all`), and where shapes are recorded the range's input is what
is sent (`RECORD_PARAM_COMMS` and `ProcessGroupNCCL::collective` of older torch, which gives kernels no arguments).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.naming.dtypes import total_bytes
from gpuscope.trace.naming.shaped_operators import NCCL_RANGES
from gpuscope.trace.schema import NA, Category

_SENT = ("send", "recv", "send_recv", "all_to_all", "gather", "scatter")
"""Operations that NCCL carries out by its SendRecv kernel."""
_WHOLE_INPUT = ("all_reduce", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "recv")
"""Operations whose input is the whole array; a gather's is one rank's share."""


def from_launching_ranges(data: Mapping[str, Table], names: NamePool) -> Table:
    """`collectives`, with the operation where a kernel's own name leaves it open, size and type, of the range that
    launched it. Rows that have arguments of their own stay."""
    table, device, host = data["collectives"], data["device_events"], data["host_events"]
    rows = np.flatnonzero((table["event"] != NA) & ~table.known("group"))
    rows = rows[device.at("launch", table["event"][rows]) != NA]
    if not len(rows):
        return table
    named = names.matching(lambda name: name.startswith(NCCL_RANGES))[host["name"]]
    named &= host["category"] == Category.ANNOTATION
    if not bool(named.any()):
        return table
    launch = device.at("launch", table["event"][rows])
    around = innermost(host, named, host["thread"][launch], host["start"][launch])
    rows, around = rows[around != NA], around[around != NA]
    op, agree = table["op"].copy(), np.zeros(len(rows), np.bool_)
    for place, (row, annotation) in enumerate(zip(rows.tolist(), around.tolist(), strict=True)):
        own = names[int(op[row])]
        found = kinds.collective_op(names[int(host["name"][annotation])].split(":", 1)[1])
        if found and (own == "unknown" or (own == "send_recv" and found in _SENT)):
            op[row] = names.code(found)
        agree[place] = names[int(op[row])] == found
    named_rows = Table(table.schema, {**table.columns, "op": op})
    return _with_sizes(named_rows, data["shapes"], names, rows[agree], around[agree])


def _with_sizes(table: Table, shapes: Table, names: NamePool, rows: Times, ranges: Times) -> Table:
    """Sizes in bytes and types of `rows` from the inputs of their `ranges`, each of one kernel alone."""
    known = np.isin(shapes["event"], ranges)
    place = dict(zip(shapes["event"][known].tolist(), np.flatnonzero(known).tolist(), strict=True))
    ranges_of, times = np.unique(ranges, return_counts=True)
    alone = set(ranges_of[times == 1].tolist())
    nbytes, dtype = table["bytes"].copy(), table["dtype"].copy()
    for row, event in zip(rows.tolist(), ranges.tolist(), strict=True):
        shape = place.get(event)
        if shape is None or event not in alone or nbytes[row] != NA or names[int(table["op"][row])] not in _WHOLE_INPUT:
            continue
        dims, types = (_listed(int(shapes[column][shape]), names) for column in ("dims", "types"))
        nbytes[row] = total_bytes(dims, types) or NA
        if nbytes[row] != NA and dtype[row] == NO_NAME:
            dtype[row] = names.code(str(types[0]))
    return Table(table.schema, {**table.columns, "bytes": nbytes, "dtype": dtype})


def _listed(code: int, names: NamePool) -> list[Any]:
    """A recorded list; empty where there is none, or what is recorded is no list."""
    try:
        found = json.loads(names[code]) if code != NO_NAME else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []
