"""Ascend's Chrome trace (`trace_view.json`), as torch_npu's profiler writes it.

A Chrome trace whose rows are distinguished by the name of their process, not by category. Work is read from
the rows «Ascend Hardware» and «HCCL» (or «Communication»); its totals are held against those of the vendor's own
«Overlap Analysis». Task types as in Ascend's profiler documentation (`kernel_details.csv`, `task_time.csv`); older
versions call them «Other», or nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources import stream
from gpuscope.sources.kineto.chrome_json import Complete, Document, FlowStart, Metadata
from gpuscope.sources.kineto.decimal_time import to_ns
from gpuscope.sources.kineto.event_arguments import CommunicationArguments, add_collectives, integer
from gpuscope.sources.kineto.kineto_source import report_losses
from gpuscope.sources.run_manifest import read_text
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.intervals import union
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.optimizer_ranges import Part
from gpuscope.trace.schema import NA, NS_PER_US, Category, Kind

_HARDWARE = "Ascend Hardware"
_COMMUNICATION = ("HCCL", "Communication")
_OVERLAP = "Overlap Analysis"
_TOTALS: dict[str, Part] = {
    "Computing": "compute",
    "Communication": "communication",
    "Communication(Not Overlapped)": "exposed_communication",
}
_STEP_TOTALS = "step_trace_time.csv"
COVERED = 0.9
"""Part of the recording that the steps of that table must cover: else it is about something else."""
_COMPUTE_TASK = when_used.pattern(r"AI_CORE|AI_VECTOR_CORE|AIV|AIC|AI_CPU|AICPU|MIX_|DSA", re.IGNORECASE)
_COPY = when_used.pattern(r"MEMCPY", re.IGNORECASE)
_TRANSFER_TASK = when_used.pattern(
    r"hcom_.*|hccl.*|(S|R)DMA([_ ]\w+)*|notify([_ ]\w+)*|write[_ ]?value|inline[_ ]?reduce"
    r"|reduce[_ ]?(inline|async)(_\w+)?",
    re.IGNORECASE,
)
"""Single tasks of a collective, which its whole operation among the communication rows already covers."""
_CONTROL_TASK = when_used.pattern(
    r"((remote_)?event|stream|label|model|profiler|barrier|callback|host_?func|maint\w*|create|wait|record|nop|cmo)"
    r"([_ ]\w+)*|place_?holder\w*",
    re.IGNORECASE,
)
"""Tasks that order other tasks and do no work, as whole names: those of kernels may hold the same words."""
_UNTYPED = frozenset({"", "OTHER", "N/A", "UNKNOWN", "INVALID"})
_HCOM = when_used.pattern(r"hcom_(?P<op>\w+?)__(?P<group>\w+?)_(?P<seq>\d+)(?:_\d+)?$")
_LAUNCHED_BY = "async_npu"
"""Arrows from an operator to its device task; their id is the task's start in ns."""
_ROWS = when_used.pattern(rb'"name"\s*:\s*"(Ascend Hardware|CANN|Overlap Analysis)"|"async_npu"|"AscendCL@')
_TIME_AS_TEXT = when_used.pattern(rb'"ts"\s*:\s*"\d')
_ON_HARDWARE, _OF_GROUP = 0, 1
"""What numbers streams: the hardware does, and whole collectives stand in rows numbered by their group."""
_HOST = {
    "cpu_op": Category.OP,
    "python_function": Category.PYTHON,
    "user_annotation": Category.ANNOTATION,
    "enqueue": Category.RUNTIME,
    "dequeue": Category.RUNTIME,
}


