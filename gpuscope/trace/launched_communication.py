"""Kernels that communicate by what launched them, where their own names say nothing: c10d's and a library's operators.

Only what an operator of communication launches itself counts: the copies and additions that it asks the framework for
have operators of their own around them, or names that say what they compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import numpy as np

from gpuscope import when_used
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NamePool, PerName
from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.naming.kernel_categories import OTHER, kernel_category
from gpuscope.trace.naming.kernel_names import words
from gpuscope.trace.schema import NA, SCHEMAS, Category, Kind

MOSTLY = 0.9
"""Share of a kernel's launches that an operator of communication must have made."""
_OPERATOR = when_used.pattern(r"^(c10d::|symm_mem::|c10d_functional::|_c10d_functional::|record_param_comms$|nccl:)")
_LIBRARY = when_used.pattern(
    r"(?i)(?<![a-z0-9])(deep_?ep|hybrid_ep|uccl|pplx\w*|mori|nvshmem\w*|rocshmem|mscclpp|flux_comm)(?![a-z0-9])"
)
_EXCHANGE = when_used.pattern(
    r"_(dispatch|combine|notify|barrier|send|recv|put|get|a2a|all_?to_?all|all_?gather|all_?reduce|reduce_?scatter)_"
)
_LOCAL = when_used.pattern(r"_(wait|wait_tensor|layout|config|init|create|empty|buffer_size|set_\w+)_")


@cache
def launches_communication(name: str) -> bool:
    """Whether an operator, range or Python function is one of a communication library: `c10d::allreduce_`,
    `symm_mem::one_shot_all_reduce`, `deep_ep/buffer.py(301): dispatch`."""
    if _OPERATOR.match(name):
        return not _LOCAL.search(words(name))
    library = _LIBRARY.search(name)
    if library is None:
        return False
    own = words(name.rpartition("): ")[2] if "): " in name else name)
    return _EXCHANGE.search(own) is not None and not _LOCAL.search(own)


def with_launched(data: Mapping[str, Table], names: NamePool) -> tuple[Table, Table]:
    """`device_events` with the kinds that launching operators tell, and `collectives` with a row for each."""
    device, host, table = data["device_events"], data["host_events"], data["collectives"]
    around = names.matching(launches_communication)[host["name"]]
    around &= np.isin(host["category"], (Category.OP, Category.ANNOTATION, Category.PYTHON))
    if not bool(around.any()):
        return device, table
    # Without a device the operators themselves stand there, told apart already.
    on_device = device.known("launch") & device.known("correlation")
    rows = np.flatnonzero((device["kind"] == Kind.COMPUTE) & on_device)
    rows = rows[PerName(names, _says_nothing)(device["name"][rows]).astype(np.bool_)]
    if not len(rows):
        return device, table
    launch = device.at("launch", rows)
    inside = innermost(host, around, host["thread"][launch], host["start"][launch]) != NA
    direct = np.full(len(rows), NA, np.int64)
    ranges = np.isin(host["category"], (Category.OP, Category.ANNOTATION, Category.PYTHON))
    at = launch[inside]
    direct[inside] = innermost(host, ranges, host["thread"][at], host["start"][at])
    by_library = (direct != NA) & around[np.maximum(direct, 0)]
    chosen = np.zeros(len(rows), np.bool_)
    for code in distinct_values(device["name"][rows[by_library]]).tolist():
        own = device["name"][rows] == code
        if float(by_library[own].mean()) >= MOSTLY:
            chosen |= own & by_library
    if not bool(chosen.any()):
        return device, table
    kind = device["kind"].copy()
    kind[rows[chosen]] = Kind.COMMUNICATION
    found = Table(device.schema, {**device.columns, "kind": kind})
    return found, _with_rows(found, table, names, rows[chosen], host["name"][direct[chosen]])


def _says_nothing(name: str) -> bool:
    return not kinds.is_communication_kernel(name) and kernel_category(name) in (OTHER, "moe")


def _with_rows(device: Table, table: Table, names: NamePool, rows: Times, launcher: Times) -> Table:
    """`collectives` with these device events, in the declared order."""
    ops = [
        _operation(names[int(kernel)], names[int(by)])
        for kernel, by in zip(device["name"][rows], launcher, strict=True)
    ]
    added = Table.build(
        SCHEMAS["collectives"],
        len(rows),
        {
            "rank": device["rank"][rows],
            "event": rows,
            "start": device["start"][rows],
            "end": device["end"][rows],
            "op": [names.code(op) for op in ops],
        },
    )
    whole = {name: np.concatenate((table[name], added[name])) for name in table.columns}
    order = np.lexsort((whole["start"], whole["rank"]))
    return Table(table.schema, {name: column[order] for name, column in whole.items()})


def _operation(kernel: str, launcher: str) -> str:
    for name in (kernel, launcher):
        if op := kinds.collective_op(name.rpartition("): ")[2]):
            return op
        if re.search(r"_(dispatch|combine|notify)_", words(name)):
            return "all_to_all"
    return "unknown"
