"""What NCCL says of an operation through NVTX: a binary payload, or JSON from its advanced trace.

The layout of a binary payload is in NVTX_PAYLOAD_SCHEMA_ENTRIES; fields are identified by their names, since the
schema ids moved in nearly every version of NCCL (NVIDIA/nccl `src/include/nvtx_payload_schemas.h`). Before
the payload stand 32 bytes: domain, schema, payload size, offset of the payload, each a uint64.
"""

from __future__ import annotations

import json
import re
import struct

import numpy as np

from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.sources.nsys.rows.event_tables import NVTX, Events
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.naming.dtypes import item_bytes
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

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