class AscendSource:
    """Reads `ASCEND_PROFILER_OUTPUT/trace_view.json`."""

    name = "ascend"
    files = Files(Role.TIMELINE, ("trace_view.json", "trace_view.json.gz"))

    def sniff(self, path: Path, head: bytes) -> bool:
        if head.lstrip()[:1] not in (b"[", b"{"):
            return False
        if _ROWS.search(head):
            return True
        # The names of the rows can stand behind all events of the host; times that are text are Ascend's alone.
        return _TIME_AS_TEXT.search(head) is not None and _names_its_rows(path)

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002
        """The rank in the name of a `profiler_info_N.json` above the file, else in a folder's name or its own."""
        for folder in path.absolute().parents[:3]:
            for found in sorted(folder.glob("profiler_info_*.json")):
                if match := re.search(r"_(\d+)\.json$", found.name):
                    return int(match[1])
            if (named := rank_in_name(folder)) is not None:
                return named
        return rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        document = Document(path, options.advance, flows=True)
        spans: list[Complete] = []
        flows: list[FlowStart] = []
        names: dict[Any, str] = {}
        for events in document.events():
            for event in events:
                if isinstance(event, Complete):
                    spans.append(event)
                elif isinstance(event, Metadata):
                    _take_name(event, names, builder)
                elif isinstance(event, FlowStart) and event.cat == _LAUNCHED_BY:
                    flows.append(event)
        if document.losses.truncated and not options.partial:
            raise InputError(document.losses.truncated, hint="copy it again, or pass --partial")
        if not document.losses.events:
            raise InputError(f"{path}: contains no events")
        report_losses(builder, document.losses, path)
        rank = self.peek_rank(path, b"") or 0
        source = builder.source(path, self.name, _version(path), document.losses.events, {"header": document.header})
        builder.add(
            "ranks",
            1,
            {
                "rank": rank,
                "device": rank_device(path),
                "source": source,
                "backend": builder.names.code("hccl"),
            },
        )
        rows = _Rows(builder, rank, rank_device(path), names)
        rows.add(spans, flows)
        if not rows.totals:
            rows.add_totals(path.parent / _STEP_TOTALS)


