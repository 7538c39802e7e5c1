"""Kineto JSON, as torch.profiler writes it, from 2020 on: NVIDIA, ROCm, MTIA, CPU only.

Facts of the format: pytorch/kineto `libkineto/src/output_json.cpp` (layout, `baseTimeNanoseconds`) and
`ActivityType.cpp` (categories); PyTorch `torch/csrc/distributed/c10d/ParamCommsUtils.hpp` (arguments of
collectives).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.errors import InputError
from gpuscope.sources import stream
from gpuscope.sources.kineto.chrome_json import Document, Losses
from gpuscope.sources.kineto.collective_rows import add_collectives, add_gloo_collectives
from gpuscope.sources.kineto.event_arguments import integer
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.wholeness import dropped, operator_ids
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category

# gpu_user_annotation repeats a host range on the device's clock: not work. Other categories are reported below.
_KNOWN_NO_WORK = frozenset({"gpu_user_annotation", "trace", "cuda_event", "external_correlation", "mtia_insight", ""})

_RANK_IN_HEADER = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d+)')
_KINETO_HEAD = re.compile(rb'"(schemaVersion|traceEvents|deviceProperties|baseTimeNanoseconds)"\s*:')
_HEAD, _LONG_HEAD = 1 << 16, 8 << 20
_CHROME_EVENT = re.compile(rb'\{\s*"(ph|name|cat|ts|pid|tid|args|dur)"\s*:')


class KinetoSource:
    """Reads what `torch.profiler` exports as Chrome trace, plain or gzipped."""

    name = "kineto"
    files = Files(Role.TIMELINE, (".json", ".json.gz"), unmistakable=(".json.gz",), keepable=True)

    def sniff(self, path: Path, head: bytes) -> bool:
        start = head.lstrip()
        if start.startswith(b"["):
            return _CHROME_EVENT.match(start[1:].lstrip()) is not None
        if not start.startswith(b"{"):
            return False
        # What a user put into the metadata can fill the beginning.
        return _KINETO_HEAD.search(head) is not None or (
            len(head) >= _HEAD and _KINETO_HEAD.search(stream.head(path, _LONG_HEAD)) is not None
        )

    def peek_rank(self, path: Path, head: bytes) -> int | None:
        match = _RANK_IN_HEADER.search(head)
        return int(match[1]) if match else rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        columns = EventColumns(builder)
        document = Document(path, options.advance, scanner=columns.scanner)
        for events in document.events():
            columns.take(events)
        losses = document.losses
        if losses.truncated and not options.partial:
            raise InputError(losses.truncated, hint="copy it again, or pass --partial to analyse what is left")
        if not losses.events:
            raise InputError(f"{path}: contains no events", hint="was the profiler stopped before it was exported?")
        report_losses(builder, losses, path)
        _Run(builder, columns, path, document.header).finish(losses.events)


def report_losses(builder: TraceBuilder, losses: Losses, path: Path) -> None:
    """Report to the builder what the JSON reader could not read of `path`."""
    builder.problem(
        "data_loss",
        "truncated",
        int(bool(losses.truncated)),
        f"{path.name}: truncated; the events before the cut were read",
    )
    builder.problem("data_loss", "undecodable_event", losses.undecodable, f"{path.name}: events with invalid JSON")
    builder.problem("info", "invalid_utf8", losses.invalid_utf8, f"{path.name}: names that are not UTF-8")


class _Run:
    """What depends on the header, which may stand behind the events: rank, clock base, devices, groups."""

    def __init__(self, builder: TraceBuilder, columns: EventColumns, path: Path, header: dict[str, Any]) -> None:
        self.builder, self.columns, self.path, self.header = builder, columns, path, header
        info = header.get("distributedInfo")
        self.info: dict[str, Any] = info if isinstance(info, dict) else {}
        self.rank = _rank(self.info, path)

    def finish(self, events: int) -> None:
        """Hand the columns to the builder, with all that is recorded of the run; `events` were in the file."""
        builder, header = self.builder, self.header
        version = f"schema {header['schemaVersion']}" if "schemaVersion" in header else ""
        source = builder.source(self.path, "kineto", version, events, {"header": header})
        self._ranks(source)
        builder.recording(**operator_ids(self.columns.operator_ids), dropped=dropped(header))
        self._events()
        add_collectives(builder, self.rank, self.columns.collectives)
        add_gloo_collectives(builder, self.rank, self.columns.host_collectives, self.info)
        self._problems()

    def _events(self) -> None:
        base = self.header.get("baseTimeNanoseconds")
        base = base if isinstance(base, int) and abs(base) < 2**62 else 0
        keys = self.columns.threads
        threads = [self.builder.thread(self.rank, integer(pid), integer(tid)) for pid, tid in keys]
        lookup = np.array(threads or [0], np.int64)
        for table, length, columns in self.columns.chunks:
            columns["start"] += base
            columns["end"] += base
            columns["rank"] = self.rank
            if table == "host_events":
                columns["thread"] = lookup[columns["thread"]]
            self.builder.add(table, length, columns)
        self.columns.memory.finish(self.builder, self.rank, base)

    def _ranks(self, source: int) -> None:
        builder, header, info, chunks = self.builder, self.header, self.info, self.columns.chunks
        code = builder.names.code
        models = _device_names(header)
        world = integer(info.get("world_size"))
        listed = ",".join(str(device) for device in sorted(models))
        devices = sorted({int(d) for t, _, c in chunks if t == "device_events" for d in distinct_values(c["device"])})
        trained_on_cpu = not devices and _trained_on_cpu(header, info, chunks, builder)
        if trained_on_cpu:
            builder.host_is_device(self.rank)
        for device in devices or [NA]:
            model = models.get(device)
            values = {
                "rank": self.rank,
                "device": device,
                "source": source,
                "device_name": NO_NAME if model is None else code(model),
                "host": code(str(header["host_name"])) if "host_name" in header else NO_NAME,
                "world_size": world,
                "world_basis": NO_NAME if world == NA else code("distributed_info"),
                "host_devices": code(listed) if listed else NO_NAME,
                "backend": code(str(info["backend"])) if info.get("backend") else NO_NAME,
            }
            builder.add("ranks", 1, values)
        for group in info.get("pg_config") or []:
            if isinstance(group, dict):
                self._group(group)

    def _group(self, group: dict[str, Any]) -> None:
        code = self.builder.names.code
        ranks = group.get("ranks")
        values = {
            "rank": self.rank,
            "group": code(str(group.get("pg_name", ""))),
            "description": code(str(group.get("pg_desc", ""))),
            "size": integer(group.get("pg_size")),
            "ranks": code(",".join(map(str, ranks))) if isinstance(ranks, list) else NO_NAME,
            "backend": code(str(group.get("backend_config", ""))),
        }
        self.builder.add("groups", 1, values)

    def _problems(self) -> None:
        problem, name = self.builder.problem, self.path.name
        problem("data_loss", "bad_time", self.columns.bad_times, f"{name}: events whose time is not a number")
        for category, count in sorted(self.columns.other.items()):
            if category not in _KNOWN_NO_WORK:
                problem("info", "unknown_category", count, f"{name}: events of category {category!r}")


def _rank(info: dict[str, Any], path: Path) -> int:
    rank = integer(info.get("rank"))
    if rank != NA and rank >= 0:
        return rank
    named = rank_in_name(path)
    return 0 if named is None else named


def _device_names(header: dict[str, Any]) -> dict[int, str]:
    properties = header.get("deviceProperties")
    if not isinstance(properties, list):
        return {}
    return {integer(p.get("id")): str(p.get("name")) for p in properties if isinstance(p, dict) and p.get("name")}


def _trained_on_cpu(
    header: dict[str, Any],
    info: dict[str, Any],
    chunks: list[tuple[str, int, dict[str, Any]]],
    builder: TraceBuilder,
) -> bool:
    """No device, no sign of one: then the host is what trained. A job on NCCL whose kernels are missing
    is not that."""
    if header.get("deviceProperties") or "nccl" in str(info.get("backend", "")).lower():
        return False
    host = [columns for table, _, columns in chunks if table == "host_events"]
    if not any((columns["category"] == Category.OP).any() for columns in host):
        return False
    launching = builder.names.matching(kinds.is_launch_call)
    return not any(launching[columns["name"]].any() for columns in host)


SOURCE = KinetoSource()
