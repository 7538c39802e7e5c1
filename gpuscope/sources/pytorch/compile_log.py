"""Logs of torch.compile, as `TORCH_TRACE=DIR` writes them: one file per rank, `dedicated_log_torch_trace_rank_0_….log`.

Each line is glog's prefix and a JSON object; a payload follows on lines that begin with a tab. Formats:
`torch/_logging/_internal.py` (`trace_structured`), `torch/_dynamo/utils.py` (`CompilationMetrics`), and tlparse, which
reads the same. Versions differ in keys: what is missing is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources.source import Files, ReadOptions, Role, json_object, lines, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

_LINE = when_used.pattern(rb"^[VDIWEC]\d{4} \d{2}:\d{2}:\d{2}\.\d+ \d+ \S+\] (\{.*)$")
_BREAK_AT = when_used.pattern(r"^Graph break in user code at (?P<file>.+):(?P<line>\d+)\s*$", re.MULTILINE)
_CACHE = when_used.pattern(r"fx_graph_cache_(hit|miss|bypass)$")
_SCHEDULE = "inductor_collective_schedule"
_BREAK, _RECOMPILED, _ERROR = "dynamo_graph_break_reason", "recompile_reasons", "dynamo_error"
_GRAPHS, _CODE = ("inductor_post_grad_graph", "after_post_grad_graph"), "inductor_output_code"
_CHROMIUM = "chromium_event"
_KINDS = ("compilation_metrics", "dynamo_start", _CODE)
_MAPPING = "inductor_provenance_tracking_node_mappings"
_WANTED = (_BREAK, _RECOMPILED, _ERROR, _SCHEDULE, _MAPPING, "torch_version", *_GRAPHS)
_TORCH_FILE = when_used.pattern(
    r"[/\\]torch[/\\](_dynamo|_inductor|_functorch|nn)[/\\]|[/\\](site|dist)-packages[/\\]torch[/\\]"
)
_PAYLOADS = 4 << 20
"""Bytes kept of a payload."""


@dataclass
class Compilation:
    """What a log says of one compilation of a frame."""

    metrics: dict[str, Any] = field(default_factory=dict)
    stack: list[dict[str, Any]] = field(default_factory=list)
    begun: bool = False
    reason: str = ""
    failed: str = ""
    cache: str = ""
    schedule: str = ""
    graph: str = ""
    """The last one to be lowered: forward and backward pass have one each."""
    times: dict[str, float] = field(default_factory=dict)
    """µs since 1970 of its begin (`B`) and its end (`E`), for versions whose metrics have none."""
    places: dict[str, str] = field(default_factory=dict)
    """Lines of the user's code by the kernel made of them."""


@dataclass
class Log:
    """What a log says, by compilation."""

    rank: int | None = None
    compilations: dict[tuple[int, int], Compilation] = field(default_factory=dict)
    breaks: list[tuple[tuple[int, int], str]] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    version: str = ""
    entries: int = 0
    unreadable: int = 0


def read_log(entries: Iterator[tuple[dict[str, Any] | None, str]]) -> Log:
    """What a log's entries, each with its payload, say; an entry that can't be read is None."""
    log = Log()
    for entry, payload in entries:
        if entry is None:
            log.unreadable += 1
            continue
        log.entries += 1
        if isinstance(entry.get("str"), list) and len(entry["str"]) == 2:
            log.files[entry["str"][1]] = str(entry["str"][0])
        if log.rank is None and isinstance(entry.get("rank"), int):
            log.rank = entry["rank"]
        frame, nth = entry.get("frame_id"), entry.get("frame_compile_id")
        artifact = entry.get("artifact")
        name = str(artifact.get("name", "")) if isinstance(artifact, dict) else ""
        if name == "torch_version":
            log.version = str((json_object(payload.encode()) or {}).get("pytorch_version", ""))
        if isinstance(frame, int) and isinstance(nth, int):
            _take(log, (frame, nth), entry, name, payload)
    return log


def _take(log: Log, key: tuple[int, int], entry: dict[str, Any], name: str, payload: str) -> None:
    if name == _BREAK:
        log.breaks.append((key, payload))
        return
    if _CHROMIUM in entry:
        told = json_object(payload.encode()) or {}
        if told.get("name") == "dynamo" and isinstance(told.get("ts"), float | int):
            log.compilations.setdefault(key, Compilation()).times[str(told.get("ph"))] = told["ts"]
        return
    if name not in _WANTED and not any(kind in entry for kind in (*_KINDS, *_GRAPHS)) and not _CACHE.match(name):
        return
    own = log.compilations.setdefault(key, Compilation())
    if isinstance(entry.get("compilation_metrics"), dict):
        own.metrics.update(entry["compilation_metrics"])
    elif isinstance(entry.get("dynamo_start"), dict):
        own.begun = True
        stack = entry["dynamo_start"].get("stack")
        own.stack = [one for one in stack if isinstance(one, dict)] if isinstance(stack, list) else []
    elif name == _RECOMPILED:
        own.reason = _guard(payload)
    elif name == _ERROR:
        last = [line for line in payload.splitlines() if line and not line.startswith(" ")]
        own.failed = last[-1] if last else "failed"
    elif name == _SCHEDULE:
        own.schedule = _operations(payload)
    elif name in _GRAPHS or any(kind in entry for kind in _GRAPHS):
        own.graph = payload
    elif _CODE in entry:
        own.places.update(places_by_code(payload, own.graph))
    elif name == _MAPPING:
        own.places.update(places_by_mapping(payload, own.graph))
    elif found := _CACHE.match(name):
        own.cache = found[1]


