"""JSON lines of NCCL's Inspector plugin: message size, time and bandwidth of every collective (format v4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources import lines
from gpuscope.sources.lines import integer
from gpuscope.sources.nccl import NCCL_ALONE
from gpuscope.sources.source import Files, ReadOptions, Role
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming.kinds import collective_op
from gpuscope.trace.schema import NA, NS_PER_US


class InspectorSource:
    """Reads `measurements` and the rank's `communicators`."""

    name = "nccl-inspector"
    files = Files(Role.RECORD, (".log", ".jsonl"), alone=NCCL_ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """A first line with a header and the performance of a collective."""
        return path.is_file() and b'"coll_perf"' in head and "coll_perf" in lines.first_object(head)

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002 - a protocol's signature
        """The rank in the first line."""
        return integer(_part(lines.first_object(head), "header").get("rank"))

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a file. Raises `InputError` where no line of it can be used."""
        rows: list[dict[str, Any]] = []
        communicators: dict[tuple[str, int], dict[str, Any]] = {}
        lost, version = 0, ""
        for record in lines.read_objects(path, options, builder):
            row = _row(record, builder) if record else None
            if record is None or row is None:
                lost += 1
                continue
            rows.append(row)
            version = version or str(_part(record, "metadata").get("inspector_output_format_version", ""))
            key = (str(_part(record, "header").get("id", "")), row["rank"])
            communicators.setdefault(key, _communicator(record, row, builder))
        if not rows:
            raise InputError(f"{path}: contains no readable Inspector record")
        source = builder.source(path, self.name, version, len(rows), {})
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        builder.add("measurements", len(rows), {**columns, "source": source})
        for communicator in communicators.values():
            builder.add("communicators", 1, communicator)
        builder.problem(reading.RECORD_UNREADABLE, lost, file=path.name, what="lines")


def _part(record: dict[str, Any], name: str) -> dict[str, Any]:
    part = record.get(name)
    return part if isinstance(part, dict) else {}


def _row(record: dict[str, Any], builder: TraceBuilder) -> dict[str, Any] | None:
    header, perf = _part(record, "header"), _part(record, "coll_perf")
    size, ranks = integer(perf.get("coll_msg_size_bytes")), integer(header.get("n_ranks"))
    time, busbw = perf.get("coll_exec_time_us"), perf.get("coll_busbw_gbs")
    dur = integer(time * NS_PER_US) if isinstance(time, int | float) else None
    rate = integer(busbw * 1e9) if isinstance(busbw, int | float) else None
    if size is None or ranks is None or dur is None or dur < 0:
        return None
    op, rank, seq = str(perf.get("coll", "")), integer(header.get("rank")), integer(perf.get("coll_sn"))
    source = perf.get("coll_timing_source")
    return {
        "rank": NA if rank is None else rank,
        "tool": builder.names.code("inspector"),
        "op": builder.names.code(collective_op(op) or op),
        "group_size": ranks,
        "bytes": size,
        "dur": dur,
        "busbw": NA if rate is None else rate,
        "count": 1,
        "variant": builder.names.code(str(source)) if source else NO_NAME,
        "communicator": builder.names.code(str(header.get("id", ""))),
        "seq": NA if seq is None else seq,
    }


def _communicator(record: dict[str, Any], row: dict[str, Any], builder: TraceBuilder) -> dict[str, Any]:
    header, metadata = _part(record, "header"), _part(record, "metadata")
    return {
        "rank": row["rank"],
        "communicator": builder.names.code(str(header.get("id", ""))),
        "size": row["group_size"],
        "nodes": integer(header.get("nnodes")),
        "host": builder.names.code(str(metadata["hostname"])) if metadata.get("hostname") else None,
    }


SOURCE = InspectorSource()
