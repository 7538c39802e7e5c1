"""When ranges of an optimizer's step begin to update: behind the forward and backward that a closure runs inside them.

Lightning, LBFGS and SAM call `optimizer.step(closure)`: the range then holds the whole step, of which only what follows
the last backward pass is the optimizer's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Literal

import numpy as np

from gpuscope import when_used
from gpuscope.trace import kinds
from gpuscope.trace.kernel_categories import ENGINE, OTHER, is_optimizer_step, kernel_category, words
from gpuscope.trace.launch_links import innermost, is_message_op
from gpuscope.trace.name_pool import NamePool, PerName
from gpuscope.trace.schema import NA, SCHEMAS, Category, Kind
from gpuscope.trace.table import Mask, Table, Times, among, distinct_values, joined, rows_of_rank, rows_where
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Sends and receives inside a collective's or a barrier's own call: they are part of it, no messages of the program.
#
# gloo's monitored barrier is made of messages, and `TORCH_DISTRIBUTED_DEBUG=DETAIL` puts one, with two gathers of what
# each rank is about to call, in front of every collective. NCCL runs an all-to-all by its SendRecv kernel.

_CALL = "c10d::"
_GATHERS = 2
"""DETAIL gathers the sizes of what the ranks call, then that itself (torch's ProcessGroupWrapper.cpp)."""


def is_debug_check(name: str) -> bool:
    """Whether a call whose row is a barrier made of messages is another one than a barrier: DETAIL checks it first."""
    return name.startswith(_CALL) and not name.startswith((f"{_CALL}barrier", f"{_CALL}monitored_barrier"))


def as_barriers(data: dict[str, Table], names: NamePool, host_is_device: set[int]) -> None:
    """One barrier for each call that is made of messages, in `collectives`; its messages and gathers go.

    Such a call returns only when all ranks have come: on a rank without a device (`host_is_device`) its thread is
    blocked meanwhile, and its call stands for the communication.
    """
    table, host = data["collectives"], data["host_events"]
    rows = np.flatnonzero(table["host_event"] != NA)
    rows = rows[names.matching(kinds.POINT_TO_POINT.__contains__)[table["op"][rows]]]
    if not len(rows):
        return
    messages = table["host_event"][rows]
    calls = _around(host, names, host["thread"][messages], host["start"][messages])
    rows, calls = rows[calls != NA], calls[calls != NA]
    if not len(rows):
        return
    inside = np.union1d(rows, _gathers(table, host, names, calls))
    kept: Mask = np.ones(len(table), np.bool_)
    kept[inside] = False
    _, first = np.unique(calls, return_index=True)
    whole = table.take(rows[first])
    group = {name: whole[name] for name in ("rank", "group", "group_description", "group_size", "group_ranks")}
    values = {**group, "event": NA, "host_event": calls[first], "op": names.code("barrier")}
    made = Table.build(table.schema, len(first), values)
    data["collectives"] = joined([table.take(np.flatnonzero(kept)), made])
    category = host["category"].copy()
    category[table["host_event"][inside]] = Category.ANNOTATION
    on_host = np.isin(host["rank"][calls], sorted(host_is_device))
    category[calls[on_host]] = Category.COMMUNICATION
    data["host_events"] = Table(host.schema, {**host.columns, "category": category})


def named_by_calls(data: dict[str, Table], names: NamePool) -> Table:
    """`collectives`, with the operation of the collective call that launched a kernel for sends and receives."""
    table, device, host = data["collectives"], data["device_events"], data["host_events"]
    message = names.matching(kinds.POINT_TO_POINT.__contains__)[table["op"]]
    rows = np.flatnonzero(message & (table["event"] != NA))
    rows = rows[device.at("launch", table["event"][rows]) != NA]
    if not len(rows):
        return table
    launch = device.at("launch", table["event"][rows])
    calls = _around(host, names, host["thread"][launch], host["start"][launch])
    rows, calls = rows[calls != NA], calls[calls != NA]
    op = table["op"].copy()
    for row, code in zip(rows.tolist(), host["name"][calls].tolist(), strict=True):
        found = kinds.collective_op(names[code].removeprefix(_CALL))
        op[row] = names.code(found) if found else op[row]
    return Table(table.schema, {**table.columns, "op": op})


def _around(host: Table, names: NamePool, thread: Times, at: Times) -> Times:
    """The call of a collective that is under way on each thread at that instant; NA where there is none, or it is a
    send or a receive itself."""
    called = names.matching(lambda name: name.startswith(_CALL))
    issues = names.matching(is_message_op)
    found = innermost(host, called[host["name"]] & (host["category"] == Category.OP), thread, at)
    return np.where((found == NA) | issues[host["name"][np.maximum(found, 0)]], NA, found)


def _gathers(table: Table, host: Table, names: NamePool, calls: Times) -> Times:
    """Rows of the gathers by which DETAIL compares what the ranks call: they begin and end within the call."""
    gathers = np.flatnonzero((table["op"] == names.find("all_gather")) & (table["host_event"] != NA))
    gathers = gathers[np.argsort(host["start"][table["host_event"][gathers]], kind="stable")]
    events = table["host_event"][gathers]
    start, end, rank = host["start"][events], host["end"][events], host["rank"][events]
    found = [gathers[:0]]
    for call in distinct_values(calls).tolist():
        if is_debug_check(names[int(host["name"][call])]) or names[int(host["name"][call])].startswith("c10d::barrier"):
            low, high = np.searchsorted(start, [host["start"][call], host["end"][call]])
            own = np.arange(low, high)
            own = own[(rank[own] == host["rank"][call]) & (end[own] <= host["end"][call])]
            found.append(gathers[own[:_GATHERS]])
    return np.concatenate(found)


# Kernels that communicate by what launched them, where their own names say nothing: c10d's and a library's operators.
#
# Only what an operator of communication launches itself counts: the copies and additions that it asks the framework for
# have operators of their own around them, or names that say what they compute.

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


# Totals that a file gives itself (a vendor's own analysis of the same recording), held against those read from it.
#
# They agree to a fraction of a percent where every event is read as what it is. Where they don't, some kind of event is
# not understood, and all that rests on the breakdown is in doubt.

TOLERANCE = 0.02
"""Share of the recording: beyond it a difference is told. Rounding, and what lies at the edges, is below."""

CONTRADICTS = 0.1
"""Share of the recording: from it on the breakdown decides nothing (definitions: «Ascend»)."""

Part = Literal["compute", "communication", "exposed_communication"]


@dataclass(frozen=True)
class RecordedTotal:
    """ns of a part of a rank's recording, as `by` says."""

    rank: int
    part: Part
    ns: int
    by: str


@dataclass(frozen=True)
class Difference:
    """Where the two disagree beyond `TOLERANCE` of the window; ns."""

    total: RecordedTotal
    own: int
    window: int

    @property
    def contradicts(self) -> bool:
        """Whether the two are so far apart that no verdict can rest on either."""
        return abs(self.total.ns - self.own) >= CONTRADICTS * self.window


def differences(trace: Trace, totals: Iterable[RecordedTotal]) -> Iterator[Difference]:
    """Those of ranks on one device; of several a total says nothing."""
    lanes = {rank: [lane for lane in trace.lanes() if lane.rank == rank] for rank in trace.ranks}
    for total in totals:
        own = lanes.get(total.rank, [])
        if len(own) > 1:
            continue
        parts = trace.breakdown(own[0].rows) if own else None
        read = 0 if parts is None else int(getattr(parts, total.part))
        window = max(0 if parts is None else parts.window, total.ns)
        if abs(total.ns - read) > TOLERANCE * window:
            yield Difference(total, read, window)


def _is_backward(name: str) -> bool:
    return name.startswith(ENGINE) or (kinds.phase(name) in ("forward", "backward") and not is_optimizer_step(name))


def update_begins(host: Table, names: NamePool, rows: Times) -> Times:
    """For each of these host events, ranges of optimizers' steps: its start, or the end of the last forward or backward
    of its rank that lies within it, on whichever thread."""
    begins = host["start"][rows].copy()
    training = names.matching(_is_backward)
    if not len(rows) or not training.any():
        return begins
    for rank in distinct_values(host["rank"][rows]).tolist():
        inner = rows_where(
            *rows_of_rank(host, rank),
            lambda part: (
                training[host["name"][part]] & among(host["category"][part], (Category.OP, Category.ANNOTATION))
            ),
        )
        if not len(inner):
            continue
        start, end = host["start"][inner], host["end"][inner]
        for place in np.flatnonzero(host["rank"][rows] == rank).tolist():
            begin, until = int(host["start"][rows[place]]), int(host["end"][rows[place]])
            low, high = np.searchsorted(start, [begin, until])
            ends = end[low:high]
            ends = ends[ends <= until]
            if len(ends):
                begins[place] = int(ends.max())
    return begins