def _guard(payload: str) -> str:
    """The guard that failed, without the compilation it was of: JSON in versions up to 2.8, else text."""
    text = payload.strip()
    if text.startswith("["):
        try:
            found = msgspec.json.decode(text)
            text = str(found[0]) if found else ""
        except (msgspec.DecodeError, IndexError):
            pass
    first = re.sub(r"^\d+/\d+: ", "", text).splitlines()[:1]
    return first[0].partition("  #")[0].strip() if first else ""


def _operations(payload: str) -> str:
    """A schedule of collectives by their plain names, without the waits, which have no order over ranks."""
    try:
        found = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return ""
    plain = [re.sub(r"^torch\.ops\.|\.default$", "", str(one)) for one in found] if isinstance(found, list) else []
    return msgspec.json.encode([one for one in plain if "wait_tensor" not in one]).decode()


class CompileLogSource:
    """Reads `compilations`, `graph_breaks` and `compiled_kernels`."""

    name = "compile-log"
    files = Files(
        Role.RECORD,
        (".log", ".log.gz"),
        one_per_rank=False,
        hangs=True,
        alone="a log of torch.compile has no device time: name it together with the trace of the same run",
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        """A file whose first line is a structured one."""
        return path.is_file() and _LINE.match(head.partition(b"\n")[0].rstrip(b"\r")) is not None

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002 - a protocol's signature
        """The rank in its name."""
        return rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a log. Raises `InputError` where nothing in it is of a compilation."""
        log = read_log(_entries(path, options, builder))
        if not log.entries:
            raise InputError(f"{path}: holds no entry of torch.compile's log")
        rank = next((one for one in (rank_in_name(path), log.rank) if one is not None), 0)
        builder.source(path, self.name, log.version, log.entries, {})
        builder.problem(reading.RECORD_UNREADABLE, log.unreadable, file=path.name, what="entries")
        for (frame, nth), one in log.compilations.items():
            builder.add("compilations", 1, _row(builder, log, rank, frame, nth, one))
        for (frame, nth), text in log.breaks:
            builder.add("graph_breaks", 1, {"rank": rank, **_break(builder, f"{frame}/{nth}", text)})
        code = builder.names.code
        places = {kernel: place for one in log.compilations.values() for kernel, place in one.places.items()}
        for kernel, place in places.items():
            builder.add("compiled_kernels", 1, {"rank": rank, "kernel": code(kernel), "place": code(place)})


def _entries(path: Path, options: ReadOptions, builder: TraceBuilder) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Each entry with its payload, which is kept only of what is read."""
    entry: dict[str, Any] | None = None
    payload: list[bytes] = []
    size, begun, wanted = 0, False, False
    for line in lines(path, options, builder):
        if line.startswith(b"\t"):
            if wanted and size < _PAYLOADS:
                payload.append(line[1:])
                size += len(line)
            continue
        found = _LINE.match(line)
        if found is None:
            continue
        if begun:
            yield entry, b"\n".join(payload).decode(errors="replace")
        entry, payload, size, begun = json_object(found[1]), [], 0, True
        wanted = _is_wanted(entry)
    if begun:
        yield entry, b"\n".join(payload).decode(errors="replace")


def _is_wanted(entry: dict[str, Any] | None) -> bool:
    if entry is None:
        return False
    artifact = entry.get("artifact")
    named = isinstance(artifact, dict) and artifact.get("name") in _WANTED
    return named or any(kind in entry for kind in (_CODE, _CHROMIUM, *_GRAPHS))


def _row(builder: TraceBuilder, log: Log, rank: int, frame: int, nth: int, one: Compilation) -> dict[str, Any]:
    told, code = one.metrics, builder.names.code

    def text(value: object) -> int:
        return code(str(value)) if value else NO_NAME

    began, spent = _time(told, "start_time_us", "start_time"), _time(told, "duration_us", "entire_frame_compile_time_s")
    if began == NA and {"B", "E"} <= one.times.keys():
        began, spent = round(one.times["B"] * 1e3), round((one.times["E"] - one.times["B"]) * 1e3)
    failed = told.get("fail_type") and f"{told['fail_type']}: {str(told.get('fail_reason') or '').splitlines()[0]}"
    stack = [(log.files.get(one.get("filename", -1), "?"), one.get("line")) for one in one.stack]
    callers = [f"{file}:{line}" for file, line in stack[:-1] if not _TORCH_FILE.search(file)]
    line = told.get("co_firstlineno")
    return {
        "rank": rank,
        "compile_id": code(f"{frame}/{nth}"),
        "frame": frame,
        "nth": nth,
        "start": began,
        "end": began + spent if NA not in (began, spent) else NA,
        "open": int(one.begun and not (told or one.failed or "E" in one.times)),
        "function": text(told.get("co_name") or (one.stack[-1].get("name") if one.stack else "")),
        "file": text(told.get("co_filename") or (stack[-1][0] if stack else "")),
        "line": line if isinstance(line, int) else NA,
        "called_at": text(callers[-1] if callers else ""),
        "reason": text(one.reason or _guard(str(told.get("recompile_reason") or ""))),
        "failed": text(failed or one.failed),
        "cache": text(one.cache),
        "schedule": text(one.schedule),
    }


def _time(told: dict[str, Any], us: str, seconds: str) -> int:
    """A time of the metrics in ns, which older versions have in seconds alone."""
    whole, part = told.get(us), told.get(seconds)
    if isinstance(whole, int) and 0 <= whole < 1 << 53:
        return whole * 1000
    return round(part * 1e9) if isinstance(part, float | int) and 0 <= part < 1e10 else NA


def _break(builder: TraceBuilder, compile_id: str, text: str) -> dict[str, Any]:
    """A graph break by the text that torch writes of it."""
    code, place = builder.names.code, _BREAK_AT.search(text)
    reasons = [line.strip() for line in _section(text, "Graph Break Reason:") if line.strip()]
    # From 2.7 on the kind of break may stand behind a sentence on where the tracer was.
    kinds = list(takewhile(lambda line: not line.startswith(("Explanation:", "Hint:")), reasons))
    explained = next((line[len("Explanation:") :].strip() for line in reasons if line.startswith("Explanation:")), "")
    hint = next((line[len("Hint:") :].strip() for line in reasons if line.startswith("Hint:")), "")
    reason = kinds[-1] if kinds else text.strip().partition("\n")[0]
    return {
        "compile_id": code(compile_id),
        "file": code(place["file"] if place else "?"),
        "line": int(place["line"]) if place else NA,
        "reason": code(reason),
        "explanation": code(explained) if explained else NO_NAME,
        "hint": code(hint) if hint else NO_NAME,
    }


def _section(text: str, title: str) -> list[str]:
    """The lines from a title to the traceback behind it."""
    body = text.partition(title)[2]
    for end in ("User code traceback:", "Traceback (most recent call last):", "For more details about"):
        body = body.partition(end)[0]
    return body.splitlines()


SOURCE = CompileLogSource()


# Inductor writes above each kernel the nodes of the graph that it fused (`# Source node to ATen node mapping`, from
# `torch/_inductor/codegen/wrapper.py`), and the graph has above each node the user's line (`# File: train.py:3 in f`).
_KERNEL = when_used.pattern(r"^(\w+) = async_compile\.\w+\(")
_NODES = when_used.pattern(r"^#\s+(?:\S+) => (.+)$")
_FUSED = when_used.pattern(r"^#\s+%(\w+) : ")
_FILE = when_used.pattern(r"^\s*#\s*File: (?P<file>.+?):(?P<line>\d+) in (?P<name>[^,]+), code:")
_NODE = when_used.pattern(r"^\s*(\w+)(?:: \"[^\"]*\")? = ")


class _Mapping(msgspec.Struct):
    nodes: dict[str, list[str]] = msgspec.field(default_factory=dict, name="cppCodeToPost")


def places_by_mapping(mapping: str, graph: str) -> Iterator[tuple[str, str]]:
    """The same by the artifact that tells the nodes of each kernel, which torch writes where it tracks provenance."""
    try:
        told = msgspec.json.decode(mapping, type=_Mapping).nodes
    except msgspec.DecodeError:
        return
    lines_of = dict(_node_lines(graph))
    for kernel, nodes in told.items():
        places = Counter(lines_of[node] for node in nodes if node in lines_of)
        if places:
            yield kernel.partition(":")[0], places.most_common(1)[0][0]


def places_by_code(code: str, graph: str) -> Iterator[tuple[str, str]]:
    """Each kernel of Inductor's output code with the line that most of its nodes come from (`train.py(3): f`)."""
    lines_of = dict(_node_lines(graph))
    nodes: list[str] = []
    for line in code.splitlines():
        if found := _NODES.match(line):
            nodes += [node.strip() for node in found[1].split(",")]
        elif found := _FUSED.match(line):
            nodes.append(found[1])
        elif found := _KERNEL.match(line):
            places = Counter(lines_of[node] for node in nodes if node in lines_of)
            if places:
                yield found[1], places.most_common(1)[0][0]
            nodes = []


def _node_lines(graph: str) -> Iterator[tuple[str, str]]:
    place = ""
    for line in graph.splitlines():
        if found := _FILE.match(line):
            place = f"{found['file']}({found['line']}): {found['name']}"
        elif place and (found := _NODE.match(line)):
            yield found[1], place
