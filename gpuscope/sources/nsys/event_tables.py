"""The event tables of an nsys export: which columns of them are read, and what their rows become."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import field

import numpy as np

from gpuscope.sources.nsys.export_tables import RangeNames, StringTable, Tables
from gpuscope.trace.name_pool import NO_NAME, Codes, NamePool, item_bytes
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Times, compact, constant, distinct, is_constant, picked
from gpuscope.when_used import dataclass

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CUDA_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
PROFILER = "PROFILER_OVERHEAD"
NVTX = "NVTX_EVENTS"
OSRT = "OSRT_API"
MPI = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")

_ON_DEVICE = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")
_WORK = (*_ON_DEVICE, "contextId")
GRID, BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
_COLUMNS: dict[str, tuple[str, ...]] = {
    KERNEL: (*_WORK, "demangledName", "shortName", "mangledName", "graphNodeId", "graphId", *GRID, *BLOCK),
    MEMCPY: (*_WORK, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId", "migrationCause"),
    MEMSET: (*_WORK, "bytes", "graphNodeId"),
    GRAPH: (*_WORK, "graphId"),
    SYNC: (*_ON_DEVICE, "syncType", "eventId", "eventSyncId"),
    CUDA_EVENT: ("globalPid", "streamId", "correlationId", "eventId", "eventSyncId"),
    RUNTIME: ("start", "end", "globalTid", "correlationId", "nameId", "eventClass", "returnValue"),
    OVERHEAD: ("start", "end", "globalTid", "nameId"),
    PROFILER: ("start", "end", "globalTid", "nameId"),
    OSRT: ("start", "end", "globalTid", "nameId", "callchainId"),
    NVTX: ("start", "end", "eventType", "globalTid", "textId", "domainId", "jsonTextId"),
    **dict.fromkeys(MPI, ("start", "end", "globalTid", "textId", "commHandle", "size", "recvSize", "remoteRank")),
}
_ON_GPU = (KERNEL, MEMCPY, MEMSET, GRAPH, SYNC, CUDA_EVENT)
_STRINGS = ("demangledName", "shortName", "mangledName", "nameId", "textId", "jsonTextId")

# Values of NVTX_EVENTS.eventType (ENUM_NSYS_EVENT_TYPE).
PUSH_POP, START_END, DOMAIN, THREAD = 59, 60, 75, 39
# Value of RUNTIME.eventClass: a second row for a call whose call chain was recorded.
_BACKTRACE = 67

Rows = dict[str, Array]
"""Columns of equal length; `process` (globalPid) in all of them, `name` where events have one."""


@dataclass
class Events:
    """The event tables, times in ns since the session began."""

    tables: dict[str, Rows]
    domains: dict[tuple[int, int], str] = field(default_factory=dict)
    """Name of an NVTX domain by (process, domain id)."""
    thread_labels: list[tuple[int, str]] = field(default_factory=list)
    """(globalTid, name) of threads that the program named through NVTX (`MPI Rank 3`)."""
    operators: Codes = field(default_factory=lambda: np.empty(0, np.int32))
    """Name codes that are operators of PyTorch (written by emit_nvtx)."""
    strings: StringTable | None = None
    never_closed: int = 0
    without_type: int = 0
    """Rows of NVTX_EVENTS that do not say what they are."""
    nvtx_rows: int = 0
    """Rows of NVTX_EVENTS, of which the ranges' own are in the column `row`."""

    def __getitem__(self, table: str) -> Rows:
        return self.tables[table]

    def count(self, table: str) -> int:
        return len(self.tables[table]["start"])

    @property
    def total(self) -> int:
        return sum(len(rows["start"]) for rows in self.tables.values() if "start" in rows)


