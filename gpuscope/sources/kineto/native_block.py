"""Blocks of Kineto events by the native core: equal to what `event_block` makes of them, some twenty times as fast.

The core takes what profilers write and gives up on a block that holds anything unusual, which is then decoded in
Python; so its rules are a strict part of the JSON reader's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpuscope.native import core
from gpuscope.sources.kineto.event_arguments import NULL, integer
from gpuscope.sources.kineto.event_block import CATEGORIES, Block, Columns, Numbered, Rows, Shapes, shapes_of
from gpuscope.sources.kineto.text.chrome_json import Counted, Instant, Metadata
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.schema import NA

_KNOWN = {category.encode(): int(route) for category, route in CATEGORIES.items()}
_NUMBERS = ("start", "end", "correlation", "stream", "device", "bytes", "graph", "context")
_NULL = bytes(NULL)
_metadata = msgspec.json.Decoder(list[Metadata])
_instants = msgspec.json.Decoder(list[Instant])
_counters = msgspec.json.Decoder(list[Counted])

Spans = npt.NDArray[np.uint32]
"""Where texts stand, shape (n, 2): offset and length."""
Scanned = dict[str, Any]
"""What the core found in a block, in terms of its text."""


class Native:
    """Makes blocks of what it scanned, one after another: codes are given in the order of the file."""

    def __init__(self, names: NamePool, threads: Numbered, texts: Mapping[bytes, int]) -> None:
        self._names, self._threads, self._texts = names, threads, texts
        self._name_codes, self._text_codes = core.Codes(), core.Codes()
        self._places: dict[tuple[bytes, bytes], int] = {}

    def scan(self, text: bytes | memoryview) -> Scanned | None:
        """What stands in `{…},{…}`; None where Python has to decode it. Other threads run meanwhile."""
        found: Scanned | None = core.scan(text, _KNOWN)
        return found

    def block(self, found: Scanned, text: bytes | memoryview) -> tuple[int, Block] | None:
        """How many events there are, and the columns; None where some event does not decode after all."""
        block = Block(other=_lowered(found["other"]), shaped=found["shaped"] > 0)
        try:
            if found["metadata"]:
                block.metadata = _metadata.decode(_array(text, found["metadata"]))
            if found["memory"]:
                block.instants = _instants.decode(_array(text, found["memory"]))
            if found["counters"]:
                block.counters = _counters.decode(_array(text, found["counters"]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        names = text_codes(self._name_codes, text, found["names"], self._name)
        threads = _texts(text, found["processes"]), _texts(text, found["threads"])
        places = np.array([self._place(pair) for pair in zip(*threads, strict=True)], np.int32)
        drawn = _texts(text, found["row_processes"]), _texts(text, found["row_threads"])
        for table in ("device", "host", "sync"):
            rows = self._rows(found[table], names, text)
            if rows is not None:
                setattr(block, table, rows)
        if block.host is not None:
            block.host.columns["thread"] = places[_numbers(found["host"]["thread"], np.uint32)]
            block.operator_ids = _numbers(found["external_ids"], np.int64)
            block.sequences = _numbers(found["sequences"], np.int64).reshape(-1, 2)
            block.records = _numbers(found["records"], np.int64).reshape(-1, 2)
        if block.device is not None:
            row = _numbers(found["device"]["thread"], np.uint32)
            for column, texts in zip(("device", "stream"), drawn, strict=True):
                _fill(block.device.columns[column], texts, row)
        return found["events"], block

    def _rows(self, found: dict[str, bytearray], names: npt.NDArray[np.int32], text: bytes | memoryview) -> Rows | None:
        route = _numbers(found["route"], np.int8)
        if not len(route):
            return None
        # Copies: what the scanners' threads allocated is freed whole, for their next blocks.
        columns: Columns = {name: _numbers(found[name], np.int64).copy() for name in _NUMBERS if name in found}
        columns["name"] = names[_numbers(found["name"], np.uint32)]
        arguments = _spans(found["arguments"])
        return Rows(route, columns, _getter(text, arguments), self._shapes(text, arguments))

    def _name(self, text: bytes) -> int:
        return self._names.code(msgspec.json.decode(b'"' + text + b'"') if b"\\" in text else text.decode())

    def _place(self, pair: tuple[bytes, bytes]) -> int:
        place = self._places.get(pair)
        if place is None:
            pid, tid = (msgspec.json.decode(text) for text in pair)
            place = self._places[pair] = self._threads[pid, tid]
        return place

    def _shapes(self, text: bytes | memoryview, arguments: Spans) -> Callable[[npt.NDArray[np.int64]], Shapes]:
        def shapes(rows: npt.NDArray[np.int64]) -> Shapes:
            if not len(rows):
                return Shapes()
            own = arguments[rows]
            found = core.shape_texts(text, own)
            if found is None:
                return shapes_of(rows, _getter(text, arguments)(rows.tolist()), self._texts)
            inputs = [_spans(spans) for spans in found]
            dims = inputs[0]
            recorded = dims[:, 1] > 0
            for row in np.flatnonzero(dims[:, 1] == len(_NULL)).tolist():
                recorded[row] = bytes(text[dims[row, 0] :][: len(_NULL)]) != _NULL
            there = np.flatnonzero(recorded)
            texts = (spans[there] for spans in inputs)
            columns = (text_codes(self._text_codes, text, spans, self._text) for spans in texts)
            return Shapes(rows[there], *columns)

        return shapes

    def _text(self, text: bytes) -> int:
        return self._texts[text or _NULL]


def text_codes(
    known: Any, text: bytes | memoryview, spans: bytearray | Spans, code: Callable[[bytes], int]
) -> npt.NDArray[np.int32]:
    """The code of each text; `code` gives that of one seen for the first time."""
    found, missing = known.get(text, spans)
    at_once = 64
    while missing:  # few of them differ: some are made known, and then it is seen what is left
        places = _spans(spans)[missing[:at_once]].tolist()
        for own in dict.fromkeys(bytes(text[at : at + length]) for at, length in places):
            known.put(own, code(own))
        found, missing = known.get(text, spans)
        at_once *= 4
    return np.frombuffer(found, np.int32)


def _fill(column: npt.NDArray[np.int64], texts: Sequence[bytes], row: npt.NDArray[np.uint32]) -> None:
    """What the arguments leave open follows from the row that the event is drawn in."""
    missing = column == NA
    if missing.any():
        drawn = np.array([integer(msgspec.json.decode(text)) for text in texts], np.int64)
        column[missing] = drawn[row[missing]]


def _numbers(data: bytearray, kind: type) -> npt.NDArray[Any]:
    return np.frombuffer(data, kind)


def _spans(data: bytearray | Spans) -> Spans:
    return np.frombuffer(data, np.uint32).reshape(-1, 2)


def _getter(text: bytes | memoryview, spans: Spans) -> Callable[[Sequence[int]], list[Any]]:
    def texts(rows: Sequence[int]) -> list[Any]:
        return [bytes(text[at : at + length]) or b"{}" for at, length in spans[rows].tolist()]

    return texts


def _texts(text: bytes | memoryview, spans: bytearray) -> list[bytes]:
    return [bytes(text[at : at + length]) for at, length in _spans(spans).tolist()]


def _array(text: bytes | memoryview, spans: bytearray) -> bytes:
    """The events at some places, as a JSON array."""
    return b"[" + b",".join(_texts(text, spans)) + b"]"


def _lowered(categories: Sequence[tuple[bytes, int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for category, count in categories:
        counts[category.decode("ascii").lower()] += count
    return counts