class _Rows:
    """Sorts the spans of one file into tables by process name and category."""

    def __init__(self, builder: TraceBuilder, rank: int, device: int, names: dict[Any, str]) -> None:
        self.builder, self.rank, self.device, self.names = builder, rank, device, names
        self.totals = False
        """Whether the trace itself holds its totals."""
        self._span = 0

    def add(self, spans: list[Complete], flows: list[FlowStart]) -> None:
        timed = [event for event, known in zip(spans, _timed(spans), strict=True) if known]
        self.builder.problem(reading.BAD_TIME_OF_EVENTS, len(spans) - len(timed))
        spans = timed
        sorted_out: dict[str, list[Complete]] = defaultdict(list)
        for event in spans:
            process = self.names.get(event.pid, "")
            if process == _HARDWARE:
                sorted_out["hardware"].append(event)
            elif process in _COMMUNICATION:
                sorted_out["operations"].append(event)
            elif process == _OVERLAP and event.name in _TOTALS:
                sorted_out[_TOTALS[event.name]].append(event)
            elif event.cat in _HOST or process == "CANN":
                sorted_out["host"].append(event)
        if work := [*sorted_out["hardware"], *sorted_out["operations"]]:
            starts, ends = _times(work)
            self._span = int(ends.max() - starts.min())
        host = self._host(sorted_out["host"])
        self._hardware(sorted_out["hardware"], _launches(flows, host))
        self._communication(sorted_out["operations"])
        for part in _TOTALS.values() if any(sorted_out[part] for part in _TOTALS.values()) else ():
            self.totals = True
            starts, ends = _times(sorted_out[part])
            self.builder.recorded_total(self.rank, part, union(starts, ends).total, f"its own «{_OVERLAP}»")

    def add_totals(self, path: Path) -> None:
        """The vendor's totals by step, from the table beside a trace without any; its steps must cover the trace."""
        import csv

        totals, covered = dict.fromkeys(_TOTALS.values(), 0.0), 0.0
        try:
            for row in csv.DictReader(read_text(path.parent, path).splitlines()):
                for column, part in _TOTALS.items():
                    totals[part] += float(row[column])
                covered += sum(float(row[column]) for column in ("Computing", "Communication(Not Overlapped)", "Free"))
        except (OSError, ValueError, KeyError, TypeError, csv.Error, InputError):
            return  # a table of another version
        if COVERED * self._span <= covered * NS_PER_US <= self._span / COVERED:
            for part, total in totals.items():
                self.builder.recorded_total(self.rank, part, round(total * NS_PER_US), _STEP_TOTALS)

    def _host(self, events: list[Complete]) -> dict[tuple[Any, Any], tuple[Any, Any]]:
        """Adds host events; returns the starts and row numbers of each thread's, ordered by start."""
        starts, ends = _times(events)
        threads = [self.builder.thread(self.rank, integer(e.pid), integer(e.tid)) for e in events]
        first = self.builder.add(
            "host_events",
            len(events),
            {
                "rank": self.rank,
                "thread": np.array(threads, np.int64),
                "start": starts,
                "end": ends,
                "category": np.array([_HOST.get(e.cat, Category.RUNTIME) for e in events], np.int8),
                "name": self.builder.names.codes([e.name for e in events]),
            },
        )
        by_thread: dict[tuple[Any, Any], list[int]] = defaultdict(list)
        for index, event in enumerate(events):
            by_thread[event.pid, event.tid].append(index)
        ordered = {}
        for thread, indices in by_thread.items():
            own = np.array(indices)[np.argsort(starts[indices], kind="stable")]
            ordered[thread] = (starts[own], own + first)
        return ordered

    def _hardware(self, events: list[Complete], launch: dict[int, int]) -> None:
        tasks = [str(_arguments(event).get("Task Type", "")) for event in events]
        transferring = _transferring(events, tasks)
        kinds = [_kind(event, task, transferring) for event, task in zip(events, tasks, strict=True)]
        work = [event for event, kind in zip(events, kinds, strict=True) if kind is not None]
        starts, ends = _times(work)
        memory = [kind is Kind.MEMORY for kind in kinds if kind is not None]
        copy = self.builder.names.code("memcpy")
        self.builder.add(
            "device_events",
            len(work),
            {
                "rank": self.rank,
                "device": self.device,
                "start": starts,
                "end": ends,
                "stream": np.array([integer(e.tid) for e in work], np.int64),
                "context": _ON_HARDWARE,
                "kind": np.array([kind for kind in kinds if kind is not None], np.int8),
                "name": self.builder.names.codes([e.name for e in work]),
                "copy_kind": np.where(memory, copy, NO_NAME),
                "launch": np.array([launch.get(start, NA) for start in starts.tolist()], np.int64),
            },
        )
        self._syncs([event for event, kind in zip(events, kinds, strict=True) if kind is None])

    def _syncs(self, events: list[Complete]) -> None:
        """Event records and waits, and HCCL's own notifications: no work."""
        starts, ends = _times(events)
        self.builder.add(
            "syncs",
            len(events),
            {
                "rank": self.rank,
                "device": self.device,
                "start": starts,
                "end": ends,
                "stream": np.array([integer(e.tid) for e in events], np.int64),
                "name": self.builder.names.codes([e.name for e in events]),
            },
        )

    def _communication(self, events: list[Complete]) -> None:
        """Whole operations only: the rows of their single tasks repeat the same time."""
        whole = [event for event in events if _HCOM.match(event.name)]
        starts, ends = _times(whole)
        first = self.builder.add(
            "device_events",
            len(whole),
            {
                "rank": self.rank,
                "device": self.device,
                "start": starts,
                "end": ends,
                "stream": np.array([integer(e.tid) for e in whole], np.int64),
                "kind": Kind.COMMUNICATION,
                "context": _OF_GROUP,
                "name": self.builder.names.codes([e.name for e in whole]),
            },
        )
        communication = []
        for index, event in enumerate(whole):
            match = _HCOM.match(event.name)
            assert match
            arguments = _arguments(event)
            communication.append(
                (
                    first + index,
                    CommunicationArguments(
                        collective=match["op"],
                        group=match["group"],
                        seq=int(match["seq"]),
                        dtype=arguments.get("data_type"),
                        count=arguments.get("count"),
                    ),
                    event.name,
                )
            )
        add_collectives(self.builder, self.rank, communication)


