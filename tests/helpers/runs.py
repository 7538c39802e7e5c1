"""Small runs written by hand as Traces of several ranks, without files; times in ns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace

Row = dict[str, Any]


def coll(
    rank: int,
    start: int,
    end: int,
    group: str = "g:0,1",
    op: str = "all_reduce",
    seq: int = NA,
    nbytes: int = 64,
    peer: int = NA,
) -> Row:
    """One collective of one rank; `group` is «name:ranks»."""
    return {
        "rank": rank,
        "start": start,
        "end": end,
        "group": group,
        "op": op,
        "seq": seq,
        "bytes": nbytes,
        "peer": peer,
    }


def run(rows: Sequence[Row], hosts: Sequence[str] = (), world: int | None = None, ranks: Sequence[int] = ()) -> Trace:
    """A Trace of these collectives; each rank has a file of its own, and a host of its own or `hosts[rank]`."""
    builder = TraceBuilder()
    code = builder.names.code
    for rank in ranks or sorted({row["rank"] for row in rows}):
        source = builder.source(Path(f"rank{rank}"), "hand", "", 0, {})
        builder.add(
            "ranks",
            1,
            {
                "rank": rank,
                "device": 0,
                "source": source,
                "backend": code("nccl"),
                "host": code(hosts[rank]) if hosts else None,
                "world_size": world,
            },
        )
    for row in rows:
        name, _, members = row["group"].partition(":")
        event = builder.add(
            "device_events",
            1,
            {
                "rank": row["rank"],
                "device": 0,
                "stream": 13,
                "start": row["start"],
                "end": row["end"],
                "kind": Kind.COMMUNICATION,
                "name": code("nccl"),
            },
        )
        builder.add(
            "collectives",
            1,
            {
                "rank": row["rank"],
                "event": event,
                "start": row["start"],
                "end": row["end"],
                "op": code(row["op"]),
                "group": code(name) if name else None,
                "group_ranks": code(members) if members else None,
                "group_size": members.count(",") + 1 if members else None,
                "seq": row["seq"],
                "bytes": row["bytes"],
                "peer": row["peer"],
            },
        )
    return builder.finish()
