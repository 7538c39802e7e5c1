"""Rows of `collectives` from what a Kineto trace records of their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gpuscope.sources.kineto.event_arguments import CommunicationArguments, GlooArguments, as_list
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming import kinds
from gpuscope.trace.naming.dtypes import item_bytes, total_bytes
from gpuscope.trace.schema import NA


def add_collectives(builder: TraceBuilder, rank: int, found: Iterable[tuple[int, CommunicationArguments, str]]) -> None:
    """Rows for communication kernels: (row in device_events, arguments, kernel name) each."""
    _add(builder, rank, [{"event": row, **_columns(arguments, kernel)} for row, arguments, kernel in found])


def _columns(arguments: CommunicationArguments, name: str) -> dict[str, Any]:
    """What arguments say of the collective named `name`, by column."""
    op = kinds.collective_op(str(arguments.collective)) if arguments.collective else ""
    sizes = [size for size in (arguments.elements_in, arguments.elements_out, arguments.count) if isinstance(size, int)]
    item = item_bytes(str(arguments.dtype)) if arguments.dtype else NA
    return {
        "op": op or kinds.collective_op(name) or "unknown",
        "group": arguments.group,
        "group_description": arguments.description,
        "group_size": arguments.group_size,
        "group_ranks": _ranks(arguments.ranks),
        "seq": arguments.seq,
        # The larger of input and output is the whole array for every operation.
        "bytes": max(sizes) * item if sizes and item != NA else NA,
        "received": _received(op, arguments, item),
        "dtype": arguments.dtype,
        "peer": arguments.destination if op == "send" else arguments.source if op == "recv" else None,
        **_use(arguments),
    }


def _use(arguments: CommunicationArguments) -> dict[str, Any]:
    return {"first_use": arguments.first_use, "first_use_after": arguments.first_use_after}


def _received(op: str, arguments: CommunicationArguments, item: int) -> int:
    """Bytes that a rank receives in an all-to-all; uneven where experts have uneven numbers of tokens."""
    elements = arguments.elements_out
    return elements * item if op == "all_to_all" and isinstance(elements, int) and item != NA else NA


def add_gloo_collectives(
    builder: TraceBuilder, rank: int, found: Iterable[tuple[int, GlooArguments, str]], info: dict[str, Any]
) -> None:
    """Rows for `gloo:<op>` annotations: (row in host_events, inputs, name) each.

    gloo names neither group nor sequence, and a reduce-scatter appears as the all-reduce that carries it out;
    where gpuscope recorded, the annotation's arguments name it.
    """
    groups = [group for group in as_list(info.get("pg_config")) if isinstance(group, dict)]
    only = groups[0] if len(groups) == 1 else {}
    rows: list[dict[str, Any]] = []
    for row, arguments, name in found:
        if arguments.collective:
            rows.append({"event": NA, "host_event": row, **_columns(arguments, name)})
            continue
        op = kinds.collective_op(name.removeprefix("gloo:"))
        size = _input_bytes(arguments)
        members = only.get("pg_size") or info.get("world_size")
        if op == "all_gather" and size != NA and isinstance(members, int):
            size *= members
        rows.append(
            {
                "event": NA,
                "host_event": row,
                "op": op or "unknown",
                "group": only.get("pg_name"),
                "group_description": only.get("pg_desc"),
                "group_size": members,
                "group_ranks": _ranks(only.get("ranks")),
                "bytes": size,
                "dtype": arguments.types[0] if isinstance(arguments.types, list) and arguments.types else None,
                **_use(arguments),
            }
        )
    _add(builder, rank, rows)


_NAMES = ("op", "group", "group_description", "group_ranks", "dtype", "first_use")


def _add(builder: TraceBuilder, rank: int, rows: Sequence[dict[str, Any]]) -> None:
    """Add rows, each given as values by column; what one does not give is absent there."""
    code = builder.names.code
    found: dict[str, list[int]] = {name: [] for name in dict.fromkeys(name for row in rows for name in row)}
    for row in rows:
        for name, column in found.items():
            value = row.get(name)
            if name in _NAMES:
                column.append(NO_NAME if value is None else code(str(value)))
            else:
                column.append(value if isinstance(value, int) and (abs(value) < 2**62 or value == NA) else NA)
    builder.add("collectives", len(rows), {"rank": rank, **found})


def _ranks(value: Any) -> str | None:
    """Ranks as «0,1,2»; a list that the profiler elided with … is not a list of ranks."""
    if isinstance(value, str):
        if "..." in value or "…" in value:
            return None
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
    return ",".join(map(str, value)) if isinstance(value, list) and value else None


def _input_bytes(arguments: GlooArguments) -> int:
    return total_bytes(arguments.dims, arguments.types) or NA
