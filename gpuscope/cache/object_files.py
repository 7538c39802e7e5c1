"""Objects in files: a pickle, and the arrays in it one after another, to be mapped rather than read.

Only files in a folder that nobody but the user can write to are ever opened (`cache_folder`).
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_MAGIC = b"gpuscope\x00kept\x00\x012"
_END = b"\x00whole file\x00"
_HEAD = struct.Struct("<16sQQQL")
"""Magic, size of the file, bytes of the pickle, number of arrays, check sum of pickle and sizes; then each array's
bytes as one Q."""
_ALIGNED = 64


def prepared(kept: Any) -> Callable[[IO[bytes]], None]:
    """What writes an object into a file: all but its arrays may change meanwhile.

    Raises what `pickle` raises for one that can't be kept.
    """
    import pickle

    arrays: list[pickle.PickleBuffer] = []
    text = pickle.dumps(kept, protocol=5, buffer_callback=arrays.append)
    views = [array.raw() for array in arrays]
    sizes = [view.nbytes for view in views]
    start = _HEAD.size + 8 * len(sizes) + len(text)
    total = start + sum(_padded(at, size)[1] for at, size in _places(start, sizes)) + len(_END)

    lengths = struct.pack(f"<{len(sizes)}Q", *sizes)

    def write(file: IO[bytes]) -> None:
        file.write(_HEAD.pack(_MAGIC, total, len(text), len(sizes), zlib.crc32(text, zlib.crc32(lengths))))
        file.write(lengths)
        file.write(text)
        for (at, size), view in zip(_places(start, sizes), views, strict=True):
            file.write(b"\0" * _padded(at, size)[0])
            file.write(view)
        file.write(_END)

    return write


def read(path: Path) -> Any:
    """The object in a file. Raises `ValueError` for one that is not whole, `OSError` for one that can't be read.

    Arrays stand in the mapped file; what is written to them is the process's own.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if len(mapped) < _HEAD.size + len(_END):
        raise ValueError("too short")
    magic, total, length, count, checked = _HEAD.unpack_from(mapped)
    if magic != _MAGIC or total != len(mapped) or mapped[-len(_END) :] != _END or 8 * count > total:
        raise ValueError("not whole, or of another version")
    sizes = struct.unpack_from(f"<{count}Q", mapped, _HEAD.size)
    start = _HEAD.size + 8 * count
    view = memoryview(mapped)
    places = [(at + _padded(at, size)[0], size) for at, size in _places(start + length, list(sizes))]
    if start + length > total or any(at + size > total for at, size in places):
        raise ValueError("its parts are longer than the file")
    # A damaged pickle may ask for any amount of memory.
    if zlib.crc32(view[start : start + length], zlib.crc32(view[_HEAD.size : start])) != checked:
        raise ValueError("damaged")
    import pickle

    try:
        return pickle.loads(view[start : start + length], buffers=[view[at : at + size] for at, size in places])
    except Exception as error:  # of whatever kind: a damaged pickle may raise any
        raise ValueError(str(error)) from error


def _padded(at: int, size: int) -> tuple[int, int]:
    """Bytes to leave out before an array that would begin at `at`, and what both take together."""
    pad = -at % _ALIGNED
    return pad, pad + size


def _places(start: int, sizes: list[int]) -> list[tuple[int, int]]:
    """Where each array would begin without padding, and its size."""
    places: list[tuple[int, int]] = []
    for size in sizes:
        places.append((start, size))
        start += _padded(start, size)[1]
    return places
