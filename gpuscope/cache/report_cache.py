"""Finished reports: the same question on the same large files is answered without their columns or any analysis.

What is imported here is little, for on that path hardly anything else is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuscope.cache import file_cache
from gpuscope.cache.content_key import content_key
from gpuscope.plugins import SOURCES, plugins

_HARDWARE = "GPUSCOPE_HARDWARE"


def report_key(paths: Sequence[str], *asked: object) -> str | None:
    """The key of the report on these files when `asked` so; None where it may depend on more than these files: folders,
    URLs, a table of link rates of one's own (whether they lie in a run folder the caller knows), and for small ones."""
    from hashlib import blake2b

    files = [Path(path) for path in paths]
    if os.environ.get(_HARDWARE) or not all(map(file_cache.is_worth, files)):
        return None
    keys = [content_key(path, "report") for path in files]
    if None in keys:
        return None
    parts = (*keys, *paths, *sorted(plugins(SOURCES)), *asked)
    return blake2b("\0".join(map(repr, parts)).encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()


def kept_report(key: str | None) -> str | None:
    """The text of the kept report, as `report.json_report.dumps` made it; None where there is none."""
    return file_cache.kept(key, str)


def keep_report(key: str | None, text: str) -> Callable[[], None]:
    """Keep a report's text, as `file_cache.keep` does."""
    return file_cache.keep(key, text)
