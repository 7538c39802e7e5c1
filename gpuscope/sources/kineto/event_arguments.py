"""The arguments of Kineto events that an analysis uses, decoded for many events in one call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from gpuscope.trace.columns.table import Mask
from gpuscope.trace.schema import NA

Loose = int | float | str | None
"""`bytes`, `stream` and `device` are sometimes strings."""
_Plain = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]
RECORD = "Record function id"
"""By which PyTorch's execution traces name the same call."""
NULL = msgspec.Raw(b"null")
"""What an argument that is not there reads as, where it is left as text."""


class DeviceArguments(msgspec.Struct, gc=False):
    """Arguments of device events and of the calls that launch them."""

    correlation: Loose = None
    stream: Loose = None
    device: Loose = None
    bytes: Loose = None
    graph: Loose = msgspec.field(default=None, name="graph id")
    context: Loose = None


class _PlainDeviceArguments(msgspec.Struct, gc=False):
    """The same where all are integers, as nearly always."""

    correlation: _Plain = NA
    stream: _Plain = NA
    device: _Plain = NA
    bytes: _Plain = NA
    graph: _Plain = msgspec.field(default=NA, name="graph id")
    context: _Plain = NA


class SyncArguments(msgspec.Struct, gc=False):
    """What a stream waits for (libkineto's `cuda_sync` rows); −1 where that is not known."""

    awaited_stream: Loose = msgspec.field(default=None, name="wait_on_stream")
    record: Loose = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class CopyArguments(msgspec.Struct, gc=False):
    """Direction and memory of a copy whose name has neither (torch 2.15's CUPTI back end)."""

    kind: Loose = msgspec.field(default=None, name="copy kind")
    source: Loose = msgspec.field(default=None, name="src kind")
    target: Loose = msgspec.field(default=None, name="dst kind")


class GridArguments(msgspec.Struct, gc=False):
    """The size of a kernel's launch."""

    grid: object = None
    block: object = None


class _Correlated(msgspec.Struct, gc=False):
    correlation: _Plain = NA


class _Operator(msgspec.Struct, gc=False):
    now: Loose = msgspec.field(default=None, name="External id")
    before: Loose = msgspec.field(default=None, name="external id")
    """As files of 2020 and 2021 write it."""
    sequence: Loose = msgspec.field(default=None, name="Sequence number")
    record: Loose = msgspec.field(default=None, name=RECORD)


class ShapeArguments(msgspec.Struct, gc=False):
    """Recorded inputs of an operator, as text: few of them differ."""

    dims: msgspec.Raw = msgspec.field(default=NULL, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NULL, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=NULL, name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=NULL, name="Input Strides")


class CommunicationArguments(msgspec.Struct, gc=False):
    """Arguments of a collective, on its kernel (c10d's `ParamCommsUtils.hpp`)."""

    collective: Loose = msgspec.field(default=None, name="Collective name")
    elements_in: Loose = msgspec.field(default=None, name="In msg nelems")
    elements_out: Loose = msgspec.field(default=None, name="Out msg nelems")
    dtype: Loose = None
    group_size: Loose = msgspec.field(default=None, name="Group size")
    group: Loose = msgspec.field(default=None, name="Process Group Name")
    description: Loose = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Loose = msgspec.field(default=None, name="Seq")
    source: Loose = msgspec.field(default=None, name="Src Rank")
    destination: Loose = msgspec.field(default=None, name="Dst Rank")
    count: Loose = None
    """Elements, as HCCL names it."""
    record: Loose = msgspec.field(default=None, name=RECORD)
    first_use: str | None = None
    first_use_after: int | None = None
    """Of an execution trace: the operator that first uses the result, and ns from the call to it."""


class GlooArguments(CommunicationArguments, gc=False):
    """Arguments of a `gloo:` annotation: its inputs, and with gpuscope's recorder a collective's own."""

    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")


Arguments = TypeVar("Arguments", bound=msgspec.Struct)
_decoders: dict[type, Any] = {}
Column = npt.NDArray[np.int64]


def decode_arguments(texts: Sequence[msgspec.Raw], kind: type[Arguments]) -> list[Arguments]:
    """One `kind` per text; an argument object that is malformed counts as empty."""
    if not texts:
        return []
    try:
        decoded: list[Arguments] = _decoder(kind).decode(b"[" + b",".join(texts) + b"]")
        return decoded
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [_one(text, kind) for text in texts]


def device_columns(texts: Sequence[msgspec.Raw]) -> dict[str, Column]:
    """`DeviceArguments` of many events as columns of integers, shape (n,) each; what is absent is `NA`."""
    try:
        plain = _decoder(_PlainDeviceArguments).decode(b"[" + b",".join(texts) + b"]")
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # some value is text, or some argument object malformed
        return _loose_columns(texts)
    return {
        "correlation": np.array([a.correlation for a in plain], np.int64),
        "stream": np.array([a.stream for a in plain], np.int64),
        "device": np.array([a.device for a in plain], np.int64),
        "bytes": np.array([a.bytes for a in plain], np.int64),
        "graph": np.array([a.graph for a in plain], np.int64),
        "context": np.array([a.context for a in plain], np.int64),
    }


def correlations(texts: Sequence[msgspec.Raw]) -> Column:
    """Only the correlation of many events, shape (n,); `NA` where it is absent."""
    try:
        plain = _decoder(_Correlated).decode(b"[" + b",".join(texts) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _loose_columns(texts)["correlation"]
    return np.array([a.correlation for a in plain], np.int64)


def operator_numbers(texts: Sequence[msgspec.Raw]) -> tuple[Column, Column, Column]:
    """Of operators the External ids, shape (m,), and places with autograd's sequence numbers and with ids of the record
    function, shape (k, 2) each; those that have none are left out."""
    decoded = decode_arguments(texts, _Operator)
    found = np.array([integer(one.before if one.now is None else one.now) for one in decoded], np.int64)
    sequences = np.array([integer(one.sequence) for one in decoded], np.int64)
    records = np.array([integer(one.record) for one in decoded], np.int64)
    return found[found != NA], _placed(sequences, sequences >= 0), _placed(records, records > 0)


def _placed(numbers: Column, there: Mask) -> Column:
    own = np.flatnonzero(there)
    return np.stack((own, numbers[own]), axis=1)


def _loose_columns(texts: Sequence[msgspec.Raw]) -> dict[str, Column]:
    loose = decode_arguments(texts, DeviceArguments)
    return {
        field: np.array([integer(getattr(one, field)) for one in loose], np.int64)
        for field in DeviceArguments.__struct_fields__
    }


def as_list(value: Any) -> list[Any]:
    """A list of the file's header as it is; nothing where something else stands there."""
    return value if isinstance(value, list) else []


def integer(value: Any) -> int:
    """An integer that stands as number or text (`"stream 7"`), else `NA`."""
    if isinstance(value, int):
        return value if -(2**62) < value < 2**62 else NA
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**62 else NA
    if isinstance(value, str) and (match := re.search(r"-?\d{1,18}$", value)):
        return int(match[0])
    return NA


def _decoder(kind: type[Arguments]) -> Any:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    return decoder


def _one(text: msgspec.Raw, kind: type[Arguments]) -> Arguments:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return kind()