def read_events(tables: Tables, names: NamePool, status: Callable[[str], None]) -> Events:
    """Read every event table there is; missing ones become empty."""
    events = Events({})
    for table, columns in _COLUMNS.items():
        if table in tables.names():
            status(f"reading {table} of {tables.path.name}")
        rows: Rows = dict(tables.narrow_integers(table, columns))
        for time in {"start", "end"} & rows.keys():
            rows[time] = rows[time].astype(np.int64, copy=False)
        thread = "globalPid" if "globalPid" in rows else "globalTid"
        rows[thread] = compact(rows[thread])
        if is_constant(rows[thread]):
            rows["process"] = constant(process_of(rows[thread][:1])[0], len(rows[thread]), np.int64)
        else:
            rows["process"] = compact(process_of(rows[thread].astype(np.int64, copy=False)))
        events.tables[table] = rows
    _fill_processes(events)
    needed = (rows[column] for rows in events.tables.values() for column in _STRINGS if column in rows)
    strings = events.strings = StringTable(tables, names, needed)
    _name_kernels(events[KERNEL], strings)
    for table in (RUNTIME, OVERHEAD, PROFILER, OSRT):
        _name(events[table], "nameId", strings, names)
    for table in MPI:
        _name(events[table], "textId", strings, names)
    _name_ranges(events, tables, strings, names)
    events.tables[RUNTIME] = _without_backtraces(events[RUNTIME])
    return events


def _fill_processes(events: Events) -> None:
    """An export reduced to some columns may not tell the process of its work, or of its calls: where the calls hold
    exactly one (without calls the other work, else the ranges), it is that."""
    known = [
        {process for table in group for process in distinct(events[table]["process"])[0].tolist()} - {NA}
        for group in ((RUNTIME,), _ON_GPU, (NVTX, OSRT))
    ]
    told = next((processes for processes in known if processes), set())
    for rows in events.tables.values() if len(told) == 1 else ():
        if len(rows["process"]) and not (rows["process"] != NA).any():
            for column in ("process", "globalPid" if "globalPid" in rows else "globalTid"):
                rows[column] = constant(next(iter(told)), len(rows[column]), np.int64)


def absences(column: Array) -> int:
    """In how many rows a column that was read is `NA`; one of 32 bits has none."""
    if is_constant(column):
        return len(column) if int(column[0]) == NA else 0
    return 0 if column.dtype != np.int64 or int(column.min(initial=0)) != NA else int(np.count_nonzero(column == NA))


def process_of(thread: Times) -> Times:
    """The globalPid of each globalTid or globalPid; NA where it is absent."""
    return np.where(thread == NA, NA, thread & ~0xFFFFFF)


def take(rows: Rows, mask: Mask) -> Rows:
    """The rows of a mask, in every column."""
    if bool(mask.all()):
        return rows
    return {name: picked(column, mask) for name, column in rows.items()}


def _name(rows: Rows, column: str, strings: StringTable, names: NamePool) -> None:
    codes = strings.codes(rows.pop(column))
    if len(codes) and int(codes.min()) == NO_NAME:
        codes = np.where(codes == NO_NAME, np.int32(names.code("?")), codes)
    rows["name"] = codes


def _name_kernels(rows: Rows, strings: StringTable) -> None:
    """The demangled name is the most informative; files without it have a short or a mangled one."""
    codes = strings.codes(rows.pop("demangledName"))
    for column in ("shortName", "mangledName"):
        other = rows.pop(column)
        if len(codes) and int(codes.min()) == NO_NAME:
            codes = np.where(codes == NO_NAME, strings.codes(other), codes)
    rows["name"] = codes


def _name_ranges(events: Events, tables: Tables, strings: StringTable, names: NamePool) -> None:
    """Keep the closed ranges of NVTX_EVENTS; note domains and named threads on the way."""
    rows = events[NVTX]
    events.nvtx_rows = len(rows["start"])
    rows["row"] = np.arange(events.nvtx_rows)
    encoder = RangeNames(names)
    by_id = strings.codes(rows.pop("textId"), encoder.code)
    codes = encoder.codes(tables.range_texts(NVTX, "text"))
    codes = np.where(codes == NO_NAME, by_id, codes) if len(codes) else by_id
    rows["name"] = np.where(codes == NO_NAME, np.int32(names.code("")), codes) if len(codes) else codes
    for row in np.flatnonzero(rows["eventType"] == DOMAIN).tolist():
        events.domains[int(rows["process"][row]), int(rows["domainId"][row])] = names[int(rows["name"][row])]
    for row in np.flatnonzero(rows["eventType"] == THREAD).tolist():
        events.thread_labels.append((int(rows["globalTid"][row]), names[int(rows["name"][row])]))
    events.without_type = int((rows["eventType"] == NA).sum())
    ranges = (rows["eventType"] == PUSH_POP) | (rows["eventType"] == START_END)
    closed = ranges & (rows["end"] != NA)
    events.never_closed = int(ranges.sum() - closed.sum())
    events.tables[NVTX] = take(rows, closed)
    events.operators = np.array(encoder.operators, np.int32)


