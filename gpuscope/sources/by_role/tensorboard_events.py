"""Scalars in TensorBoard's event files.

A file is a row of TFRecords (length, its checksum, data, its checksum: tensorflow/core/lib/io/record_writer.h), each an
`Event` (tensorflow/core/util/event.proto). Checksums are not looked at: they need CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources import stream
from gpuscope.sources.by_role.timer_names import Row
from gpuscope.sources.protobuf_messages import message_classes
from gpuscope.sources.source import ReadOptions
from gpuscope.trace.builder import TraceBuilder

_LARGEST = 64 << 20
"""Bytes: an event longer than that is none."""
_CLASSES = message_classes(
    "gpuscope.tensorboard",
    {
        "Event": "step:2:int64 summary:5:Summary",
        "Summary": "value:1:Value*",
        "Value": "tag:1:bytes simple_value:2:float tensor:8:Tensor",
        "Tensor": "content:4:bytes float_val:5:float* double_val:6:double*",
    },
)


def rows(path: Path, options: ReadOptions, builder: TraceBuilder) -> Iterator[Row]:
    """The scalars of events of one step that follow each other; what can't be read, or was cut off, is counted.

    Raises `InputError` where the file is no row of records.
    """
    row, lost = Row(None), 0
    for data in _records(path, options, builder):
        try:
            event = _CLASSES["Event"].FromString(data)
        except DecodeError:
            lost += 1
            continue
        if event.step != row.step:
            yield row
            row = Row(event.step)
        for value in event.summary.value:
            scalar = _scalar(value)
            if scalar is not None:
                row.metrics[value.tag.decode(errors="replace").removeprefix("train/")] = scalar
    yield row
    builder.problem(reading.RECORD_UNREADABLE, lost, file=path.name, what="events")


def _records(path: Path, options: ReadOptions, builder: TraceBuilder) -> Iterator[bytes]:
    rest = b""
    for block in stream.blocks(path, options.advance):
        rest += block
        at = 0
        while len(rest) - at >= 8:
            (length,) = struct.unpack_from("<Q", rest, at)
            if length > _LARGEST:
                raise InputError(f"{path}: is damaged: a record of {length} bytes", hint="copy the file again")
            if len(rest) - at < length + 16:
                break
            yield rest[at + 12 : at + 12 + length]
            at += length + 16
        rest = rest[at:]
    builder.problem(reading.RECORD_UNREADABLE, int(bool(rest)), file=path.name, what="events, the last one cut off")


def _scalar(value: Any) -> float | None:
    """Of a value as writers old and new have it; None of histograms, texts and images."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    tensor = value.tensor
    for told in (tensor.float_val, tensor.double_val):
        if len(told) == 1:
            return float(told[0])
    return struct.unpack("<f", tensor.content)[0] if len(tensor.content) == 4 else None