def _names_its_rows(path: Path) -> bool:
    """Whether a file names Ascend's hardware or its operators' arrows anywhere."""
    kept = b""
    with suppress(stream.TruncatedError, InputError):
        for block in stream.blocks(path):
            if _ROWS.search(kept + block):
                return True
            kept = block[-64:]
    return False


def _kind(event: Complete, task: str, transferring: Collection[Any]) -> Kind | None:
    """What a task of the hardware does; None where it is no work, or part of a collective."""
    if _COPY.search(event.name):
        return Kind.MEMORY
    if _COMPUTE_TASK.search(task):
        return Kind.COMPUTE
    known = event.tid in transferring or _is(_TRANSFER_TASK, event, task) or _is(_CONTROL_TASK, event, task)
    return None if known else Kind.COMPUTE


def _is(what: re.Pattern[str], event: Complete, task: str) -> bool:
    """Whether a task is of that kind, by its type or, where it has none, by its name."""
    return what.fullmatch(event.name if task.upper() in _UNTYPED else task) is not None


def _transferring(events: Sequence[Complete], tasks: Sequence[str]) -> set[Any]:
    """The streams of collectives: at least half of what they do, but for control, is transfers."""
    transfers, work = Counter[Any](), Counter[Any]()
    for event, task in zip(events, tasks, strict=True):
        if not _COPY.search(event.name) and not _is(_CONTROL_TASK, event, task):
            work[event.tid] += 1
            transfers[event.tid] += _is(_TRANSFER_TASK, event, task)
    return {stream for stream, count in work.items() if 2 * transfers[stream] >= count}


def _launches(flows: list[FlowStart], host: dict[tuple[Any, Any], tuple[Any, Any]]) -> dict[int, int]:
    """Start of a device task (ns) → row of the host event that launched it."""
    found: dict[int, int] = {}
    at = to_ns([flow.ts for flow in flows])
    for flow, time in zip(flows, at.tolist(), strict=True):
        starts, rows = host.get((flow.pid, flow.tid), (None, None))
        task = integer(flow.id)
        if starts is not None and task != NA and time != NA:
            index = int(np.searchsorted(starts, time, "right")) - 1
            if index >= 0:
                found[task] = int(rows[index])
    return found


def _timed(events: list[Complete]) -> list[bool]:
    """Of each event, whether its times are numbers."""
    times = (to_ns([event.ts for event in events]), to_ns([event.dur for event in events]))
    known: list[bool] = ((times[0] != NA) & (times[1] != NA)).tolist()
    return known


def _times(events: list[Complete]) -> tuple[Any, Any]:
    start = to_ns([event.ts for event in events])
    return start, start + to_ns([event.dur for event in events])


def _arguments(event: Complete) -> dict[str, Any]:
    try:
        decoded = json.loads(bytes(event.args))
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _take_name(event: Metadata, names: dict[Any, str], builder: TraceBuilder) -> None:
    label = str((event.args or {}).get("name", ""))
    if event.name == "process_name":
        names[event.pid] = label
    elif event.name == "thread_name":
        builder.name_thread(integer(event.pid), integer(event.tid), label)


def rank_device(path: Path) -> int:
    """The NPU of a rank: its rank on one host, which is all that the file records."""
    return AscendSource().peek_rank(path, b"") or 0


def _version(path: Path) -> str:
    for folder in path.absolute().parents[:2]:
        for found in sorted(folder.glob("profiler_info_*.json")):
            try:
                return str(json.loads(read_text(folder, found)).get("torch_npu_version", ""))
            except (OSError, ValueError, AttributeError, RecursionError):
                return ""
    return ""


SOURCE = AscendSource()