def _without_backtraces(rows: Rows) -> Rows:
    """A call with a recorded call chain has two rows under one correlation id: keep the call's own."""
    if is_constant(rows["eventClass"]):
        return rows
    chains = rows["eventClass"] == _BACKTRACE
    if not bool(chains.any()):
        return rows
    _, process = distinct(rows["process"])
    key = (process << 33) + rows["correlationId"]  # correlation ids have 32 bits
    return take(rows, ~(chains & np.isin(key, key[~chains])))


# What NCCL says of an operation through NVTX: a binary payload, or JSON from its advanced trace.
#
# The layout of a binary payload is in NVTX_PAYLOAD_SCHEMA_ENTRIES; fields are identified by their names, since the
# schema ids moved in nearly every version of NCCL (NVIDIA/nccl `src/include/nvtx_payload_schemas.h`). Before
# the payload stand 32 bytes: domain, schema, payload size, offset of the payload, each a uint64.

_HEADER = struct.Struct("<QQQQ")
_FORMATS = {
    # nvToolsExtPayload.h, NVTX_PAYLOAD_ENTRY_TYPE_*
    3: "<h",
    4: "<H",
    5: "<i",
    6: "<I",
    7: "<q",
    8: "<Q",
    9: "<q",
    10: "<Q",
    13: "<h",
    14: "<H",
    15: "<i",
    16: "<I",
    17: "<q",
    18: "<Q",
    22: "<Q",
}
_FIELDS = {
    "messagesizebytes": "bytes",
    "messagesize": "bytes",
    "bytes": "bytes",
    "size": "bytes",
    "count": "count",
    "datatype": "dtype",
    "dtype": "dtype",
    "type": "dtype",
    "ncclcommunicatorid": "communicator",
    "communicatorid": "communicator",
    "communicator": "communicator",
    "commhash": "communicator",
    "commid": "communicator",
    "comm": "communicator",
    "peerrank": "peer",
    "peer": "peer",
    "noofranks": "members",
    "nranks": "members",
    "rank": "rank",
    "seq": "seq",
    "sequencenumber": "seq",
    "collectiveid": "seq",
    "opcount": "seq",
    "operationid": "seq",
}


@dataclass
class Payload:
    """Arguments of an NCCL call; `NA` or "" where not recorded."""

    bytes: int = NA
    """As NCCL logs it: of one rank's share for all-gather, reduce-scatter and all-to-all."""
    communicator: str = ""
    peer: int = NA
    members: int = NA
    rank: int = NA
    seq: int = NA
    dtype: str = ""


def read_payloads(tables: Tables, events: Events, names: NamePool) -> tuple[dict[int, Payload], int]:
    """Payloads by index into the NVTX rows, and how many could not be decoded."""
    rows = events[NVTX]
    called = [code for code in distinct(rows["name"])[0].tolist() if is_nccl_call(names[code])]
    index = np.flatnonzero(np.isin(rows["name"], called))
    if not len(index):
        return {}, 0
    mask = np.zeros(events.nvtx_rows, np.bool_)
    mask[rows["row"][index]] = True
    found: dict[int, Payload] = {}
    undecoded = 0
    schemas = _schemas(tables)
    for place, blob in zip(index.tolist(), tables.blobs(NVTX, "binaryData", mask), strict=True):
        if blob:
            payload = _from_bytes(blob, schemas)
            undecoded += payload is None
            found.update({place: payload} if payload else {})
    texts = list(zip(index.tolist(), tables.texts(NVTX, "jsonText", mask), strict=True))
    by_id = index[rows["jsonTextId"][index] != NA].tolist()
    if events.strings is not None:
        texts += [(place, events.strings.text(int(rows["jsonTextId"][place]))) for place in by_id]
    for place, text in texts:
        if text and (payload := _from_json(text)):
            found[place] = payload
    return found, undecoded


