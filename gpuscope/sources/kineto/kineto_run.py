"""What of a torch.profiler trace depends on its header, which may stand behind the events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy import typing as npt

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources.kineto.chrome_json import Complete, Document, Event, Losses, Metadata
from gpuscope.sources.kineto.event_arguments import (
    add_collectives,
    add_gloo_collectives,
    as_list,
    dropped,
    integer,
    operator_ids,
    with_launch_arguments,
)
from gpuscope.sources.kineto.event_block import CATEGORIES, Work
from gpuscope.sources.kineto.event_columns import UNDIRECTED, EventColumns
from gpuscope.sources.source import rank_in_name
from gpuscope.sources.windows import engine_ranks
from gpuscope.trace import kinds
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME, NamePool
from gpuscope.trace.schema import MOST_RANKS, NA, Category
from gpuscope.trace.table import distinct_values

# The forward operator of each of autograd's nodes, by the sequence number that torch.profiler writes on both.
#
# An operator's number is that of the node it is about to make (`torch/csrc/autograd/record_function_ops`,
# `at::sequence_number::peek`), so operators that make none have the number of the next one that does: of several it is
# the last to begin.

NODE = "autograd::engine::evaluate_function"
"""How an operator of autograd's engine is named."""

Rows = npt.NDArray[np.int64]


def backward_links(
    chunks: Sequence[tuple[str, int, dict[str, Any]]], names: NamePool, sequences: Sequence[Rows]
) -> tuple[Rows, Rows]:
    """Rows in host_events of autograd's nodes, and of the operators that made them, shape (n,) each.

    `chunks` are the tables' columns as read; `sequences` the rows and numbers of operators, shape (m, 2) each. Empty
    where neither lines nor modules were recorded, to which the links would lead.
    """
    numbered = np.concatenate([*sequences, np.empty((0, 2), np.int64)])
    host = [columns for table, _, columns in chunks if table == "host_events"]
    if not len(numbered) or not any((columns["category"] == Category.PYTHON).any() for columns in host):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    start = np.concatenate([columns["start"] for columns in host])
    name = np.concatenate([columns["name"] for columns in host])
    numbered = numbered[np.lexsort((start[numbered[:, 0]], numbered[:, 1]))]
    row, number = numbered.T
    is_node = names.matching(_is_node)[name[row]]
    last = np.where(is_node, -1, np.arange(len(row)))
    before = np.maximum.accumulate(last)  # the operator of any number that began last before each node
    nodes = np.flatnonzero(is_node & (before >= 0))
    linked = nodes[number[before[nodes]] == number[nodes]]
    return row[linked], row[before[linked]]


def _is_node(name: str) -> bool:
    return name.startswith(NODE)


# Kineto traces of several ranks in one file: each becomes a rank, as if the files had never been merged.
#
# Definitions: «Ranks of a file and of a folder». Forms of merging: SGLang `srt/utils/profile_merger.py` (process ids
# become `[TP01-DP00] 4711`), TraceLens `TraceFusion/trace_fuse.py` (offsets, and `rank` among the arguments), and files
# put one behind the other.

_LABEL = when_used.pattern(r"\[(?P<label>[^\[\]]+)\] ?(?P<pid>.*)", re.DOTALL)
_NAMED = when_used.pattern(r"\brank[ _:#-]?(\d+)\b", re.IGNORECASE)
_TURNS = 4
"""Times per process that its host events may begin anew in a file whose ranks stand one behind the other: more often,
and the events are mixed, by time, say."""

Key = str | int


class _Fused(msgspec.Struct):
    """What TraceLens adds to the arguments of each event."""

    rank: int | None = None
    pid_raw: int | str | None = None


def processes(columns: EventColumns) -> set[Any]:
    """The processes, as written, that ran operators or called the runtime."""
    working: dict[Category, set[int]] = {Category.OP: set(), Category.RUNTIME: set()}
    for table, _, values in columns.chunks:
        if table == "host_events":
            for category, threads in working.items():
                threads.update(distinct_values(values["thread"][values["category"] == category]).tolist())
    operating, calling = (
        {pid for number, (pid, _) in enumerate(columns.threads) if number in threads and pid is not None}
        for threads in (working[Category.OP], working[Category.RUNTIME])
    )
    # An accelerator that is drawn as a process of its own (MTIA) may have rows of the runtime, but no operators.
    return operating | (calling - columns.drawn_devices) or calling


def without_device_calls(columns: EventColumns) -> None:
    """The runtime's rows in an accelerator's own process are no launches: those stand in the host's process."""
    drawn = columns.drawn_devices - processes(columns)
    devices = [number for number, (pid, _) in enumerate(columns.threads) if pid in drawn]
    if not devices:
        return
    for table, _, values in columns.chunks:
        if table == "host_events":
            values["correlation"][np.isin(values["thread"], devices)] = NA


TWICE = 0.9
"""Share of the correlation ids of launches that two recordings in one file have twice."""


