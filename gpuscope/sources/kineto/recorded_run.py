"""What of a torch.profiler trace depends on its header, which may stand behind the events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.problems import completeness, reading
from gpuscope.sources.kineto.backward_links import backward_links
from gpuscope.sources.kineto.collective_rows import add_collectives, add_gloo_collectives
from gpuscope.sources.kineto.event_arguments import as_list, integer
from gpuscope.sources.kineto.event_columns import UNDIRECTED, EventColumns
from gpuscope.sources.kineto.launched_collectives import with_launch_arguments
from gpuscope.sources.kineto.wholeness import dropped, operator_ids
from gpuscope.sources.source import rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import MOST_RANKS, NA, Category

# gpu_user_annotation repeats a host range on the device's clock: not work. Other categories are reported below.
_KNOWN_NO_WORK = frozenset(
    {
        "gpu_user_annotation",
        "trace",
        "cuda_event",
        "external_correlation",
        "mtia_insight",
        "graph_event_node",
        "graph_host_node",
        "",
    }
)


class RecordedRun:
    """What depends on the header, which may stand behind the events: rank, clock base, devices, groups."""

    def __init__(
        self,
        builder: TraceBuilder,
        columns: EventColumns,
        path: Path,
        header: dict[str, Any],
        *,
        fmt: str = "kineto",
        dropped_records: int = 0,
        on_device: bool = False,
        named_rank: int | None = None,
        cut_off: bool = False,
    ) -> None:
        """`dropped_records` are those that the file itself counts; `on_device` says that a device was recorded even
        where it did nothing; `named_rank` is the rank by the names of all files, where the header has none. Of a file
        that is `cut_off` kernels may be in the missing part."""
        self.builder, self.columns, self.path, self.header, self.format = builder, columns, path, header, fmt
        self.dropped_records, self.on_device, self.cut_off = dropped_records, on_device, cut_off
        info = header.get("distributedInfo")
        self.info: dict[str, Any] = info if isinstance(info, dict) else {}
        self.rank = _rank(self.info, path, named_rank)

    def finish(self, events: int) -> None:
        """Hand the columns to the builder, with all that is recorded of the run; `events` were in the file."""
        builder, header = self.builder, self.header
        version = f"schema {header['schemaVersion']}" if "schemaVersion" in header else ""
        source = builder.source(self.path, self.format, version, events, {"header": header})
        self._ranks(source)
        lost = dropped(header) + self.dropped_records
        builder.recording(**operator_ids(self.columns.operator_ids), dropped=lost)
        self._events()
        self.columns.counters.finish(builder, source, self._base)
        collectives = with_launch_arguments(self.columns.chunks, self.columns.collectives, self.columns.communication)
        add_collectives(builder, self.rank, collectives)
        add_gloo_collectives(builder, self.rank, self.columns.host_collectives, self.info)
        self._problems()

    @property
    def _base(self) -> int:
        base = self.header.get("baseTimeNanoseconds")
        return base if isinstance(base, int) and abs(base) < 2**62 else 0

    def _events(self) -> None:
        base = self._base
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
        found = np.array(self.columns.dependencies, np.int64).reshape(-1, 3)
        dependencies = dict(zip(("event", "after", "host_ns"), found.T, strict=True))
        self.builder.add("graph_dependencies", len(found), dependencies)
        nodes, forward = backward_links(self.columns.chunks, self.builder.names, self.columns.sequences)
        self.builder.add("backward", len(nodes), {"event": nodes, "forward": forward})

    def _ranks(self, source: int) -> None:
        builder, header, info, chunks = self.builder, self.header, self.info, self.columns.chunks
        code = builder.names.code
        models = _device_names(header)
        world = integer(info.get("world_size"))
        listed = ",".join(str(device) for device in sorted(models))
        devices = sorted({int(d) for t, _, c in chunks if t == "device_events" for d in distinct_values(c["device"])})
        if not devices:
            self._without_device(models)
        # A process that sees some of its host's devices lists these from 0 on; events may have the host's numbers.
        alike = set(models.values())
        only = alike.pop() if len(alike) == 1 else None
        for device in devices or [NA]:
            model = models.get(device, only if device != NA else None)
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
        for group in as_list(info.get("pg_config")):
            if isinstance(group, dict):
                self._group(group)

    def _without_device(self, models: dict[int, str]) -> None:
        """A rank without one device row: it trained on the CPU, or the recorder delivered nothing."""
        host = [columns for table, _, columns in self.columns.chunks if table == "host_events"]
        calls, calls_for_work, launches, operators = 0, 0, 0, 0
        works, launching = (self.builder.names.matching(says) for says in (kinds.asks_for_work, kinds.is_kernel_launch))
        for columns in host:
            runtime = columns["name"][columns["category"] == Category.RUNTIME]
            calls += len(runtime)
            calls_for_work += int(np.count_nonzero(works[runtime]))
            launches += int(np.count_nonzero(launching[runtime]))
            operators += int(np.count_nonzero(columns["category"] == Category.OP))
        if launches and not self.cut_off:
            self.builder.problem(completeness.KERNELS_NOT_RECORDED, launches, rank=self.rank, launches=launches)
            self.builder.problem(completeness.RECORDER_DELIVERED_NOTHING, 1)
        # A job on NCCL ran on GPUs, whatever was recorded of it.
        if not operators or calls_for_work or "nccl" in str(self.info.get("backend", "")).lower():
            return
        if not self.cut_off:
            on_cpu = calls > 0 or not (self.header.get("deviceProperties") or self.on_device)
        else:
            on_cpu = self.header.get("deviceProperties") == [] or "gloo" in str(self.info.get("backend", "")).lower()
        if on_cpu:
            self.builder.host_is_device(self.rank)
            present = " and ".join(sorted(set(models.values()))) or ("a GPU" if self.on_device else "")
            self.builder.problem(completeness.DEVICE_UNUSED, int(bool(present)), device=present)

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

    @property
    def _undirected(self) -> int:
        code = self.builder.names.code(UNDIRECTED)
        copies = (columns["copy_kind"] for table, _, columns in self.columns.chunks if table == "device_events")
        return sum(int((kinds == code).sum()) for kinds in copies)

    def _problems(self) -> None:
        problem, name = self.builder.problem, self.path.name
        problem(reading.BAD_TIME, self.columns.bad_times, file=name)
        problem(reading.SHAPE_UNREADABLE, self.columns.texts.unusable, file=name)
        problem(completeness.COPY_DIRECTION_UNKNOWN, self._undirected, file=name)
        for category, count in sorted(self.columns.other.items()):
            if category not in _KNOWN_NO_WORK:
                problem(reading.UNKNOWN_CATEGORY, count, file=name, category=category)


def _rank(info: dict[str, Any], path: Path, by_all_names: int | None) -> int:
    rank = integer(info.get("rank"))
    if 0 <= rank < MOST_RANKS:
        return rank
    named = rank_in_name(path) if by_all_names is None else by_all_names
    return 0 if named is None else named


def _device_names(header: dict[str, Any]) -> dict[int, str]:
    properties = [one for one in as_list(header.get("deviceProperties")) if isinstance(one, dict)]
    return {integer(one.get("id")): str(one["name"]) for one in properties if one.get("name")}