def is_nccl_call(name: str) -> bool:
    """A range that NCCL opens around one of its API calls."""
    return re.match(r"p?nccl[A-Z]\w+$", name) is not None


_Schema = list[tuple[str, int, str]]


def _schemas(tables: Tables) -> dict[tuple[int, int], _Schema]:
    """(field, offset, struct format) of each field we use, by (domain, schema)."""
    rows = tables.integers("NVTX_PAYLOAD_SCHEMA_ENTRIES", ("domainId", "schemaId", "idx", "type", "offset"))
    labels = list(tables.texts("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"))
    schemas: dict[tuple[int, int], _Schema] = {}
    for i, label in enumerate(labels):
        known = _FIELDS.get(_plain(label or ""))
        fmt = _FORMATS.get(int(rows["type"][i]))
        if known and fmt:
            offset = int(rows["offset"][i])
            key = (int(rows["domainId"][i]), int(rows["schemaId"][i]))
            # The first field's offset is left out; a later one's would be a guess.
            if offset != NA or int(rows["idx"][i]) == 0:
                schemas.setdefault(key, []).append((known, max(offset, 0), fmt))
    return schemas


def _from_bytes(blob: bytes, schemas: dict[tuple[int, int], _Schema]) -> Payload | None:
    if len(blob) < _HEADER.size:
        return None
    domain, schema, size, _ = _HEADER.unpack_from(blob)
    fields = schemas.get((domain & 0xFFFFFFFF, schema & 0xFFFFFFFF))
    body = blob[_HEADER.size : _HEADER.size + size]
    if fields is None or len(body) < size:
        return None
    values: dict[str, int] = {}
    for name, offset, fmt in fields:
        if offset + struct.calcsize(fmt) <= len(body):
            values[name] = struct.unpack_from(fmt, body, offset)[0]
    return _payload(dict(values))


def _from_json(text: str) -> Payload | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    values: dict[str, object] = {}
    _flatten(value, values)
    return _payload(values) if values else None


def _flatten(value: object, into: dict[str, object]) -> None:
    if isinstance(value, list):
        for item in value:
            _flatten(item, into)
    elif isinstance(value, dict):
        # A list of {"name": …, "value": …} says the same as an object.
        if isinstance(value.get("name"), str) and "value" in value:
            value = {value["name"]: value["value"]}
        for key, item in value.items():
            if isinstance(item, dict | list):
                _flatten(item, into)
            elif known := _FIELDS.get(_plain(str(key))):
                into.setdefault(known, item)


def _payload(values: dict[str, object]) -> Payload:
    size, peer, members, rank, seq = (_integer(values.get(n)) for n in ("bytes", "peer", "members", "rank", "seq"))
    payload = Payload(bytes=size, peer=peer, members=members, rank=rank, seq=seq)
    if isinstance(values.get("dtype"), str):
        payload.dtype = str(values["dtype"]).removeprefix("nccl").lower()
        item, count = item_bytes(payload.dtype), _integer(values.get("count"))
        if payload.bytes == NA and NA not in (item, count):
            payload.bytes = item * count
    communicator = values.get("communicator")
    if communicator not in (None, 0, "", "0", "0x0"):
        number = _unsigned(communicator)
        payload.communicator = str(communicator) if number is None else f"{number:#x}"
    return payload


def _integer(value: object) -> int:
    number = _unsigned(value)
    return number if number is not None and abs(number) < 2**62 else NA


def _unsigned(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"0[xX][0-9a-fA-F]+|\d+", value):
        return int(value, 0)
    return None


def _plain(label: str) -> str:
    return re.sub(r"[^a-z]", "", label.lower())