def check_one_recording(columns: EventColumns, names: NamePool, path: Path) -> None:
    """Raise `InputError` where a file holds two recordings of one process id: every step number twice, and nearly every
    correlation id of the runtime's calls, on one thread."""
    marks: list[int] = []
    ids: list[npt.NDArray[np.int64]] = []
    for table, _, values in columns.chunks:
        if table == "host_events":
            numbered = values["category"] == Category.ANNOTATION
            marks += values["name"][numbered].tolist()
            calls = (values["category"] == Category.RUNTIME) & (values["correlation"] > 0)
            ids.append(values["correlation"][calls])
    steps = Counter(code for code in marks if names[code].startswith("ProfilerStep#"))
    found, counts = np.unique(np.concatenate(ids), return_counts=True) if ids else (np.empty(0), np.empty(0))
    if not steps or min(steps.values()) < 2 or not len(found) or np.mean(counts >= 2) < TWICE:
        return
    pid = next((pid for pid, _ in columns.threads), None)
    raise InputError(
        f"{path}: holds two recordings of process {pid}: the same steps and correlation ids stand in it twice, and "
        "nothing tells whose a kernel is",
        hint="analyse the files that it was merged from, or merge them with a rank in each process's id "
        "(`[TP0] 4711`), as SGLang does",
    )


class Apart:
    """The events of a merged file by rank."""

    def __init__(self, path: Path, working: set[Any]) -> None:
        """`working` are its `processes`."""
        self._path, self._working = path, working
        self.columns: dict[Key, EventColumns] = {}
        self.builders: dict[Key, TraceBuilder] = {}
        self.header: dict[str, Any] = {}
        self.losses = Losses()
        self.events = Counter[Key]()
        self._names: dict[Key, int] = {}
        self._last: Key | None = None
        self._turns = 0
        self._by_place = 0
        """Events on devices that only their place in the file tells whose they are."""

    def read(self) -> dict[int, Key]:
        """Read the file; its ranks. Raises `InputError` where events can't be told apart."""
        document = Document(self._path)
        for events in document.events():
            self._take(events)
        if self._by_place and self._turns > _TURNS * len(self._working):
            raise InputError(
                f"{self._path}: holds {len(self._working)} processes whose events are mixed, and nothing tells "
                "which process a kernel is of",
                hint="analyse the files that it was merged from",
            )
        self.header, self.losses = document.header, document.losses
        return self._ranks()

    def header_of(self, rank: int) -> dict[str, Any]:
        """What the header, which is that of one rank, says of another: of its groups only those that it is in."""
        info = self.header.get("distributedInfo")
        if not isinstance(info, dict):
            return self.header
        groups = [group for group in as_list(info.get("pg_config")) if isinstance(group, dict)]
        if integer(info.get("rank")) != rank:
            groups = [group for group in groups if rank in as_list(group.get("ranks"))]
        own = {key: value for key, value in info.items() if key != "rank"}
        return {**self.header, "distributedInfo": {**own, "pg_config": groups}}

    def _take(self, events: Iterable[Event]) -> None:
        by_key: dict[Key, list[Event]] = {}
        for event in events:
            for key in self._keys(event):
                by_key.setdefault(key, []).append(event)
        for key, own in by_key.items():
            if key not in self.columns:
                self.builders[key] = TraceBuilder()
                self.columns[key] = EventColumns(self.builders[key])
            self.columns[key].take(own)
            self.events[key] += len(own)

    def _keys(self, event: Event) -> Iterator[Key]:
        """Whose event it is; its process id becomes what it was before."""
        pid = getattr(event, "pid", None)  # instants have none, and stand among their own
        if isinstance(pid, str) and (labelled := _LABEL.fullmatch(pid)) is not None:
            event.pid = int(labelled["pid"]) if labelled["pid"].isdecimal() else labelled["pid"]  # type: ignore[union-attr]
            self._last = labelled["label"]
            yield self._last
            return
        if isinstance(event, Complete | Metadata) and (fused := _fused(event)) is not None:
            event.pid = fused.pid_raw if fused.pid_raw is not None else event.pid
            self._last = f"rank {fused.rank}"
            yield self._last
            return
        if pid is not None and pid in self._working:
            self._see(event, pid)
            yield pid
        elif self._last is not None:
            self._by_place += isinstance(event, Complete) and CATEGORIES.get(event.cat.lower(), 0) >= Work.KERNEL
            yield self._last

    def _see(self, event: Event, pid: Any) -> None:
        """Files begin with the names of their processes and end with work on devices: what stands between two host
        processes is the first one's."""
        if isinstance(event, Metadata) and event.args and (named := _NAMED.search(str(event.args.get("name", "")))):
            self._names[pid] = int(named[1])
        if pid != self._last:
            self._turns += self._last is not None
            self._last = pid

    def _ranks(self) -> dict[int, Key]:
        keys = [key for key in self.columns if self.columns[key].chunks]
        told: Sequence[int | None] = engine_ranks(list(map(str, keys)))
        told = told or [_number(key, self._names) for key in keys]
        numbers = [number for number in dict.fromkeys(told) if number is not None]
        in_order = numbers if len(numbers) == len(keys) else list(range(len(keys)))
        return dict(sorted(zip(in_order, keys, strict=True)))


def _fused(event: Complete | Metadata) -> _Fused | None:
    try:
        if isinstance(event, Metadata):
            found = msgspec.convert(event.args or {}, _Fused)
        elif b'"pid_raw"' in bytes(event.args):
            found = msgspec.json.decode(event.args, type=_Fused)
        else:
            return None
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    return found if found.rank is not None and found.pid_raw is not None else None


def _number(key: Key, names: dict[Key, int]) -> int | None:
    if key in names:
        return names[key]
    found = _NAMED.search(str(key))
    return int(found[1]) if found else None


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
            self.builder.problem(reading.KERNELS_NOT_RECORDED, launches, rank=self.rank, launches=launches)
            self.builder.problem(reading.RECORDER_DELIVERED_NOTHING, 1)
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
            self.builder.problem(reading.DEVICE_UNUSED, int(bool(present)), device=present)

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
        problem(reading.COPY_DIRECTION_UNKNOWN, self._undirected, file=name)
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
