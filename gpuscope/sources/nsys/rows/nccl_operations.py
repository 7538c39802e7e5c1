"""NCCL's operations: kernels on the device, joined to the API calls that started them.

A call outside a group launches its kernel before it returns. Inside ncclGroupStart … ncclGroupEnd the
kernels are launched by the outermost ncclGroupEnd, one for several calls where NCCL can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from gpuscope.problems import collectives
from gpuscope.sources.nsys.rows.device_work import rank_of
from gpuscope.sources.nsys.rows.event_tables import KERNEL, NVTX, RUNTIME, Events
from gpuscope.sources.nsys.rows.nvtx_payloads import Payload, is_nccl_call
from gpuscope.sources.nsys.rows.process_ranks import Ranks, RecordedRanks
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.table import Times
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

_POINT_TO_POINT = frozenset({"send", "recv", "send_recv", "all_to_all", "gather", "scatter"})
"""Operations that NCCL carries out by its SendRecv kernel."""
_PER_RANK_SIZE = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Operations whose logged size is one rank's share of the array."""


@dataclass(frozen=True)
class Call:
    """One NCCL operation as it was called."""

    op: str
    payload: Payload


@dataclass
class _Batch:
    """Calls whose kernels are launched within [start, end] of one thread."""

    start: int
    end: int
    calls: list[Call]
    kernels: list[int] = field(default_factory=list)


@dataclass
class Communicators:
    """What ncclCommInit… recorded: members by communicator, own rank by (process, communicator)."""

    members: dict[str, int] = field(default_factory=dict)
    rank: dict[tuple[int, str], int] = field(default_factory=dict)

    def recorded_ranks(self) -> RecordedRanks:
        """The ranks of the processes in the largest communicator."""
        world = max(self.members, key=lambda name: self.members[name], default="")
        rank = {process: rank for (process, name), rank in self.rank.items() if name == world}
        return RecordedRanks(rank, self.members.get(world), "NCCL communicator")


def read_communicators(events: Events, payloads: Mapping[int, Payload]) -> Communicators:
    """Communicators, from the payloads of the calls that made them."""
    found = Communicators()
    process = events[NVTX]["process"]
    for row, payload in payloads.items():
        if payload.members != NA and payload.rank != NA and payload.communicator:
            found.members[payload.communicator] = payload.members
            found.rank[int(process[row]), payload.communicator] = payload.rank
    return found


def add_collectives(
    builder: TraceBuilder,
    events: Events,
    ranks: Ranks,
    first: int,
    payloads: Mapping[int, Payload],
    communicators: Communicators,
) -> None:
    """Rows for every communication kernel; `first` is the row of the first kernel in device_events.

    Where the call is not recorded the kernel's name gives the operation, and nothing more is known.
    """
    names = builder.names
    kernels = communication_kernels(events, names)
    if not len(kernels):
        return
    calls_of = _calls_by_kernel(events, names, kernels, payloads)
    rank = rank_of(ranks, {name: column[kernels] for name, column in events[KERNEL].items()})
    columns: dict[str, list[Any]] = defaultdict(list)
    size_unknown = 0
    for place, kernel in enumerate(kernels.tolist()):
        row = _merged(_op_of(events, names, kernel), calls_of.get(kernel, []), communicators)
        size_unknown += row.pop("size_unknown")
        group = row["group"]
        row["peer_place"] = row["peer"]
        row["peer"] = _global_peer(row["peer"], group, ranks, communicators)
        columns["rank"].append(int(rank[place]))
        columns["event"].append(first + kernel)
        for name, value in row.items():
            text = name in ("op", "group", "dtype")
            columns[name].append((names.code(value) if value else NO_NAME) if text else value)
    builder.add("collectives", len(kernels), {name: np.array(values) for name, values in columns.items()})
    builder.problem(collectives.GROUP_SIZE_UNKNOWN, size_unknown)
    _add_groups(builder, ranks, communicators)


def communication_kernels(events: Events, names: NamePool) -> Times:
    """The rows of the kernels that communicate."""
    codes = events[KERNEL]["name"]
    communicating = [code for code in distinct_values(codes).tolist() if kinds.is_communication_kernel(names[code])]
    return np.flatnonzero(np.isin(codes, communicating)) if communicating else np.empty(0, np.int64)


def _calls_by_kernel(
    events: Events, names: NamePool, kernels: Times, payloads: Mapping[int, Payload]
) -> dict[int, list[Call]]:
    """The NCCL calls that each kernel carries out."""
    found: dict[int, list[Call]] = {}
    launches = _launches(events, kernels)
    for thread, batches in _batches(events, names, payloads).items():
        starts = np.array([batch.start for batch in batches], np.int64)
        for time, kernel in launches.get(thread, ()):
            place = int(np.searchsorted(starts, time, "right")) - 1
            if place >= 0 and time <= batches[place].end:
                batches[place].kernels.append(kernel)
        for batch in batches:
            found.update(_distribute(batch, {kernel: _op_of(events, names, kernel) for kernel in batch.kernels}))
    return found


def _op_of(events: Events, names: NamePool, kernel: int) -> str:
    return kinds.collective_op(names[int(events[KERNEL]["name"][kernel])])


def _launches(events: Events, kernels: Times) -> dict[int, list[tuple[int, int]]]:
    """(start of the launching call, kernel) by thread, in order of time."""
    calls, rows = events[RUNTIME], events[KERNEL]
    wanted = np.isin(calls["correlationId"], rows["correlationId"][kernels])
    where = {
        (process, correlation): (thread, start)
        for process, correlation, thread, start in zip(
            *(calls[name][wanted].tolist() for name in ("process", "correlationId", "globalTid", "start")), strict=True
        )
    }
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for kernel in kernels.tolist():
        key = (int(rows["process"][kernel]), int(rows["correlationId"][kernel]))
        if key in where:
            thread, start = where[key]
            found[thread].append((start, kernel))
    return {thread: sorted(launched) for thread, launched in found.items()}


