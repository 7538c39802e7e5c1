"""Keys of what is kept: the content it was made of, what was asked of it, and the program that made it."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from gpuscope.version import __version__

_SAMPLES, _SAMPLE = 16, 1 << 16


def content_key(path: Path, *asked: object) -> str | None:
    """A key for what is made of a file when `asked` so; None for what is no file, or can't be read.

    Of the content it takes the size, the times of the last change (one of which no program can set back), and pieces
    from all over it: to read gigabytes again would take as long as to parse them. What is made may hold the path, so
    that is part of it too.
    """
    import hashlib

    digest = hashlib.blake2b(digest_size=20)
    try:
        status = path.stat()
        with path.open("rb") as file:
            for place in range(_SAMPLES + 1):
                file.seek(max(0, status.st_size - _SAMPLE) * place // _SAMPLES)
                digest.update(file.read(_SAMPLE))
    except OSError:
        return None
    parts = (path.absolute(), status.st_size, status.st_mtime_ns, status.st_ctime_ns, program(), *asked)
    digest.update("\0".join(map(str, parts)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@cache
def program() -> str:
    """The version of gpuscope, and the state of its files: a change of the code is another program."""
    import hashlib

    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(f"{__version__} {sys.version}".encode(), digest_size=16)
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            status = os.stat(os.path.join(folder, name))
            digest.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
