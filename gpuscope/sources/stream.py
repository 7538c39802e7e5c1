"""The bytes of a text file, block by block: gunzipped, in UTF-8, never the whole document at once.

First touch of new memory is the slowest thing when reading gigabytes, so blocks stay small: what one decodes
to fits the processor's cache.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from gpuscope.errors import InputError

try:
    fast_zlib: Any = import_module("isal.isal_zlib")
except ImportError:  # no wheel for this platform: the standard library's, about three times slower
    fast_zlib = zlib

BLOCK = 2 << 20
GZIP_MAGIC = b"\x1f\x8b"
BOMB_RATIO = 250
"""Traces gunzip to 10–60 times their size; deflate's limit is 1032."""
BOMB_FLOOR = 1 << 30


class TruncatedError(Exception):
    """The file ends in the middle of its compressed data."""


def blocks(path: Path, advance: Callable[[int], None] | None = None, size: int = 0) -> Iterator[bytes]:
    """UTF-8 blocks of about `size` bytes, by default of `BLOCK`. `advance` gets the number of compressed bytes read.

    Raises `TruncatedError` after the last whole block of a gzip file that was cut off, and `InputError` where
    the file can't be read or gunzips to absurdly much.
    """
    raw = (_gunzipped if _head(path, 2) == GZIP_MAGIC else _plain)(path, advance, size or BLOCK)
    first = next(raw, b"")
    for bom, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if first.startswith(bom):
            yield from _recoded(first[2:], raw, encoding)
            return
    yield first.removeprefix(codecs.BOM_UTF8)
    yield from raw


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first `size` bytes of the text, for recognising formats; as many as there are when damaged."""
    found = b""
    with suppress(TruncatedError, InputError):
        for block in blocks(path, size=size):
            found += block
            if len(found) >= size:
                break
    return found[:size]


def _head(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error


def _plain(path: Path, advance: Callable[[int], None] | None, size: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(size):
                if advance:
                    advance(len(block))
                yield block
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error


def _gunzipped(path: Path, advance: Callable[[int], None] | None, most: int) -> Iterator[bytes]:
    size = path.stat().st_size
    done = reported = 0
    with path.open("rb") as compressed:
        for block in _inflate(compressed, path, most):
            done += len(block)
            if done > BOMB_FLOOR and done > BOMB_RATIO * size:
                raise InputError(
                    f"{path}: gunzips to more than {BOMB_RATIO} times its size; not a trace",
                    hint="if it really is one, gunzip it yourself and pass the result",
                )
            if advance:
                position = compressed.tell()
                advance(position - reported)
                reported = position
            yield block


def _inflate(compressed: IO[bytes], path: Path, most: int) -> Iterator[bytes]:
    """Members of a gzip file, one after another, in pieces of at most `most` bytes."""
    pending = b""
    try:
        while True:
            inflator = fast_zlib.decompressobj(wbits=31)
            while not inflator.eof:
                pending = pending or compressed.read(1 << 18)
                if not pending:
                    raise TruncatedError(f"{path}: the gzip data ends early")
                piece: bytes = inflator.decompress(pending, most)
                pending = inflator.unconsumed_tail
                if piece:
                    yield piece
            pending = inflator.unused_data or compressed.read(1 << 18)
            if not pending.strip(b"\0"):  # done, or padded with zeros to a block of tape
                return
    except (zlib.error, fast_zlib.error, OSError) as error:
        raise TruncatedError(f"{path}: the gzip data is damaged: {error}") from error


def _recoded(first: bytes, rest: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first).encode()
    for block in rest:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()
