"""JSON files that are replaced atomically, and that can be written once more where the disk is full.

Space given back to a full disk is taken by whoever writes next, so none is given back: a reserve is a file of blanks
beside the one it is for, and on a full disk its own blocks are written over, in place, and take the other's name.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec

FULL = (errno.ENOSPC, errno.EDQUOT)


def encoded(value: Any) -> bytes:
    """`value` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2) + b"\n"


def reserve(path: Path, size: int) -> None:
    """Set `size` bytes aside for `path`. Raises `OSError`."""
    _reserve_of(path).write_bytes(b" " * size)


def release(path: Path) -> None:
    """Give the reserve of `path` back. Raises `OSError`."""
    _reserve_of(path).unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Replace `path`. Raises `OSError`, on a full disk only where there is no reserve or it is too small."""
    data = encoded(value)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in FULL or not _written_over(path, data):
            raise


def _reserve_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserve")


def _written_over(path: Path, data: bytes) -> bool:
    """Whether the reserve, or what it has become, had room for `data`; blanks fill the rest."""
    blocks = _reserve_of(path) if _reserve_of(path).exists() else path
    size = blocks.stat().st_size if blocks.exists() else 0
    if size < len(data):
        return False
    with blocks.open("r+b") as file:
        file.write(data + b" " * (size - len(data)))
    if blocks != path:
        os.replace(blocks, path)
    return True
