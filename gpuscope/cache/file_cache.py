"""Whether and how what is made of an input is kept: parts of traces, and whole reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from gpuscope.cache import cache_folder
from gpuscope.plugins import SOURCES, plugins

WORTH = 8 << 20
"""Bytes of a file from which it is quicker to look it up than to read it again."""
Made = TypeVar("Made")


def is_worth(path: Path) -> bool:
    """Whether a path is a file of this size."""
    return path.is_file() and path.stat().st_size >= WORTH


def key_of(path: Path, source: Any, options: Any, *asked: object) -> str | None:
    """The key of what is made of a file that a `Source` reads with `ReadOptions`, of whose package this one knows
    nothing; None where nothing of it is kept."""
    if not options.cache or not source.files.keepable or not is_worth(path):
        return None
    from gpuscope.cache.content_key import content_key

    return content_key(path, source.name, options.partial, options.nsys, *asked)


def kept(key: str | None, kind: type[Made]) -> Made | None:
    """What is kept under a key, or None."""
    found = None if key is None else cache_folder.load(key)
    return found if isinstance(found, kind) else None


def keep(key: str | None, made: Any) -> Callable[[], None]:
    """Keep something, in a thread; arrays in it must not change. Returns what waits for it; Python's end does too."""
    if key is None:
        return lambda: None
    from gpuscope.cache import object_files  # of small files nothing is kept

    try:
        write = object_files.prepared(made)
    except Exception:  # of whatever kind: what pickle can't take is not kept
        return lambda: None
    thread = Thread(target=cache_folder.store, args=(key, write), name="gpuscope-keep")
    thread.start()
    return thread.join


_HARDWARE = "GPUSCOPE_HARDWARE"


def report_key(paths: Sequence[str], *asked: object) -> str | None:
    """The key of the report on these files when `asked` so; None where it may depend on more than these files: folders,
    URLs, a table of link rates of one's own (whether they lie in a run folder the caller knows), and for small ones."""
    from hashlib import blake2b

    files = [Path(path) for path in paths]
    if os.environ.get(_HARDWARE) or not all(map(is_worth, files)):
        return None
    from gpuscope.cache.content_key import content_key

    keys = [content_key(path, "report") for path in files]
    if None in keys:
        return None
    parts = (*keys, *paths, *sorted(plugins(SOURCES)), *asked)
    return blake2b("\0".join(map(repr, parts)).encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