def _batches(events: Events, names: NamePool, payloads: Mapping[int, Payload]) -> dict[int, list[_Batch]]:
    """Calls that are launched together, by thread and in order of time."""
    rows = events[NVTX]
    label = {code: names[code] for code in distinct(rows["name"])[0].tolist()}
    nccl = {code: text.removeprefix("p") for code, text in label.items() if is_nccl_call(text)}
    index = np.flatnonzero(np.isin(rows["name"], list(nccl)))
    index = index[np.argsort(rows["start"][index], kind="stable")]
    found: dict[int, list[_Batch]] = defaultdict(list)
    pending: dict[int, list[Call]] = defaultdict(list)
    depth: dict[int, int] = defaultdict(int)
    for row in index.tolist():
        thread, name = int(rows["globalTid"][row]), nccl[int(rows["name"][row])]
        start, end = int(rows["start"][row]), int(rows["end"][row])
        if name == "ncclGroupStart":
            depth[thread] += 1
        elif name == "ncclGroupEnd":
            depth[thread] = max(depth[thread] - 1, 0)
            if not depth[thread]:
                found[thread].append(_Batch(start, end, pending.pop(thread, [])))
        elif op := kinds.collective_op(name.removeprefix("nccl").replace("Bcast", "Broadcast")):
            call = Call(op, payloads.get(row, Payload()))
            if depth[thread]:
                pending[thread].append(call)
            else:
                found[thread].append(_Batch(start, end, [call]))
    return found


def _distribute(batch: _Batch, ops: Mapping[int, str]) -> dict[int, list[Call]]:
    """Which kernel of a batch carries out which of its calls; a kernel for which that is open is left out."""
    found: dict[int, list[Call]] = {}
    families = {_family(op) for op in ops.values()}
    for family in families:
        kernels = [kernel for kernel, op in ops.items() if _family(op) == family]
        calls = [call for call in batch.calls if family in ("", _family(call.op))]
        groups: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            groups[call.payload.communicator].append(call)
        if len(kernels) == 1:
            found[kernels[0]] = calls
        elif len(kernels) == len(calls):
            found.update({kernel: [call] for kernel, call in zip(kernels, calls, strict=True)})
        elif len(kernels) == len(groups):
            found.update(zip(kernels, groups.values(), strict=True))
    return found


def _family(op: str) -> str:
    return "send_recv" if op in _POINT_TO_POINT else op


def _merged(kernel_op: str, calls: Sequence[Call], communicators: Communicators) -> dict[str, Any]:
    """One row for a kernel that carries out `calls`."""
    op = calls[0].op if len({call.op for call in calls}) == 1 else kernel_op
    groups = {call.payload.communicator for call in calls}
    group = groups.pop() if len(groups) == 1 else ""
    members = communicators.members.get(group, NA)
    peers = {call.payload.peer for call in calls}
    sends = [call for call in calls if call.op == "send"]
    size, share = _total(calls), NA
    if sends and len(calls) > len(sends):
        # Both directions at once: the array is what one of them moves.
        size = max(_total(sends), _total([call for call in calls if call.op == "recv"]))
        if _is_all_to_all(calls):
            op = "all_to_all"
    elif op in _PER_RANK_SIZE and size != NA:
        size, share = (size * members, NA) if members != NA else (NA, size)
    return {
        "op": op or "unknown",
        "group": group,
        "group_size": members,
        "bytes": size,
        "share": share,
        "seq": calls[0].payload.seq if len(calls) == 1 else NA,
        "peer": peers.pop() if len(peers) == 1 and op in kinds.POINT_TO_POINT else NA,
        "dtype": calls[0].payload.dtype if calls else "",
        "size_unknown": op in _PER_RANK_SIZE and size == NA and _total(calls) != NA,
    }


def _total(calls: Iterable[Call]) -> int:
    sizes = [call.payload.bytes for call in calls]
    return NA if not sizes or NA in sizes else sum(sizes)


def _is_all_to_all(calls: Sequence[Call]) -> bool:
    """Equal sends to all ranks 0…n−1 and as many receives: only an all-to-all sends to itself as well."""
    to = sorted(call.payload.peer for call in calls if call.op == "send")
    back = sorted(call.payload.peer for call in calls if call.op == "recv")
    return len(to) > 1 and to == back == list(range(len(to)))


def _global_peer(peer: int, group: str, ranks: Ranks, communicators: Communicators) -> int:
    """A peer is recorded as its rank in the communicator: known for the job where that is the whole job, or
    where the peer's own file is this one."""
    if peer == NA:
        return NA
    for (process, name), rank in communicators.rank.items():
        if name == group and rank == peer and process in ranks.of_process:
            return ranks.of_process[process][0]
    whole_job = ranks.world_size is not None and communicators.members.get(group) == ranks.world_size
    return peer if whole_job else NA


def _add_groups(builder: TraceBuilder, ranks: Ranks, communicators: Communicators) -> None:
    code = builder.names.code
    for (process, name), place in communicators.rank.items():
        for rank in ranks.of_process.get(process, ())[:1]:
            values = {
                "rank": rank,
                "group": code(name),
                "size": communicators.members[name],
                "place": place,
                "backend": code("nccl"),
            }
            builder.add("groups", 1, values)
