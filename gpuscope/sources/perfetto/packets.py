"""The packets of a Perfetto trace file, one after the other: gunzipped, never the whole file at once.

A trace is the protobuf message `Trace` with the one field `packet` = 1, so that a file is a row of
(tag 0x0a, length, packet). Lengths may be padded, non-minimal varints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.sources import stream

TAG = 0x0A
_LONGEST_LENGTH = 10
"""Bytes of a varint at most."""
LARGEST = 64 << 20
"""A single packet larger than this is no packet: the file is not what it seems."""
_MORE = 0x80
_SURE = 2


class DamagedError(Exception):
    """What follows is no packet."""


def texts(path: Path, take: Callable[[bytes], int], advance: Callable[[int], None] | None = None) -> None:
    """Gives `take` the file's bytes piece by piece, from the beginning of a packet on; it says how far it took them.

    Raises `stream.TruncatedError` where the file ends inside a packet, `DamagedError` where no packet begins where one
    should, `InputError` where the file can't be read.
    """
    left = b""
    for block in stream.blocks(path, advance):
        text = left + block
        left = text[take(text) :]
        if (bounds := _packet(left, 0)) is not None and bounds[1] - bounds[0] > LARGEST:
            raise InputError(f"{path}: a packet of more than {LARGEST >> 20} MiB: not a trace")
    if left:
        raise stream.TruncatedError(f"{path}: ends inside a packet")


def whole(text: bytes) -> Iterator[tuple[int, int]]:
    """Where the packets at the beginning of a text start and end; not one that is cut off, damaged or too large."""
    end = 0
    with suppress(DamagedError):
        while (bounds := _packet(text, end)) is not None:
            start, end = bounds
            if end > len(text) or end - start > LARGEST:
                return
            yield bounds


def framed(packet: bytes) -> bytes:
    """A packet's bytes as they stand in a file."""
    size = len(packet)
    length = bytearray()
    while size >= _MORE:
        length.append(size & 0x7F | _MORE)
        size >>= 7
    return bytes((TAG, *length, size)) + packet


def begins_with_packets(head: bytes) -> bool:
    """Whether `head`, the beginning of a file, is a row of well-formed packets; the last may be cut off.

    Two are enough where one behind them is damaged: no text begins like that.
    """
    at = whole = 0
    try:
        while at < len(head) and (bounds := _packet(head, at)) is not None:
            start, end = bounds
            if end > len(head):
                # Of a first packet that is longer than the head, its own beginning has to do.
                return whole > 0 or (0 < end - start <= LARGEST and _begins_with_field(head[start:]))
            if not _well_formed(head[start:end]):
                return whole >= _SURE
            at, whole = end, whole + 1
    except DamagedError:
        return whole >= _SURE
    return whole > 0


def _packet(buffer: bytes, at: int) -> tuple[int, int] | None:
    """Where the packet at `at` starts and ends; None where its length is not there yet."""
    if at >= len(buffer):
        return None
    if buffer[at] != TAG:
        raise DamagedError(f"no packet begins with byte {buffer[at]:#04x}")
    found = _varint(buffer, at + 1)
    if found is None:
        return None
    length, start = found
    return start, start + length


def _varint(buffer: bytes, at: int) -> tuple[int, int] | None:
    """A varint and the place behind it; None where it is cut off."""
    value = 0
    for place, byte in enumerate(buffer[at : at + _LONGEST_LENGTH]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < _MORE:
            return value, at + place + 1
    if len(buffer) - at >= _LONGEST_LENGTH:
        raise DamagedError("a length without an end")
    return None


_FIXED = {1: 8, 5: 4}
_FIELDS = 4096
"""The highest number of a field of a packet; Perfetto's are below it, letters of a text mostly not."""


def _well_formed(packet: bytes) -> bool:
    """Whether the bytes are fields of a message with numbers such as packets have."""
    at = 0
    try:
        while at < len(packet):
            found = _varint(packet, at)
            if found is None or not 0 < found[0] >> 3 < _FIELDS:
                return False
            wire, at = found[0] & 7, found[1]
            if wire in _FIXED:
                at += _FIXED[wire]
            elif wire in (0, 2):
                value = _varint(packet, at)
                if value is None:
                    return False
                at = value[1] + (value[0] if wire == 2 else 0)
            else:
                return False
    except DamagedError:
        return False
    return at == len(packet) > 0


def _begins_with_field(packet: bytes) -> bool:
    try:
        found = _varint(packet, 0)
    except DamagedError:
        return False
    return found is not None and 0 < found[0] >> 3 < _FIELDS and found[0] & 7 in (0, 1, 2, 5)
