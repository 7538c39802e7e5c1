"""JSON lines of NCCL's Inspector plugin: message size, time and bandwidth of every operation (formats v4.0 to v4.4).

Up to v4.2 each record has a header (communicator, rank) and metadata of its own. From v4.3 on only the `dump_stats`
record that opens a communicator's dump has them, and says how many records of each kind follow (NVIDIA/nccl
plugins/profiler/inspector: README.md, inspector_json_reader.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.problems import job, reading
from gpuscope.sources import source as lines
from gpuscope.sources.nccl import NCCL_ALONE
from gpuscope.sources.source import Files, ReadOptions, Role, integer
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.kinds import collective_op
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, NS_PER_US

_COUNTS = {"coll_perf": "coll_records", "p2p_perf": "p2p_records", "proxy_trace": "proxy_records"}
"""Per kind of record, the key of `dump_stats` that says how many of them follow."""
_TIMED = ("coll", "p2p")
_UNLIMITED = 1 << 62


class InspectorSource:
    """Reads `measurements` and the rank's `communicators`."""

    name = "nccl-inspector"
    files = Files(Role.RECORD, (".log", ".jsonl"), alone=NCCL_ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """A first line with the performance of an operation, or with the header of a dump."""
        if not path.is_file() or not any(word in head for word in (b'_perf"', b'"dump_stats"', b'"inspector_output')):
            return False
        first = lines.first_object(head)
        timed = any(f"{kind}_perf" in first for kind in _TIMED) or "dump_stats" in first
        return "header" in first and (timed or "inspector_output_format_version" in _part(first, "metadata"))

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002 - a protocol's signature
        """The rank in the first line."""
        return integer(_part(lines.first_object(head), "header").get("rank"))

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a file. Raises `InputError` where no line of it can be used."""
        rows: list[dict[str, Any]] = []
        communicators: dict[tuple[str, int], dict[str, Any]] = {}
        dumps = _Dumps()
        lost, version = 0, ""
        for record in dumps.records(lines.read_objects(path, options, builder)):
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
        builder.problem(job.INSPECTOR_OVERWRITTEN, sum(dumps.overwritten.values()), file=path.name)
        builder.problem(job.INSPECTOR_DUMP_INCOMPLETE, dumps.missing, file=path.name)


class _Dumps:
    """The header that holds for records without one of their own, for as many as its dump announced."""

    def __init__(self) -> None:
        self.missing = 0
        """Records that were announced and did not follow."""
        self.overwritten: dict[tuple[Any, ...], int] = {}
        """Records that the plugin's rings lost, by communicator and process; its counts go on from dump to dump."""
        self._context: dict[str, Any] = {}
        self._left: dict[str, int] = {}
        self._counted = False
        self._damaged = 0

    def records(self, objects: Iterable[dict[str, Any] | None]) -> Iterator[dict[str, Any] | None]:
        """Every record of an operation with its header; None for one that can't be read or belongs to no header."""
        for record in objects:
            if record is None:
                self._damaged += 1
                yield None
            elif "dump_stats" in record or ("header" in record and not any(kind in record for kind in _COUNTS)):
                self._open(record)
            elif "proxy_trace" not in record:
                yield self._with_header(record)
        self._close()

    def _open(self, record: dict[str, Any]) -> None:
        self._close()
        stats, header, metadata = (_part(record, name) for name in ("dump_stats", "header", "metadata"))
        own_headers = str(metadata.get("inspector_output_format_version", "")) in ("v4.0", "v4.1", "v4.2")
        self._context = {} if own_headers else {"header": header, "metadata": metadata}
        self._counted, self._damaged = bool(stats), 0
        self._left = {
            kind: max(integer(stats.get(key)) or 0, 0) if stats else _UNLIMITED for kind, key in _COUNTS.items()
        }
        dropped = sum(max(integer(stats.get(f"{kind}_dropped_total")) or 0, 0) for kind in _TIMED)
        owner = (metadata.get("hostname"), metadata.get("pid"), str(header.get("id")), header.get("rank"))
        self.overwritten[owner] = max(dropped, self.overwritten.get(owner, 0))

    def _close(self) -> None:
        if self._context and self._counted:
            self.missing += max(sum(self._left[f"{kind}_perf"] for kind in _TIMED) - self._damaged, 0)

    def _with_header(self, record: dict[str, Any]) -> dict[str, Any] | None:
        if "header" in record:
            return record
        kind = next((kind for kind in _COUNTS if kind in record), "")
        if not self._context or self._left.get(kind, 0) <= 0:
            return None
        self._left[kind] -= 1
        return {**self._context, **record}


def _part(record: dict[str, Any], name: str) -> dict[str, Any]:
    part = record.get(name)
    return part if isinstance(part, dict) else {}


def _row(record: dict[str, Any], builder: TraceBuilder) -> dict[str, Any] | None:
    kind = "coll" if "coll_perf" in record else "p2p"
    header, perf = _part(record, "header"), _part(record, f"{kind}_perf")
    size, ranks = integer(perf.get(f"{kind}_msg_size_bytes")), integer(header.get("n_ranks"))
    time, busbw = perf.get(f"{kind}_exec_time_us"), perf.get(f"{kind}_busbw_gbs")
    dur = integer(time * NS_PER_US) if isinstance(time, int | float) else None
    rate = integer(busbw * 1e9) if isinstance(busbw, int | float) else None
    if size is None or ranks is None or dur is None or dur < 0:
        return None
    op, rank, seq = str(perf.get(kind, "")), integer(header.get("rank")), integer(perf.get(f"{kind}_sn"))
    source = perf.get(f"{kind}_timing_source")
    return {
        "rank": NA if rank is None else rank,
        "tool": builder.names.code("inspector"),
        "op": builder.names.code(collective_op(op) or op),
        "group_size": ranks if kind == "coll" else 2,
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
        "size": integer(header.get("n_ranks")),
        "nodes": integer(header.get("nnodes")),
        "host": builder.names.code(str(metadata["hostname"])) if metadata.get("hostname") else None,
    }


SOURCE = InspectorSource()
