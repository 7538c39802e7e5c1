"""JSON lines of an NCCL profiler plugin: collectives with their algorithm, timed by their kernels.

The plugin times on the host: a collective's own event ends when it has been enqueued, and its channels' events
when a proxy thread comes to see them. So only CUPTI's kernels count as times, where each GPU has one per collective.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.problems import job, reading
from gpuscope.sources import source as lines
from gpuscope.sources.nccl import NCCL_ALONE
from gpuscope.sources.source import Files, ReadOptions, Role, Source, integer
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.kinds import collective_op, is_communication_kernel
from gpuscope.trace.schema import NA, NS_PER_US

_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}
_WHOLE = {"all_gather", "reduce_scatter", "all_to_all"}
"""NCCL counts these per rank, nccl-tests the whole array."""
Event = Mapping[str, Any]


class ProfilerSource(Source):
    """Reads `communicators`, `choices` and `measurements`."""

    name = "nccl-profiler"
    files = Files(Role.RECORD, (".jsonl",), alone=NCCL_ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """A first line that starts the profiler, or lines with events of it."""
        if not path.is_file() or not head.lstrip().startswith(b"{"):
            return False
        return lines.first_object(head).get("type") == "ProfilerLifecycle" or b'"ncclProfileColl"' in head

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a file. Raises `InputError` where it holds no event."""
        by_type: dict[str, list[Event]] = {"ProfilerLifecycle": [], "ncclProfileColl": [], "KERNEL": []}
        lost = events = 0
        for record in lines.read_objects(path, options, builder):
            if record is None:
                lost += 1
                continue
            events += 1
            of_type = by_type.get(str(record.get("type")))
            if of_type is not None and isinstance(record.get("details"), dict):
                of_type.append(record)
            else:
                lost += of_type is not None
        if not events:
            raise InputError(f"{path}: contains no readable event of a profiler plugin")
        source = builder.source(path, self.name, "", events, {})
        sizes = _communicators(builder, by_type["ProfilerLifecycle"])
        incomplete = _collectives(builder, source, by_type["ncclProfileColl"], by_type["KERNEL"], sizes)
        builder.problem(reading.RECORD_UNREADABLE, lost, file=path.name, what="lines")
        builder.problem(job.COLLECTIVE_UNTIMED, incomplete, file=path.name)


def _communicators(builder: TraceBuilder, started: list[Event]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for event in started:
        size, rank = integer(event["details"].get("nranks")), integer(event.get("rank"))
        name = str(event.get("commId", ""))
        if event.get("func") == "ProfilerInit" and size and rank is not None:
            sizes[name] = size
            builder.add("communicators", 1, {"rank": rank, "communicator": builder.names.code(name), "size": size})
    return sizes


def _collectives(
    builder: TraceBuilder, source: int, calls: list[Event], kernels: list[Event], sizes: Mapping[str, int]
) -> int:
    code = builder.names.code
    kernel_of = _kernels_of(calls, kernels)
    chosen: Counter[tuple[str, int, str, str, int]] = Counter()
    incomplete = 0
    for number, event in enumerate(calls):
        details = event["details"]
        op, members = collective_op(str(details.get("func"))), sizes.get(str(event.get("commId")), 0)
        size = _size(details, op, members)
        if size is None:
            incomplete += 1
            continue
        channels = integer(details.get("channels"))
        algorithm, protocol = str(details.get("algo", "")).lower(), str(details.get("proto", "")).lower()
        chosen[op, size, algorithm, protocol, NA if channels is None else channels] += 1
        dur, rank = kernel_of.get(number), integer(event.get("rank"))
        if dur is None or not members:
            incomplete += 1
            continue
        row = {
            "rank": NA if rank is None else rank,
            "tool": code("profiler-plugin"),
            "op": code(op),
            "group_size": members,
            "bytes": size,
            "dur": dur,
            "count": 1,
            "variant": code("kernel"),
            "source": source,
            "communicator": code(str(event.get("commId", ""))),
        }
        builder.add("measurements", 1, row)
    for (op, size, algorithm, protocol, channels), count in chosen.items():
        names = {"op": code(op), "algorithm": code(algorithm), "protocol": code(protocol)}
        builder.add(
            "choices",
            1,
            {**names, "bytes": size, "channels": channels, "ranks": count, "count": count, "source": source},
        )
    return incomplete


def _kernels_of(calls: list[Event], kernels: list[Event]) -> dict[int, int]:
    """Time in ns of the kernel behind each call, by its number; none of a GPU whose counts differ."""
    called: dict[str, list[int]] = defaultdict(list)
    for number, event in enumerate(calls):
        called[str(event.get("gpuUuid"))].append(number)
    ran: dict[str, list[int | None]] = defaultdict(list)
    for event in kernels:
        if is_communication_kernel(_demangled(str(event.get("name")))):
            duration = event.get("duration")
            ran[str(event.get("gpuUuid"))].append(
                integer(duration * NS_PER_US) if isinstance(duration, int | float) else None
            )
    return {
        number: dur
        for gpu, numbers in called.items()
        if len(numbers) == len(ran[gpu])
        for number, dur in zip(numbers, ran[gpu], strict=True)
        if dur is not None
    }


def _demangled(name: str) -> str:
    """The function's own name out of `_Z39ncclDevKernel_…`."""
    match = re.match(r"_Z\d+(\w+)", name)
    return match[1] if match else name


def _size(details: Mapping[str, Any], op: str, members: int) -> int | None:
    count, dtype = integer(details.get("count")), str(details.get("dtype", ""))
    width = next((size for bits, size in _BYTES.items() if dtype.endswith(bits)), 1 if "8e" in dtype else None)
    if count is None or width is None or not op:
        return None
    return integer(count * width * (members if op in _WHOLE and members else 1))


SOURCE = ProfilerSource()
