"""What a Kineto trace lacks and the execution trace of the same process has: shapes of operators, sizes of messages.

Both name a call by the id of its record function.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources import stream
from gpuscope.sources.kineto.event_arguments import CommunicationArguments, integer
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.launched_collectives import told
from gpuscope.sources.pytorch.execution_trace import Call, calls, process_of
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.naming.shaped_operators import is_shaped

AGREE = 0.9
"""Share of the calls with a number in both that must have the same name: numbers begin anew in every process."""

_PASSES_ON = when_used.pattern(
    r"(c10d|_c10d_functional)::|gloo:|nccl:|record_param_comms|aten::(detach|alias|view|_unsafe_view|reshape|as_strided|"
    r"slice|split|split_with_sizes|narrow|select|chunk|unbind|t|transpose|permute|expand|expand_as|unsqueeze|squeeze)$"
)
"""Operators that use no value of a tensor: communication itself, and other views of the same storage."""

_ATTRIBUTES = {
    "collective": "collective_name",
    "dtype": "dtype",
    "elements_in": "in_msg_nelems",
    "elements_out": "out_msg_nelems",
    "group": "pg_name",
    "description": "pg_desc",
    "group_size": "pg_size",
}
"""Fields of `CommunicationArguments` by the attribute of a `record_param_comms` node that says the same."""


def link(columns: EventColumns, builder: TraceBuilder, paths: Iterable[Path]) -> None:
    """Fill in from the execution trace of this process, where one of these files is that; without one nothing changes.

    An execution trace of the process whose calls have other names is reported as a problem.
    """
    records = np.concatenate([*columns.records, np.empty((0, 2), np.int64)])
    pids = {integer(pid) for pid, _ in columns.threads}
    for path in paths if len(records) else ():
        try:
            if process_of(stream.head(path)) not in pids:
                continue
            found = calls(path)
        except InputError:
            continue  # reading the file itself says what is wrong with it
        if _agree(columns, builder, records, found):
            _fill(columns, builder, records, found)
        else:
            builder.problem(reading.OTHER_EXECUTION_TRACE, 1, file=path.name)


def _host(columns: EventColumns, column: str) -> np.ndarray:
    return np.concatenate([own[column] for table, _, own in columns.chunks if table == "host_events"])


def _agree(columns: EventColumns, builder: TraceBuilder, records: np.ndarray, found: Mapping[int, Call]) -> bool:
    names = _host(columns, "name")
    both = [(builder.names[int(names[row])], found[number].name) for row, number in records.tolist() if number in found]
    return sum(one == other for one, other in both) >= max(AGREE * len(both), 1)


def _fill(columns: EventColumns, builder: TraceBuilder, records: np.ndarray, found: Mapping[int, Call]) -> None:
    if not columns.shaped:
        shaped = builder.names.matching(is_shaped)[_host(columns, "name")[records[:, 0]]]
        _add_shapes(builder, [(row, found[number]) for row, number in records[shaped].tolist() if number in found])
    for _, gloo, _ in columns.host_collectives:
        if gloo.dims is None and (call := found.get(integer(gloo.record))) is not None:
            gloo.dims, gloo.types = call.inputs.dims, call.inputs.types
    ranges: Sequence[CommunicationArguments] = [arguments for _, arguments in columns.communication]
    for arguments in ranges:
        if not told(arguments) and (call := found.get(integer(arguments.record))) is not None:
            for name, attribute in _ATTRIBUTES.items():
                setattr(arguments, name, call.attributes.get(attribute))
    _add_uses(columns, records, found)


def _add_uses(columns: EventColumns, records: np.ndarray, found: Mapping[int, Call]) -> None:
    """Give each collective the operator that first reads what it wrote, by the storage of its tensors."""
    at = dict(zip(records[:, 1].tolist(), _host(columns, "start")[records[:, 0]].tolist(), strict=True))
    readers: dict[int, list[int]] = {}
    for number in sorted(found.keys() & at.keys()):
        if not _PASSES_ON.match(found[number].name):
            for storage in found[number].reads:
                readers.setdefault(storage, []).append(number)
    starts = _host(columns, "start")
    called = [(row, arguments) for row, arguments, _ in columns.host_collectives] + columns.communication
    for row, arguments in called:
        own = integer(arguments.record)
        written = found[own].touches if own in found else ()
        later = [
            numbers[place]
            for storage in written
            if (numbers := readers.get(storage)) and (place := bisect_right(numbers, own)) < len(numbers)
        ]
        if later:
            first = min(later)
            arguments.first_use, arguments.first_use_after = found[first].name, at[first] - int(starts[row])


def _add_shapes(builder: TraceBuilder, linked: Sequence[tuple[int, Call]]) -> None:
    def codes(values: Iterable[object]) -> list[int]:
        return [builder.names.code(msgspec.json.encode(value).decode()) for value in values]

    inputs = [call.inputs for _, call in linked]
    builder.add(
        "shapes",
        len(linked),
        {
            "event": np.array([row for row, _ in linked], np.int64),
            "dims": codes(one.dims for one in inputs),
            "types": codes(one.types for one in inputs),
            "concrete": codes(one.concrete for one in inputs),
        },
    )
