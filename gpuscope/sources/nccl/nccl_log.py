"""Logs of NCCL (`NCCL_DEBUG=INFO`) and output of nccl-tests, in one file or apart, of one or many ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import job, reading
from gpuscope.sources import stream
from gpuscope.sources.nccl import NCCL_ALONE
from gpuscope.sources.nccl.ras_report import is_ras_text
from gpuscope.sources.pytorch.log_signs import is_telling
from gpuscope.sources.pytorch.process_log import ProcessText
from gpuscope.sources.source import Files, ReadOptions, Role, Source, lines
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.kinds import collective_op
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA

if TYPE_CHECKING:
    from gpuscope.sources.nccl.log_facts import Facts, Tables

_TEXT = (".log", ".txt", ".out", ".err")
_FREQUENT = when_used.pattern(r"opCount|Bytes -> Algo|^Channel ")
_WARNING = when_used.pattern(r"([\w.-]+):(\d{1,18}):\d{1,18} \[-?\d{1,9}\] .*NCCL WARN ")
"""With the place in NCCL's source before it."""
_LOOK = 8 << 20
"""A job's own output can come before NCCL's first line: text is searched that far."""


class NcclLogSource(Source):
    """Reads `communicators`, `connections`, `choices` and, of nccl-tests, `measurements`."""

    name = "nccl-log"
    files = Files(Role.RECORD, _TEXT, alone=NCCL_ALONE, hangs=True)

    def sniff(self, path: Path, head: bytes) -> bool:
        """NCCL's log lines or nccl-tests' table somewhere near the beginning."""
        if path.is_dir() or b"\0" in head or head.lstrip()[:1] in (b"{", b"<"):
            return False
        if _is_log(head):
            return True
        return len(head) >= 1 << 16 and _is_log(stream.head(path, _LOOK))

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a log. Raises `InputError` where nothing of use is in it."""
        from gpuscope.sources.nccl.log_facts import Facts, Line, Tables, hosts, separate

        facts, tables = Facts(), Tables()
        process = ProcessText(path)
        known = hosts(line.decode(errors="replace") for line in lines(path, options))
        text = (line.decode(errors="replace") for line in lines(path, options, builder))
        warned: list[tuple[int, str, tuple[str, int]]] = []
        for number, line in enumerate(separate(text, known), 1):
            if isinstance(line, Line):
                facts.feed(line)
                if line.warns:
                    begins = f"{line.host}:{line.pid}:{line.tid} [{line.device}] NCCL WARN "
                    warned.append((number, begins + line.text, (line.host, line.pid)))
                elif not _FREQUENT.search(line.text) and is_telling(line.text):
                    warned.append((number, line.text, (line.host, line.pid)))
            elif (match := _WARNING.search(line)) is not None:
                warned.append((number, line, (match[1], int(match[2]))))
            else:
                tables.feed(line)
                process.feed(line, number)
                if not facts.version and line.startswith("NCCL version "):
                    facts.version = line.split()[2]
        failed = any(sign.sign == "test_failed" for sign in process.signs)
        if not facts.lines and not tables.rows and not failed and not warned:
            raise InputError(f"{path}: holds neither a log line of NCCL nor a row of nccl-tests")
        described = {
            # A run that failed prints 0, or the mean of the rows it came to.
            "average_busbw_gbps": tables.averages if tables.rows and not failed else [],
            "version": facts.version,
            "nccl_environment": sorted(facts.environment),
            "networks": sorted(facts.networks),
            "ports": dict(sorted(facts.ports.items())),
            "no_rdma": sorted(facts.no_rdma),
            "addresses": dict(sorted(facts.addresses.items())),
            "gpu_direct": dict(sorted(facts.direct.items())),
            "calls_logged": facts.calls if tables.rows else 0,
            **process.facts,
        }
        source = builder.source(path, self.name, facts.version, facts.lines + len(tables.rows), described)
        _communicators(builder, facts, tables)
        _connections(builder, facts)
        _choices(builder, facts, source)
        _measurements(builder, facts, tables, path, source)
        held = facts.communicators or facts.choices or tables.rows or failed
        for number, warning, of in warned:
            process.feed(warning, number, facts.rank_of(of))
        process.add(builder, source)
        builder.problem(job.LOG_WITHOUT_OPERATIONS, int(not held), file=path.name)
        builder.problem(reading.RECORD_UNREADABLE, tables.unreadable, file=path.name, what="rows of nccl-tests")


def _is_log(text: bytes) -> bool:
    if is_ras_text(text):
        return False
    return b" NCCL INFO " in text or (b"# nThread" in text and b"nGpus" in text) or b"NCCL version " in text


def _communicators(builder: TraceBuilder, facts: Facts, tables: Tables) -> None:
    code = builder.names.code
    names = {(device.host, device.device): device.name for device in tables.devices.values()}
    version = code(facts.version) if facts.version else NO_NAME
    for (host, pid, pointer, _), comm in facts.communicators.items():
        name = names.get((comm.host, comm.device if comm.device is not None else -1), "")
        row = {
            "rank": comm.rank,
            "communicator": code(comm.name or f"{host}:{pid}:{pointer}"),
            "size": comm.size,
            "nodes": _or_na(comm.nodes),
            "channels": _or_na(comm.channels),
            "p2p_channels": _or_na(comm.p2p_channels),
            "rings": comm.rings or NA,
            "trees": comm.trees or NA,
            "version": version,
            "host": code(comm.host),
            "device": _or_na(comm.device),
            "bus_id": code(comm.bus_id),
            "device_name": code(name) if name else NO_NAME,
        }
        builder.add("communicators", 1, row)
    if facts.communicators:
        return
    for device in tables.devices.values():
        row = {
            "rank": device.rank,
            "communicator": code("nccl-tests"),
            "size": len(tables.devices),
            "nodes": len({other.host for other in tables.devices.values()}),
            "version": version,
            "host": code(device.host),
            "device": device.device,
            "bus_id": code(device.bus_id),
            "device_name": code(device.name) if device.name else NO_NAME,
        }
        builder.add("communicators", 1, row)


def _connections(builder: TraceBuilder, facts: Facts) -> None:
    code = builder.names.code
    host = _hosts(facts)
    # Both sides log a connection over the network: it is one.
    counts: dict[tuple[str, int, int, str], int] = {}
    for (comm, sender, receiver, transport, _), count in facts.connections.items():
        key = (comm, sender, receiver, transport)
        counts[key] = max(count, counts.get(key, 0))
    for (comm, sender, receiver, transport), count in counts.items():
        ends = host.get((comm, sender)), host.get((comm, receiver))
        row = {
            "rank": sender,
            "peer": receiver,
            "communicator": code(comm) if comm else NO_NAME,
            "transport": code(transport),
            "count": count,
            "same_node": NA if None in ends else int(ends[0] == ends[1]),
        }
        builder.add("connections", 1, row)


def _hosts(facts: Facts) -> dict[tuple[str, int], str]:
    """The host of each rank of a communicator; without those of unnamed communicators that contradict."""
    found: dict[tuple[str, int], set[str]] = {}
    for comm in facts.communicators.values():
        found.setdefault((comm.name, comm.rank), set()).add(comm.host)
    return {key: next(iter(names)) for key, names in found.items() if len(names) == 1}


def _choices(builder: TraceBuilder, facts: Facts, source: int) -> None:
    code = builder.names.code
    for choice, count in facts.choices.items():
        row = {
            "op": code(choice.op) if choice.op else NO_NAME,
            "group_size": _or_na(choice.group_size),
            "bytes": choice.size,
            "algorithm": code(choice.algorithm),
            "protocol": code(choice.protocol),
            "channels": _or_na(choice.channels),
            "ranks": len(facts.chosen_by[choice]),
            "count": count,
            "source": source,
        }
        builder.add("choices", 1, row)


def _measurements(builder: TraceBuilder, facts: Facts, tables: Tables, path: Path, source: int) -> None:
    code = builder.names.code
    unnamed = facts.op or collective_op(path.stem)
    incomplete: Counter[str] = Counter()
    for row in tables.rows:
        op, ranks = row.op or unnamed, row.ranks or facts.size
        if not op or not ranks:
            incomplete["operation" if not op else "ranks"] += 1
            continue
        values = {
            "tool": code("nccl-tests"),
            "op": code(op),
            "group_size": ranks,
            "bytes": row.size,
            "dur": row.dur,
            "busbw": row.busbw,
            "count": row.iterations,
            "variant": code(row.variant),
            "wrong": row.wrong,
            "source": source,
            "warmup": row.warmup,
        }
        builder.add("measurements", 1, values)
    builder.problem(job.BENCH_ROW_INCOMPLETE, sum(incomplete.values()), file=path.name)


def _or_na(value: int | None) -> int:
    return NA if value is None else value


SOURCE = NcclLogSource()
